"""Verification: a sound store has no violations, and each kind of damage is found and named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.helpers import checkpoints, keys
from tests.helpers.compaction import DAY_MS, batches, commit, new_store, runtime
from tests.helpers.connections import connection_of
from tests.helpers.verification import _entry, _find, _fresh, _rewrite, _violations, sample_store
from txnstore.chain import tail
from txnstore.chain.checkpoints import checkpoint
from txnstore.chain.codec import encode
from txnstore.compactor.doctor.findings import Severity
from txnstore.compactor.verify import chain as verify_chain
from txnstore.connection import Connection
from txnstore.core.catalog.model import CatalogTopic, CreateTopic
from txnstore.core.events import Event
from txnstore.core.log.events import BatchesAppended, LogStartMoved, MarkerWritten
from txnstore.core.maintenance import SegmentsReplaced
from txnstore.core.model import Outcome
from txnstore.core.state import State
from txnstore.core.transactions.events import TxnDecided
from txnstore.errors import CorruptionError, StorageError, StoreNotFoundError, UnsoundStoreError
from txnstore.segment.schema import schema_to_text
from txnstore.storage.base import ObjectInfo
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import Fault, FaultStore, ManualClock, on


@pytest.fixture
def store(clock: ManualClock) -> Store:
    return sample_store(clock)


# Sound ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deep", [False, True])
def test_a_sound_store_has_no_violations(store: Store, *, deep: bool) -> None:
    report = store.verify(deep=deep)
    assert (report.ok, report.violations) == (True, ())
    assert report.sequence == report.entries == connection_of(store).view().sequence
    assert (report.checkpoints, report.segments, report.deep) == (1, 3, deep)
    assert report.objects_checked == 1 + report.entries + 2 + 3
    chain = sum(item.size for item in connection_of(store).objects.list(keys.entries(0)))
    data = sum(batch.segment.size for tp in connection_of(store).view().partitions for batch in batches(store, tp))
    assert report.bytes_read == chain + (data if deep else 0)


def test_verification_writes_nothing_and_reads_segments_only_if_deep(store: Store) -> None:
    counts = connection_of(store).counts.snapshot()
    store.verify()
    spent = connection_of(store).counts.snapshot() - counts
    assert (spent.puts, spent.delete) == (0, 0)
    # Identity, entries, the name after them (a newer format is refused), hint, head, two index files.
    assert spent.get == 1 + connection_of(store).view().sequence + 1 + 4
    assert spent.list == 6


def test_an_empty_store_is_sound(clock: ManualClock) -> None:
    report = new_store(clock).verify(deep=True)
    assert (report.ok, report.sequence, report.objects_checked) == (True, 0, 1)


def test_a_long_chain_is_read_in_windows(clock: ManualClock) -> None:
    store = new_store(clock)
    store.create_topic("t")
    for number in range(70):
        commit(store, [b"%d" % number])
    report = store.verify(deep=True)
    assert report.ok
    assert report.entries > 128
    assert report.checkpoints == 2


def test_missing_store_is_an_error_not_a_violation() -> None:
    with pytest.raises(StoreNotFoundError):
        Store(Connection(MemoryStore())).verify()


def test_a_storage_that_does_not_answer_is_an_error_not_a_violation(store: Store) -> None:
    faults = FaultStore(
        connection_of(store).counts.inner, on(Fault.ERROR_BEFORE, "get", key_contains="entries/", times=None)
    )
    with pytest.raises(StorageError):
        Store(Connection(faults)).verify()


# Entries --------------------------------------------------------------------------------------------------------------


def test_an_altered_entry_is_named(store: Store) -> None:
    """OBJ-13: the store stays open, the report says which object; what follows the checkpoint is still checked."""
    key = keys.entry(0, 3)
    data = connection_of(store).objects.get(key)
    connection_of(store).objects.put(key, data.replace(b'"sequence":3', b'"sequence":4'))
    report = store.verify()
    assert _violations(report) == [("entry_intact", key)]
    assert report.sequence == connection_of(store).view().sequence
    assert report.segments == 3


def test_a_truncated_entry_is_named(store: Store) -> None:
    key = keys.entry(0, 2)
    connection_of(store).objects.put(key, connection_of(store).objects.get(key)[:40])
    assert _violations(store.verify()) == [("entry_intact", key)]


def test_an_entry_of_a_newer_format_is_named(store: Store) -> None:
    key = keys.entry(0, 2)
    connection_of(store).objects.put(key, encode(replace(_entry(store, 2), version=999)))
    report = store.verify()
    assert _violations(report) == [("entry_intact", key)]
    assert "999" in report.violations[0].message


def test_a_missing_entry_is_named(store: Store) -> None:
    """OBJ-13: no silent gap."""
    connection_of(store).objects.delete([keys.entry(0, 3)])
    assert _violations(store.verify()) == [("entry_present", keys.entry(0, 3))]


def test_a_gap_of_several_entries_is_one_finding(store: Store) -> None:
    connection_of(store).objects.delete([keys.entry(0, number) for number in (3, 4, 5)])
    report = store.verify()
    assert _violations(report) == [("entry_present", keys.entry(0, 3))]
    assert "up to entry 5" in report.violations[0].message


def test_missing_last_entry_is_found_by_a_process_that_knows_it(store: Store) -> None:
    """OBJ-13: a bucket that was rolled back."""
    last = connection_of(store).view().sequence
    connection_of(store).objects.delete([keys.entry(0, last)])
    violations = _violations(store.verify())
    assert violations == [("entry_present", keys.entry(0, last)), ("state_at_head", keys.entries(0))]


def test_missing_entries_below_a_checkpoint_are_found(store: Store) -> None:
    """OBJ-13: the checkpoint proves that there were more."""
    saved = store.checkpoint()
    connection_of(store).objects.delete([keys.entry(0, saved)])
    assert _violations(_fresh(store).verify()) == [("entry_present", keys.entry(0, saved))]


def test_damage_after_the_last_checkpoint_hides_the_newest_state(store: Store) -> None:
    """What cannot be known is not guessed: no segment is called missing because of an entry that is not readable."""
    last = connection_of(store).view().sequence
    key = keys.entry(0, last - 1)
    connection_of(store).objects.put(key, b"{}")
    report = _fresh(store).verify(deep=True)
    assert _violations(report) == [("entry_intact", key), ("state_at_head", keys.entries(0))]
    assert (report.sequence, report.segments) == (0, 0)
    with pytest.raises(CorruptionError, match=key):
        open_on(connection_of(store).counts.inner)


def test_replaced_entry_breaks_the_hash_chain(store: Store) -> None:
    """Invariant 8: each entry's hash names its predecessor."""
    entry = _entry(store, 3)
    connection_of(store).objects.put(keys.entry(0, 3), encode(replace(entry, writer_id="somebody-else")))
    assert _violations(store.verify()) == [("hash_chain", keys.entry(0, 3))]


