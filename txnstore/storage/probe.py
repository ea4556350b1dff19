"""The proof, at open, that a store refuses a second create of a name. Everything else rests on that."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from txnstore.errors import ObjectNotFoundError, StorageError, UnknownOutcomeError, UnsafeStorageError
from txnstore.storage.base import ObjectStore
from txnstore.storage.counting import CountingStore
from txnstore.storage.local import LocalStore
from txnstore.storage.memory import MemoryStore
from txnstore.storage.retry import RetryingStore

_log = logging.getLogger(__name__)

PROBE_FOLDER = "_probe"
_RACERS = 8
_RACERS_LOCAL = 2  # link(2) is the kernel's promise, and each racer costs a flush of the disk
_AGAIN = 3

_proven: set[str] = set()


@dataclass(frozen=True, slots=True)
class _Attempt:
    body: bytes
    created: bool | None  # None: the outcome is unknown


def probe(store: ObjectStore, ids: Callable[[], str], *, racers: int = _RACERS) -> None:
    """Return if the store creates a name exactly once, else raise :class:`~txnstore.errors.UnsafeStorageError`.

    ``racers`` threads create one name ``_probe/<id>`` at once, then one more create follows; at most one may be
    told that it created the object, and its bytes must be there. ``ids`` gives unique names. The requests: ``racers``
    + 1 creates, 1 get, 1 delete; 4 round trips. It finds stores that ignore the condition (many S3 look-alikes do)
    and those with a wide race; a race of microseconds it cannot find. If the store does not answer, a
    :class:`~txnstore.errors.StorageError` says so.
    """
    name = ids()
    key = f"{PROBE_FOLDER}/{name}"
    bodies = [f"{name}/{number}".encode() for number in range(racers + 1)]
    try:
        attempts = _race(store, key, bodies[:racers])
        attempts.append(_create_again(store, key, bodies[racers]))
        _judge(store, key, attempts)
    finally:
        try:
            store.delete([key])
        except StorageError as error:
            _log.warning("cannot delete the probe object: url=%s key=%s error=%s", store.url, key, error)


def probe_once(store: ObjectStore, ids: Callable[[], str]) -> None:
    """:func:`probe`, but only once a process for each store; a store in memory needs none.

    Counting and retrying wrappers are seen through. A store is known by its ``identity`` if it has one; one without
    is probed every time.
    """
    backend = store
    while isinstance(backend, (CountingStore, RetryingStore)):
        backend = backend.inner
    if isinstance(backend, MemoryStore):
        return
    identity: str | None = getattr(backend, "identity", None)
    if identity is None or identity not in _proven:
        probe(store, ids, racers=_RACERS_LOCAL if isinstance(backend, LocalStore) else _RACERS)
        if identity is not None:
            _proven.add(identity)


def _race(store: ObjectStore, key: str, bodies: list[bytes]) -> list[_Attempt]:
    start = threading.Barrier(len(bodies))

    def create(body: bytes) -> _Attempt:
        start.wait()
        return _create(store, key, body)

    with ThreadPoolExecutor(len(bodies), thread_name_prefix="txnstore-probe") as pool:
        return list(pool.map(create, bodies))


def _create(store: ObjectStore, key: str, body: bytes) -> _Attempt:
    try:
        return _Attempt(body, store.put_if_absent(key, body))
    except UnknownOutcomeError:
        return _Attempt(body, None)


def _create_again(store: ObjectStore, key: str, body: bytes) -> _Attempt:
    """The create that must be refused, repeated while its outcome is unknown."""
    attempt = _Attempt(body, None)
    for _ in range(_AGAIN):
        attempt = _create(store, key, body)
        if attempt.created is not None:
            break
    return attempt


def _judge(store: ObjectStore, key: str, attempts: list[_Attempt]) -> None:
    winners = [attempt for attempt in attempts if attempt.created]
    if len(winners) > 1:
        raise UnsafeStorageError(
            f"The storage at {store.url} let {len(winners)} of {len(attempts)} writers create the same object {key!r}: "
            "it ignores If-None-Match or does not check it atomically."
        )
    try:
        found = store.get(key)
    except ObjectNotFoundError:
        if winners:
            raise UnsafeStorageError(
                f"The storage at {store.url} acknowledged the object {key!r} and does not have it."
            ) from None
        raise StorageError(f"Cannot probe the storage at {store.url}: it answered none of the writes.") from None
    # Without a winner, the answer to whoever created it was lost: then any of the bodies may be there.
    expected = [attempt.body for attempt in winners or attempts]
    if found not in expected:
        raise UnsafeStorageError(
            f"The storage at {store.url} told one writer that it created {key!r}, and holds the bytes of another."
        )
