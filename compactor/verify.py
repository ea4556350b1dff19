"""Checking every invariant of a store that can be checked from its objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from txnstore.chain import keys
from txnstore.chain.codec import StoreDocument, decode
from txnstore.compactor.verify_chain import ChainVerifier
from txnstore.compactor.verify_segments import SegmentFindings, verify_segments
from txnstore.compactor.violation import Violation
from txnstore.core.model import State
from txnstore.errors import CorruptionError, ObjectNotFoundError, StoreNotFoundError, UnsupportedFormatError

if TYPE_CHECKING:
    from txnstore.store import Store


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a verification found, up to entry ``sequence``; ``ok`` if nothing is wrong.

    ``entries``, ``checkpoints`` and ``segments`` were checked, and ``bytes_read`` of them read.
    """

    violations: tuple[Violation, ...]
    sequence: int
    entries: int
    checkpoints: int
    segments: int
    bytes_read: int
    deep: bool

    @property
    def ok(self) -> bool:
        """Whether every invariant holds."""
        return not self.violations

    @property
    def objects_checked(self) -> int:
        """The objects that were checked: the identity, the entries, both parts of the checkpoints, the segments."""
        return 1 + self.entries + 2 * self.checkpoints + self.segments


def verify(store: Store, *, deep: bool = False) -> VerifyReport:
    """Check every invariant of a store; nothing is written.

    The whole chain is read from entry 1: each entry is intact and names the one before it, the rules of the protocol
    hold after each, every checkpoint equals the fold. Every segment that the newest state names is there and has its
    size; with ``deep`` it is read, and its hash, rows, offsets and timestamps are what the chain says.

    Damage is reported with the name of the object, not raised; a :class:`~txnstore.errors.StorageError` is raised,
    because nothing can be told of a storage that does not answer. So is :class:`StoreNotFoundError`.
    """
    identity = _verify_identity(store)
    chain = ChainVerifier(store.objects, store.pool, 0, _known_state(store)).run()
    segments = SegmentFindings()
    if chain.state is not None:
        segments = verify_segments(store.objects, store.pool, chain.state, deep=deep)
    return VerifyReport(
        violations=(*identity, *chain.violations, *segments.violations),
        sequence=chain.state.sequence if chain.state is not None else 0,
        entries=chain.entries,
        checkpoints=chain.checkpoints,
        segments=segments.segments,
        bytes_read=chain.bytes_read + segments.bytes_read,
        deep=deep,
    )


def _verify_identity(store: Store) -> list[Violation]:
    try:
        decode(StoreDocument, keys.STORE, store.objects.get(keys.STORE))
    except ObjectNotFoundError as error:
        msg = f"there is no txnstore at {store.url}: it has no {keys.STORE}"
        raise StoreNotFoundError(msg) from error
    except (CorruptionError, UnsupportedFormatError) as error:
        return [Violation("identity_intact", keys.STORE, str(error))]
    return []


def _known_state(store: Store) -> State | None:
    """The state that this process knows, which the chain must still contain; None if it could not be loaded."""
    try:
        return store.state(refresh=False)
    except (CorruptionError, UnsupportedFormatError):
        return None
