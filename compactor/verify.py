"""Checking every invariant of a store that can be checked from its objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from txnstore.chain import keys
from txnstore.chain.codec import StoreDocument, decode
from txnstore.chain.state_document import HeadDocument
from txnstore.compactor.verify_chain import ChainVerifier
from txnstore.compactor.verify_segments import SegmentFindings, verify_segments
from txnstore.compactor.violation import Violation
from txnstore.core.invariants import check_across
from txnstore.core.model import State
from txnstore.core.routing import CATALOG
from txnstore.errors import CorruptionError, ObjectNotFoundError, StoreNotFoundError, UnsupportedFormatError

if TYPE_CHECKING:
    from txnstore.store import Store


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a verification found, up to entry ``sequence`` (of all chains together); ``ok`` if nothing is wrong.

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

    Every chain is read from entry 1: each entry is intact and names the one before it, the rules of the protocol hold
    after each, every checkpoint equals the fold. Then all chains together, as a reader sees them: whatever one rests on
    in another is there, and all open data has a transaction that will end it. Every segment that a newest state names
    is there and has its size; with ``deep`` it is read, and its hash, rows, offsets and timestamps are what the chain
    says. A damaged chain keeps the others from nothing.

    Damage is reported with the name of the object, not raised; a :class:`~txnstore.errors.StorageError` is raised,
    because nothing can be told of a storage that does not answer. So is :class:`StoreNotFoundError`.
    """
    count, identity = _verify_identity(store)
    identity += _verify_lists(store)
    known = _known_states(store)
    chains = [
        ChainVerifier(store.objects, store.pool, number, known.get(number), count).run() for number in range(count)
    ]
    states = [chain.state for chain in chains if chain.state is not None]
    in_chains = [found for chain in chains for found in chain.violations]
    across = _verify_across(store, damaged=bool(in_chains)) if 1 < count == len(states) and not identity else []
    catalog = chains[CATALOG].state
    topics = catalog.topics if catalog is not None else {}
    segments = SegmentFindings()
    if states:
        segments = verify_segments(store.objects, store.pool, states, topics, deep=deep)
    return VerifyReport(
        violations=(*identity, *in_chains, *across, *segments.violations),
        sequence=sum(state.sequence for state in states),
        entries=sum(chain.entries for chain in chains),
        checkpoints=sum(chain.checkpoints for chain in chains),
        segments=segments.segments,
        bytes_read=sum(chain.bytes_read for chain in chains) + segments.bytes_read,
        deep=deep,
    )


def _verify_across(store: Store, *, damaged: bool) -> list[Violation]:
    """What is wrong with all chains together, in the consistent cut that a reader gets now.

    ``damaged``: something is wrong with single chains; that a reader stumbles over it is nothing new.
    """
    try:
        view = store.state()
    except (CorruptionError, UnsupportedFormatError) as error:
        return [] if damaged else [Violation("cut_is_consistent", keys.CHAINS, str(error))]
    return [Violation(item.name, keys.CHAINS, item.message) for item in check_across(view)]


def _verify_identity(store: Store) -> tuple[int, list[Violation]]:
    """The number of chains (that of the chains that are there, if the identity is damaged), and what is wrong."""
    try:
        return decode(StoreDocument, keys.STORE, store.objects.get(keys.STORE)).chains, []
    except ObjectNotFoundError as error:
        msg = f"there is no txnstore at {store.url}: it has no {keys.STORE}"
        raise StoreNotFoundError(msg) from error
    except (CorruptionError, UnsupportedFormatError) as error:
        return _chains_there(store), [Violation("identity_intact", keys.STORE, str(error))]


def _verify_lists(store: Store) -> list[Violation]:
    """A list shows the identity, which has just been read. Only verifications and vacuums rest on lists (OBJ-05)."""
    if any(item.key == keys.STORE for item in store.objects.list(keys.STORE)):
        return []
    message = (
        "it is there, and no list shows it, so what is called missing may be there, too. "
        f"On MinIO this is what an object of the name {store.url} does: remove it"
    )
    return [Violation("lists_are_complete", keys.STORE, message)]


def _chains_there(store: Store) -> int:
    """How many chains there are without the identity: every checkpoint says it; else those that have an object."""
    found = [item.key for item in store.objects.list(keys.CHAINS)]
    for key in found:
        if keys.checkpoint_sequence(key) is None:
            continue
        try:
            return decode(HeadDocument, key, store.objects.get(key)).chains
        except (CorruptionError, ObjectNotFoundError, UnsupportedFormatError):
            continue
    return max((number for key in found if (number := keys.chain_number(key)) is not None), default=0) + 1


def _known_states(store: Store) -> dict[int, State]:
    """The states that this process knows, which the chains must still contain; none if they could not be loaded."""
    try:
        return {chain.number: chain.state for chain in store.chains}
    except (CorruptionError, UnsupportedFormatError):
        return {}