def test_rewritten_history_is_found_by_a_process_that_knows_it(store: Store) -> None:
    """OBJ-13: all hashes fit again, but this process has read other bytes; checkpoint and hint were of other ones."""
    last, saved = (
        connection_of(store).view().sequence,
        checkpoint.decode_hint(keys.KEYS, 0, connection_of(store).objects.get(keys.latest(0))).sequence,
    )
    _rewrite(store, 3, replace(_entry(store, 3), writer_id="somebody-else"))
    shown = [("history_unchanged", keys.latest(0)), ("checkpoint_equals_fold", keys.checkpoint_state(0, saved))]
    assert _violations(store.verify()) == [*shown, ("history_unchanged", keys.entry(0, last))]
    assert _violations(_fresh(store).verify()) == shown


def test_invalid_event_is_named(store: Store) -> None:
    sequence = _find(store, BatchesAppended)
    entry = _entry(store, sequence)
    events = [replace(item, topic="gone") if isinstance(item, BatchesAppended) else item for item in entry.events]
    _rewrite(store, sequence, replace(entry, events=events))
    assert ("entry_fits", keys.entry(0, sequence)) in _violations(_fresh(store).verify())


def test_decreasing_timestamp_is_named(store: Store) -> None:
    _rewrite(store, 4, replace(_entry(store, 4), timestamp=5))
    assert ("entry_time", keys.entry(0, 4)) in _violations(_fresh(store).verify())


