"""Checks all invariants of a store that can be checked from its objects."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from txnstore.catalog.writing import topic_writer
from txnstore.chain import keys
from txnstore.chain.checkpoints.document import StateDocument
from txnstore.chain.codec import StoreDocument, decode
from txnstore.chain.keys import Keys
from txnstore.chain.traces import no_document, other_store
from txnstore.compactor.engine import Engine, LocalEngine
from txnstore.compactor.foreign import foreign_chains
from txnstore.compactor.verify.chain import ChainVerifier
from txnstore.compactor.verify.rules import RuleReport, rule_reports
from txnstore.compactor.verify.segments import SegmentFindings, verify_segments
from txnstore.connection import Connection
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.invariants.check import check_across
from txnstore.core.invariants.common import Violation
from txnstore.core.routing import CATALOG
from txnstore.core.state import State
from txnstore.errors import CorruptionError, ObjectNotFoundError, StoreNotFoundError, UnsupportedFormatError


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of a verification.

    Attributes:
        violations: The violated invariants and damaged objects.
        sequence: The sequence numbers of the heads of all chains, added.
        entries: The number of entries checked.
        checkpoints: The number of checkpoints checked.
        segments: The number of segments checked.
        bytes_read: The bytes of entries and, after a deep verification, segments that were read.
        deep: Whether the content of segments was read.
        foreign: The prefixes of chains of other stores. They violate no invariant of this one; while they are there, no
            vacuum deletes anything, and the command line ends with status 1.
        rules: How often each rule of each invariant was checked, and violated.
    """

    violations: tuple[Violation, ...]
    sequence: int
    entries: int
    checkpoints: int
    segments: int
    bytes_read: int
    deep: bool
    foreign: tuple[str, ...] = ()
    rules: tuple[RuleReport, ...] = field(default=(), repr=False)

    @property
    def ok(self) -> bool:
        """Whether there are no violations."""
        return not self.violations

    @property
    def objects_checked(self) -> int:
        """The number of objects checked: ``store.json``, entries, two objects per checkpoint, segments."""
        return 1 + self.entries + 2 * self.checkpoints + self.segments


def verify(connection: Connection, *, deep: bool = False, engine: Engine | None = None) -> VerifyReport:
    """Check every invariant of a store; nothing is written.

    1. Every chain is read from entry 1. Each entry must be intact and contain the hash of the one before it, the
       invariants must hold after each entry, the sums of each compaction must agree with each other and with those of
       the compactions before it, and every checkpoint must equal the state at its entry.
    2. Across the chains, as a reader sees them: every entry that a chain depends on must exist, and all open data must
       belong to a transaction that will end.
    3. The schema and the settings of every topic must be readable.
    4. Every segment that a newest state references must exist and have the recorded size; with ``deep``, also the
       recorded hash, rows, offsets and timestamps, and if a compaction wrote it, the recorded sums of its records.

    Damage of a chain does not affect the verification of the others, nor does a topic that cannot be read, or a segment
    that the storage refuses. The newest entry of a chain has no successor: if
    it is missing, and no checkpoint, no hint, no other chain and no state that this process has read names it, nothing
    shows it.

    Args:
        connection: The connection to the store.
        deep: Read and decode every segment.
        engine: Executes the deep part; None: this process.

    Returns:
        The report; damage is listed in ``violations``, with the name of the object, and not raised.

    Raises:
        StoreNotFoundError: No store exists at this URL.
        UnsupportedFormatError: A newer txnstore has written to it, which this one cannot follow.
        StorageError: The storage does not answer.
    """
    names, count, identity_violations = _verify_identity(connection)
    loaded = _known_states(connection, names)
    if not identity_violations:
        identity_violations += _verify_lists(connection)
    chains = [
        ChainVerifier(connection.objects, connection.pool, names, number, loaded.get(number), count).run()
        for number in range(count)
    ]
    states = [chain.state for chain in chains if chain.state is not None]
    if not (identity_violations or chains[CATALOG].entries):
        identity_violations += _verify_catalog(connection, names)
    chain_violations = [violation for chain in chains for violation in chain.violations]
    is_cut_checked = 1 < count == len(states) and not identity_violations
    cut_violations = _verify_across(connection, damaged=bool(chain_violations)) if is_cut_checked else []
    catalog = chains[CATALOG].state
    topics = catalog.topics if catalog is not None else {}
    schema_violations = _verify_schemas(topics.values())
    segments = SegmentFindings()
    if states:
        sums = {key: chain_sums for chain in chains for key, chain_sums in chain.sums.items()}
        engine = engine if engine is not None else LocalEngine(connection)
        payloads = {key: size for chain in chains for key, size in chain.payloads.items()}
        segments = verify_segments(connection.objects, states, topics, sums, payloads, engine if deep else None)
    violations = (*identity_violations, *chain_violations, *cut_violations, *schema_violations, *segments.violations)
    entries, checkpoints = sum(chain.entries for chain in chains), sum(chain.checkpoints for chain in chains)
    counts = {
        "stores": 1,
        "chains": count,
        "entries": entries,
        "states": sum(chain.states for chain in chains),
        "steps": sum(chain.steps for chain in chains),
        "compactions": sum(chain.compactions for chain in chains),
        "checkpoints": checkpoints,
        "views": int(is_cut_checked),
        "topics": len(topics),
        "segments": segments.segments,
        "contents": segments.contents,
    }
    return VerifyReport(
        violations=violations,
        sequence=sum(state.sequence for state in states),
        entries=entries,
        checkpoints=checkpoints,
        segments=segments.segments,
        bytes_read=sum(chain.bytes_read for chain in chains) + segments.bytes_read,
        deep=deep,
        foreign=foreign_chains(connection.objects, names),
        rules=rule_reports(counts, violations),
    )


