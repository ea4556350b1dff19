"""Checks, when a store is opened, that its storage refuses a second create of the same name.

The commit protocol depends on this property; see docs/internals/design/commit.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from txnstore.errors import (
    ObjectNotFoundError,
    StorageError,
    StorageRefusedError,
    UnknownOutcomeError,
    UnsafeStorageError,
)
from txnstore.storage.base import ObjectStore, unwrapped
from txnstore.storage.local import LocalStore
from txnstore.storage.memory import MemoryStore
from txnstore.storage.proofs import is_proven, remember
from txnstore.threads import Task, Workers

_LOG = logging.getLogger(__name__)

PROBE_FOLDER = "_probe"
_RACERS = 8
_RACERS_LOCAL = 2  # The kernel guarantees that link(2) is atomic, and each racer costs a disk flush.
_MAX_REPEATS = 3
_ARRIVAL_SECONDS = 1.0  # Seconds: a system without enough threads must not stop the probe.

#: The identities of the stores that need no probe: those in memory, and those that this process has probed.
_proven: set[str | None] = {MemoryStore.identity}


@dataclass(frozen=True, slots=True)
class _CreateResult:
    body: bytes
    created: bool | None  # None: the outcome is unknown


def probe(store: ObjectStore, ids: Callable[[], str], *, racers: int = _RACERS) -> None:
    """Check that the store creates a name at most once.

    ``racers`` threads create ``_probe/<id>`` concurrently, then one more create follows. At most one of them may
    succeed, and the object must then hold its bytes. This takes ``racers`` + 1 creates, 1 get and 1 delete in 4 round
    trips. The probe detects stores that ignore the condition and stores with a wide race; it cannot detect a race of
    microseconds.

    Args:
        store: The store to probe.
        ids: Returns a unique name.
        racers: The number of concurrent creates.

    Raises:
        UnsafeStorageError: More than one create succeeded, or the object does not hold the winner's bytes.
        StorageError: The storage did not answer.
    """
    name = ids()
    key = f"{PROBE_FOLDER}/{name}"
    bodies = [f"{name}/{number}".encode() for number in range(racers + 1)]
    may_exist = True
    try:
        try:
            attempts = _create_concurrently(store, key, bodies[:racers])
        except StorageRefusedError:
            may_exist = False  # The storage refuses all creates alike, and would refuse the deletion too.
            raise
        attempts.append(_create_again(store, key, bodies[racers]))
        _check_attempts(store, key, attempts)
    finally:
        if may_exist:
            _clean_up(store, key)


def probe_once(store: ObjectStore, ids: Callable[[], str], *, store_id: str = "", now: int = 0) -> bool:
    """Run :func:`probe` once per process and store; never for a store in memory.

    The check looks through wrappers that are transparent (:func:`~txnstore.storage.base.unwrapped`). It recognizes a
    store by its ``identity`` attribute, which those that inject faults pass on; one without it is probed every time.
    What another process of the user has probed is not probed again for a week (:mod:`~txnstore.storage.proofs`) if the
    class of the store has an attribute ``remote``: the probe of a local folder costs no request.

    Args:
        store: The store to probe.
        ids: Returns a unique name.
        store_id: The id of the store that it holds; empty if it has none yet: see :func:`remember_probe`.
        now: The time in ms.

    Returns:
        Whether it was probed now.
    """
    backend = unwrapped(store)
    identity: str | None = getattr(backend, "identity", None)
    if identity in _proven:
        return False
    remote = _remote_identity(backend)
    is_probed = remote is None or not store_id or not is_proven(remote, store_id, now)
    if is_probed and isinstance(backend, LocalStore):
        probe(store, ids, racers=_RACERS_LOCAL)
        backend.check_names()
    elif is_probed:
        probe(store, ids)
        remember_probe(store, store_id, now)
    if identity is not None:
        _proven.add(identity)
    return is_probed


def remember_probe(store: ObjectStore, store_id: str, now: int) -> None:
    """Remember for other processes of the user that the storage was probed, if its probe costs requests.

    Args:
        store: The store that was probed.
        store_id: The id of the store that it holds; empty if it has none yet: nothing is remembered.
        now: The time of the probe in ms.
    """
    remote = _remote_identity(unwrapped(store))
    if remote is not None and store_id:
        remember(remote, store_id, now)


def _remote_identity(backend: ObjectStore) -> str | None:
    """Return the identity of a storage whose probe costs requests, so that it is remembered; None for others."""
    return getattr(backend, "identity", None) if getattr(type(backend), "remote", False) else None


def check_writes(store: ObjectStore, ids: Callable[[], str]) -> None:
    """Check that the store takes a write now, which a remembered probe does not show. PUT and DELETE.

    Args:
        store: The store.
        ids: Returns a unique name.

    Raises:
        StorageError: It does not.
    """
    key = f"{PROBE_FOLDER}/{ids()}"
    store.put(key, b"")
    _clean_up(store, key)


def _clean_up(store: ObjectStore, key: str) -> None:
    try:
        store.delete([key])
    except StorageError as error:
        # The error is in the message too: without handlers, Python prints nothing else.
        _LOG.warning("probe object not deleted: %s", error, extra={"url": store.url, "key": key, "error": str(error)})


def _create_concurrently(store: ObjectStore, key: str, bodies: list[bytes]) -> list[_CreateResult]:
    """Create a key in all threads at once: each waits until all have arrived."""
    arrived_bodies: list[bytes] = []
    all_arrived = Task(lambda: None)

    def create(body: bytes) -> _CreateResult:
        arrived_bodies.append(body)
        if len(arrived_bodies) == len(bodies):
            all_arrived.run()
        all_arrived.wait(_ARRIVAL_SECONDS)
        return _try_create(store, key, body)

    with Workers(len(bodies), "txnstore-probe") as pool:
        return list(pool.map(create, bodies))


def _try_create(store: ObjectStore, key: str, body: bytes) -> _CreateResult:
    try:
        return _CreateResult(body, store.put_if_absent(key, body))
    except UnknownOutcomeError:
        return _CreateResult(body, None)


def _create_again(store: ObjectStore, key: str, body: bytes) -> _CreateResult:
    """Repeat the create that the store must refuse while its outcome is unknown."""
    attempt = _CreateResult(body, None)
    for _ in range(_MAX_REPEATS):
        attempt = _try_create(store, key, body)
        if attempt.created is not None:
            break
    return attempt


def _check_attempts(store: ObjectStore, key: str, attempts: list[_CreateResult]) -> None:
    """Check that at most one create succeeded, and that the object has the bytes of the winner."""
    winners = [attempt for attempt in attempts if attempt.created]
    if len(winners) > 1:
        raise UnsafeStorageError(
            f"The storage at {store.url} let {len(winners)} of {len(attempts)} writers create the same object {key!r}: "
            "it ignores If-None-Match or does not check it atomically."
        )
    unanswered = f"Cannot probe the storage at {store.url}: it answered none of the writes."
    if all(attempt.created is None for attempt in attempts):
        raise StorageError(unanswered)  # Whatever it holds now: nothing is known about a second create.
    try:
        stored_body = store.get(key)
    except ObjectNotFoundError:
        if winners:
            raise UnsafeStorageError(
                f"The storage at {store.url} acknowledged the object {key!r}, but then could not find it."
            ) from None
        raise StorageError(unanswered) from None
    # Without a winner, the response to the successful create was lost: the object may hold any of the bodies.
    allowed_bodies = [attempt.body for attempt in winners or attempts]
    if stored_body not in allowed_bodies:
        raise UnsafeStorageError(
            f"The storage at {store.url} acknowledged {key!r} to one writer, but holds the bytes of another."
        )