@pytest.mark.parametrize(
    ("principals", "says"),
    [
        ([("User:a", 1), ("User:b", 7)], "User:a for 1, User:b for 7"),
        ([("User:a", 9), ("User:b", -8)], "User:a for 9, User:b for -8"),
        ([], "no principal"),
    ],
)
def test_principals_that_do_not_add_up_are_named(store: Store, principals: list[tuple[str, int]], says: str) -> None:
    """It is advice for people: the entry is folded all the same, and readers do not look at it."""
    events = len(_entry(store, 3).events)
    _rewrite(store, 3, replace(_entry(store, 3), principals=[("User:a", events)]))
    sound = _violations(_fresh(store).verify())
    assert "principals_add_up" not in dict(sound)
    _rewrite(store, 3, replace(_entry(store, 3), principals=principals))
    report = _fresh(store).verify()
    (violation,) = [item for item in report.violations if item.name == "principals_add_up"]
    assert (violation.subject, says in violation.message) == (keys.entry(0, 3), True)
    assert [name for name, _ in _violations(report) if name != "principals_add_up"] == [name for name, _ in sound]


# Rules of the protocol ------------------------------------------------------------------------------------------------


def test_marker_that_reuses_an_offset_violates_an_invariant(store: Store) -> None:
    """Invariant 4: the rules for states and steps are asked after each entry."""
    sequence = _find(store, MarkerWritten)
    entry = _entry(store, sequence)
    events = [replace(item, offset=0) if isinstance(item, MarkerWritten) else item for item in entry.events]
    _rewrite(store, sequence, replace(entry, events=events))
    names = {name for name, _ in _violations(_fresh(store).verify())}
    assert {"batches_in_order", "checkpoint_equals_fold"} <= names


def test_a_decision_that_changes_within_an_entry_is_named(store: Store) -> None:
    """Invariant 7: this rule is asked after each event, because an entry may decide twice, one after the other."""
    sequence = _find(store, TxnDecided)
    entry = _entry(store, sequence)
    decided = next(item for item in entry.events if isinstance(item, TxnDecided))
    other = {Outcome.COMMIT: Outcome.ABORT, Outcome.ABORT: Outcome.COMMIT}[decided.outcome]
    place = entry.events.index(decided) + 1
    events = [*entry.events[:place], replace(decided, outcome=other), *entry.events[place:]]
    _rewrite(store, sequence, replace(entry, events=events))
    assert "decisions_never_change" in {name for name, _ in _violations(_fresh(store).verify())}


def test_a_log_start_that_goes_back_is_named(clock: ManualClock) -> None:
    """Invariant 4, RET-04: a rule of the step from one state to the next; both states are sound by themselves."""
    store = new_store(clock)
    store.create_topic("t")
    commit(store, [b"a", b"b", b"c"])
    for offset in (1, 2):
        store.delete_records({("t", 0): offset})  # type: ignore[dict-item]
    sequence = connection_of(store).view().sequence
    entry = _entry(store, sequence)
    events = [replace(item, offset=0) if isinstance(item, LogStartMoved) else item for item in entry.events]
    assert events != entry.events
    _rewrite(store, sequence, replace(entry, events=events))
    report = _fresh(store).verify()
    assert _violations(report) == [("positions_never_go_back", f"entry {sequence}")]
    assert "log_start went back from 1 to 0" in report.violations[0].message


def test_a_compaction_that_lost_records_is_named(store: Store) -> None:
    """A merge conserves the number of committed records."""
    sequence = _find(store, SegmentsReplaced)
    entry = _entry(store, sequence)
    events = [
        replace(item, added=[replace(batch, records=batch.records - 1) for batch in item.added])
        if isinstance(item, SegmentsReplaced)
        else item
        for item in entry.events
    ]
    _rewrite(store, sequence, replace(entry, events=events))
    report = _fresh(store).verify()
    assert ("compaction_keeps_records", "t-0") in _violations(report)
    assert "6 committed records by 5 records" in " ".join(item.message for item in report.violations)


def test_a_compaction_above_the_last_stable_offset_is_named(store: Store) -> None:
    """Invariant 9."""
    (opened,) = batches(store)[-1:]
    merged = replace(opened, producer_id=-1, epoch=-1, base_sequence=-1, transactional=False)
    state = connection_of(store).chain.refresh()
    entry = replace(
        _entry(store, state.sequence),
        sequence=state.sequence + 1,
        previous=state.entry_hash,
        events=[SegmentsReplaced(topic="t", partition=0, removed=[opened.base_offset], added=[merged])],
    )
    connection_of(store).objects.put(keys.entry(0, state.sequence + 1), encode(entry))
    assert ("compaction_below_lso", "t-0") in _violations(_fresh(store).verify())