def _verify_across(connection: Connection, *, damaged: bool) -> list[Violation]:
    """Check the chains together, in the consistent cut that a reader gets now.

    Args:
        damaged: Whether single chains are damaged, so that an error of the view repeats known violations.
    """
    try:
        view = connection.view()
    except (CorruptionError, UnsupportedFormatError) as error:
        return [] if damaged else [Violation("cut_is_consistent", str(error), keys.CHAINS)]
    return [replace(violation, subject=keys.CHAINS) for violation in check_across(view)]


def _verify_schemas(topics: Iterable[CatalogTopic]) -> list[Violation]:
    """Check that the schema and the settings of every topic can be read."""
    violations = []
    for topic in topics:
        try:
            topic_writer(topic)
        except CorruptionError as error:
            violations.append(Violation("schema_readable", str(error), f"topic {topic.name!r}"))
    return violations


def _verify_identity(connection: Connection) -> tuple[Keys, int, list[Violation]]:
    """The keys, the number of chains, and the damage of ``store.json``; then the existing objects tell the others."""
    try:
        document = decode(StoreDocument, keys.STORE, connection.objects.get(keys.STORE))
        return Keys(document.store_id), document.chains, []
    except ObjectNotFoundError as error:
        if connection.find_backup():
            return _verify_identity(connection)
        lost = no_document(connection.objects)
        if isinstance(lost, StoreNotFoundError):
            raise lost from error
        return *_existing_chains(connection), [Violation("identity_intact", str(lost), keys.STORE)]
    except (CorruptionError, UnsupportedFormatError) as error:
        return *_existing_chains(connection), [Violation("identity_intact", str(error), keys.STORE)]


def _verify_catalog(connection: Connection, names: Keys) -> list[Violation]:
    """Check that the store is not an empty one whose ``store.json`` lies where another store is."""
    if connection.objects.list(names.chain(CATALOG), limit=1):
        return []
    why = other_store(connection.objects, names)
    return [Violation("identity_intact", why, keys.STORE)] if why else []


def _verify_lists(connection: Connection) -> list[Violation]:
    """Check that a list contains ``store.json``, which exists. Only verify and vacuum depend on lists (OBJ-05)."""
    if any(info.key == keys.STORE for info in connection.objects.list(keys.STORE)):
        return []
    message = (
        "it exists, but no list contains it, so objects that are reported missing may exist, too. "
        f"On MinIO, an object with the name {connection.url} causes this: delete it"
    )
    return [Violation("lists_are_complete", message, keys.STORE)]


def _existing_chains(connection: Connection) -> tuple[Keys, int]:
    """The keys and the number of chains without ``store.json``: from any checkpoint, else by the keys of objects.

    Of several stores, it is the one that was written to last.
    """
    infos = [info for info in connection.objects.list(keys.CHAINS) if keys.store_of(info.key) is not None]
    newest = max(infos, key=lambda info: info.modified_ms, default=None)
    store_id = keys.store_of(newest.key) if newest is not None else None
    names = Keys(store_id or "")
    chain_keys = [info.key for info in infos if info.key.startswith(names.chains)]
    for key in chain_keys:
        if keys.checkpoint_sequence(key) is None:
            continue
        try:
            return names, decode(StateDocument, key, connection.objects.get(key)).chains
        except (CorruptionError, ObjectNotFoundError, UnsupportedFormatError):
            continue
    numbers = [number for key in chain_keys if (number := keys.chain_number(key)) is not None]
    return names, max(numbers, default=0) + 1


def _known_states(connection: Connection, names: Keys) -> dict[int, State]:
    """The states that this process has loaded, which the chains must still contain; empty if loading fails.

    Raises:
        StoreNotFoundError: They belong to another store than the one with the keys ``names``.
        UnsupportedFormatError: The chains have entries of a newer format or feature, which this release cannot judge.
    """
    try:
        chains = connection.chains
    except CorruptionError:
        return {}
    chains.identity.check(names.store_id)
    with suppress(CorruptionError):
        chains.view()
    return {chain.number: chain.state for chain in chains}