# Checkpoints and identity ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [keys.checkpoint_state, keys.checkpoint_index])
def test_an_altered_checkpoint_is_named(store: Store, part: object) -> None:
    """OBJ-13; readers go round it."""
    sequence = store.checkpoint()
    key = part(0, sequence)  # type: ignore[operator]
    data = bytearray(connection_of(store).objects.get(key))
    data[len(data) // 2] ^= 1
    connection_of(store).objects.put(key, bytes(data))
    report = store.verify()
    assert _violations(report) == [("checkpoint_intact", keys.checkpoint_state(0, sequence))]
    assert key in report.violations[0].message
    assert connection_of(open_on(connection_of(store).counts.inner)).view() == connection_of(store).view()


def test_missing_head_of_the_checkpoint_that_the_hint_names_is_named(store: Store) -> None:
    """OBJ-13: its index remains; an index that no hint names is that of a writer that died."""
    sequence = store.checkpoint()
    connection_of(store).objects.delete([keys.checkpoint_state(0, sequence)])
    assert _violations(store.verify()) == [("checkpoint_intact", keys.checkpoint_state(0, sequence))]
    connection_of(store).objects.delete([keys.latest(0)])
    assert store.verify().ok


def test_old_hint_to_a_checkpoint_that_a_vacuum_deleted_is_no_damage(clock: ManualClock) -> None:
    """OBJ-13: its writer was paused before it wrote the hint; newer checkpoints share an index file that ends there."""
    objects = MemoryStore(clock=clock)
    store = new_store(clock, objects)
    store.create_topic("t")
    while store.checkpoint() != 8:
        store.create_topic(f"t{store.checkpoint()}")
    hint = objects.get(keys.latest(0))
    for number in range(2):
        commit(store, [b"x"])
        assert store.checkpoint() > 8, number
    clock.advance(DAY_MS)
    store.vacuum()
    assert keys.checkpoint_state(0, 8) not in {item.key for item in objects.list("")}
    assert keys.index_file(0, 0, 8) in {item.key for item in objects.list("")}
    objects.put(keys.latest(0), hint)
    assert store.verify().ok


def test_index_of_a_checkpoint_that_no_hint_names_is_no_damage(clock: ManualClock) -> None:
    """OBJ-13: a writer that died left an index file of an empty chain, and there is no hint."""
    store = new_store(clock)
    connection_of(store).objects.put(keys.index_file(0, 0, 0), b"index")
    assert store.verify().ok


def test_unreadable_schema_is_named(store: Store) -> None:
    """OBJ-13: an entry with valid checksums can hold a schema that no reader reads."""
    topic = CatalogTopic("odd", "id", 1, schema="bm90IGFuIGFycm93IHNjaGVtYQ==")
    connection_of(store).chain.submit(CreateTopic(topic))
    assert _violations(store.verify()) == [("schema_readable", "topic 'odd'")]


_COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.mark.parametrize(
    ("columns", "members", "says"),
    [
        (pa.schema([]), {}, "it has no columns"),
        (_COLUMNS, {"key": "gate"}, "its key 'gate' is no column"),
        (_COLUMNS, {"timestamp": "at"}, "its timestamp 'at' is no column"),
        (_COLUMNS, {"timestamp": "name"}, "its timestamp 'name' is of type string"),
    ],
    ids=["no-columns", "key", "timestamp", "type-of-timestamp"],
)
def test_a_topic_that_lacks_its_columns_is_named(
    store: Store, columns: pa.Schema, members: dict[str, Any], says: str
) -> None:
    """OBJ-13: an entry of another writer, with valid checksums. What writes rows there says the same."""
    store.create_topic("sound", schema=_COLUMNS, key="id")
    topic = CatalogTopic("odd", "id", 1, schema=schema_to_text(columns), **members)
    connection_of(store).chain.submit(CreateTopic(topic))
    assert _violations(report := store.verify()) == [("schema_readable", "topic 'odd'")]
    assert says in report.violations[0].message
    (bad,) = (finding for finding in store.doctor().findings if finding.severity is Severity.BAD)
    assert "'odd'" in bad.message
    assert says in bad.message
    with store.producer() as producer, pytest.raises(CorruptionError, match=says):
        producer.send_table("odd", [{}])


def test_event_that_no_state_fits_is_named_whatever_it_raises(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """OBJ-13: every exception of folding an entry is damage of this entry, for verify and for readers."""
    last = connection_of(store).chain.state.sequence

    def failing(state: State, event: Event) -> State:
        raise AttributeError("no such field")

    with monkeypatch.context() as patch:
        patch.setattr(verify_chain, "evolve", failing)
        assert ("entry_fits", keys.entry(0, 1)) in _violations(store.verify())
    with monkeypatch.context() as patch:
        patch.setattr(tail, "evolve", failing)
        with pytest.raises(CorruptionError, match=r"entries/\d+\.json contains an event that is invalid"):
            open_on(connection_of(store).counts.inner)
    assert connection_of(open_on(connection_of(store).counts.inner)).chain.state.sequence == last


def test_a_checkpoint_without_its_index_is_named(store: Store) -> None:
    sequence = store.checkpoint()
    connection_of(store).objects.delete([keys.checkpoint_index(0, sequence)])
    assert _violations(store.verify()) == [("checkpoint_intact", keys.checkpoint_state(0, sequence))]


def test_an_index_file_is_read_once(store: Store) -> None:
    """However many checkpoints share it."""
    for _ in range(3):
        store.checkpoint()
        commit(store, [b"x"])
    sequence = store.checkpoint()
    shared = keys.index_file(0, 0, sequence - sequence % 8)
    counting = CountingStore(connection_of(store).counts.inner, log=True)
    with open_on(counting, read_only=True) as reader:
        counting.reset()
        assert reader.verify().ok
    assert counting.log.count(("get", shared)) == 1
    assert len([key for kind, key in counting.log if kind == "get" and key.endswith("state.json")]) >= 4


def test_checkpoint_different_from_the_folded_state_is_named(store: Store) -> None:
    """Invariant 10."""
    state = connection_of(store).chain.refresh()
    checkpoints.write(connection_of(store).objects, replace(state, next_producer_id=state.next_producer_id + 1))
    report = store.verify()
    assert _violations(report) == [("checkpoint_equals_fold", keys.checkpoint_state(0, state.sequence))]
    assert "next_producer_id" in report.violations[0].message


def test_an_altered_identity_is_named(store: Store) -> None:
    document = json.loads(connection_of(store).objects.get(keys.STORE))
    connection_of(store).objects.put(keys.STORE, json.dumps({**document, "chains": 7}).encode())
    assert _violations(store.verify()) == [("identity_intact", keys.STORE)]


class _HidesFromLists(MemoryStore):
    """MinIO when an object ``bucket/root`` stands beside a store in ``bucket/root/…``: lists are empty."""

    hides = False

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        return [] if self.hides else super().list(prefix, start_after, limit)


def test_incomplete_listings_are_named_as_the_cause(clock: ManualClock) -> None:
    """OBJ-05: a writer and a reader notice nothing, a vacuum deletes nothing, a verification says why it fails."""
    objects = _HidesFromLists()
    store = create_on(objects, runtime=runtime(clock))
    store.create_topic("t")
    commit(store, [b"1"])
    objects.hides = True
    commit(store, [b"2"])
    assert [
        record["value"] for record in open_on(objects, runtime=runtime(clock)).scan("t").to_table().to_pylist()
    ] == [
        b"1",
        b"2",
    ]
    with pytest.raises(UnsoundStoreError, match="is missing, though entry"):
        store.vacuum(older_than=0)
    assert store.vacuum(older_than=0, force=True).deleted == ()
    first = store.verify().violations[0]
    assert (first.name, first.subject) == ("lists_are_complete", keys.STORE)
    assert store.url in first.message
    objects.hides = False
    assert store.verify().ok


def test_the_store_of_another_runtime_agrees(store: Store, clock: ManualClock) -> None:
    assert open_on(connection_of(store).counts.inner, runtime=runtime(clock)).verify(deep=True) == store.verify(
        deep=True
    )
