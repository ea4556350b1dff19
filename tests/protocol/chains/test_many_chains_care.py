"""Compaction, vacuum, verification and checkpoints of a store with several chains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.harness.executors import DeferredExecutor
from tests.helpers import keys
from tests.helpers.compaction import DAY_MS, HOUR_MS, abort, batches, begin, commit, new_store, reopen, rows, values
from tests.helpers.connections import connection_of
from txnstore.chain.codec import Entry
from txnstore.chain.payload import decode_entry, encode_entry, entry_hash, payload_of
from txnstore.compactor import VerifyReport
from txnstore.compactor.retention import delete_records
from txnstore.connection import Connection
from txnstore.coordinator.recovery import FINISH_AFTER_MS
from txnstore.core.catalog.model import DeleteTopic
from txnstore.core.log.events import MarkerWritten
from txnstore.core.model import Outcome, ProducerIdentity, TopicPartition
from txnstore.core.routing import chain_of_partition, chain_of_transactional_id
from txnstore.core.transactions.commands import EndTxn
from txnstore.core.transactions.events import TxnDecided
from txnstore.core.transactions.model import TxnState
from txnstore.errors import UndecidedRecordsError
from txnstore.producer import Producer
from txnstore.runtime import Runtime
from txnstore.store import Store, open_on
from txnstore.testing import ManualClock

CHAINS = 3


@pytest.fixture
def store(clock: ManualClock) -> Store:
    """Three chains and a topic with a partition in each."""
    store = new_store(clock, chains=CHAINS)
    store.create_topic("t", partitions=CHAINS)
    return store


def _led_by(number: int) -> TopicPartition:
    """The partition of ``t`` that this chain leads."""
    return next(tp for p in range(CHAINS) if chain_of_partition(tp := TopicPartition("t", p), CHAINS) == number)


def _everywhere(store: Store, value: bytes, name: str = "everywhere") -> Producer:
    """A producer with an open transaction that has a record in each partition."""
    producer = store.producer(name)
    producer.begin_transaction()
    for partition in range(CHAINS):
        producer.send("t", value, partition=partition, timestamp=1_000)
    producer.flush()
    return producer


def _decide(store: Store, producer: Producer, outcome: Outcome = Outcome.COMMIT) -> None:
    """Decide the transaction of a producer as a process that dies before it has written a marker of another chain."""
    clock = connection_of(store).runtime.clock
    dying = open_on(
        connection_of(store).counts.inner, runtime=Runtime(clock, lambda _: None, background=DeferredExecutor)
    )
    identity = ProducerIdentity(producer.producer_id, producer.epoch, producer.transactional_id)
    connection_of(dying).submit(EndTxn(identity, outcome))


def _violations(report: VerifyReport) -> list[tuple[str, str]]:
    return [(item.name, item.subject) for item in report.violations]


# Compaction -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_compaction_writes_the_markers_that_are_missing_first(
    store: Store, clock: ManualClock, outcome: Outcome
) -> None:
    """REC-01, CMP-02: below the LSO of a partition's own chain is only what has its marker there."""
    for number in range(2):
        commit(store, [b"%d" % number], partition=0)
    _decide(store, _everywhere(store, b"x"), outcome)
    tps = [TopicPartition("t", partition) for partition in range(CHAINS)]
    assert any(log.open_txns for tp in tps if (log := connection_of(store).view().log(tp)) is not None)
    clock.advance(FINISH_AFTER_MS + 1)
    before = rows(store)
    report = reopen(store, clock).compact()
    assert report.conflicts == 0
    assert not any(log.open_txns for tp in tps if (log := connection_of(store).view().log(tp)) is not None)
    assert rows(store) == before
    assert [row["value"] for row in before].count(b"x") == (CHAINS if outcome is Outcome.COMMIT else 0)
    assert report.aborted == (0 if outcome is Outcome.COMMIT else CHAINS)
    assert store.verify(deep=True).ok


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_deletion_completes_a_decided_transaction_at_once(store: Store, clock: ManualClock, outcome: Outcome) -> None:
    """RET-01, REC-01: a decision without its markers holds no deletion; the transaction that is open does."""
    tps = [TopicPartition("t", partition) for partition in range(CHAINS)]
    _decide(store, _everywhere(store, b"decided"), outcome)
    open_one = _everywhere(store, b"open", "undecided")
    sequence = connection_of(store).view().sequence
    planned = delete_records(connection_of(store), dict.fromkeys(tps, 1), dry_run=True)
    assert {tp: plan.records for tp, plan in planned.items()} == dict.fromkeys(tps, 1)
    with pytest.raises(UndecidedRecordsError, match="'undecided'"):
        delete_records(connection_of(store), dict.fromkeys(tps, -1), dry_run=True)
    assert connection_of(store).view().sequence == sequence
    assert reopen(store, clock).delete_records(dict.fromkeys(tps, 1)) == dict.fromkeys(tps, 1)
    assert connection_of(store).view().transactions["everywhere"].partitions == frozenset()
    with pytest.raises(UndecidedRecordsError, match="'undecided'"):
        store.delete_records(dict.fromkeys(tps, -1))
    open_one.commit_transaction()
    assert values(store) == [b"open"] * CHAINS
    assert store.verify(deep=True).ok


def test_a_deletion_leaves_decided_transactions_above_its_offset(store: Store) -> None:
    commit(store, [b"a"], partition=0)
    _decide(store, _everywhere(store, b"decided"))
    assert store.delete_records({TopicPartition("t", 0): 1}) == {TopicPartition("t", 0): 1}
    assert connection_of(store).view().transactions["everywhere"].state is TxnState.PREPARE_COMMIT


def test_compaction_aborts_expired_transactions(store: Store, clock: ManualClock) -> None:
    """LSO-14, TMO-01: otherwise nothing above it could be compacted."""
    producer = _everywhere(store, b"left")
    for number in range(3):
        commit(store, [b"%d" % number])
    assert reopen(store, clock).compact().partitions == (), "it is not over yet"
    clock.advance(61_000)
    report = reopen(store, clock).compact()
    assert (report.conflicts, report.aborted) == (0, CHAINS)
    assert values(store) == [b"0", b"1", b"2"]
    assert connection_of(store).view().transactions[producer.transactional_id or ""].started_at is None
    assert store.verify(deep=True).ok


def test_a_dry_run_ends_nothing(store: Store) -> None:
    _decide(store, _everywhere(store, b"x"))
    sequence = connection_of(store).view().sequence
    store.compact(dry_run=True)
    assert connection_of(store).view().sequence == sequence


def test_idle_compaction_sends_one_request_per_chain(store: Store) -> None:
    commit(store, [b"a"])
    before = connection_of(store).counts.snapshot()
    assert store.compact().partitions == ()
    spent = connection_of(store).counts.snapshot() - before
    assert (spent.get, spent.puts, spent.list) == (CHAINS, 0, 0)


def test_each_partition_is_replaced_in_its_own_chain(store: Store) -> None:
    """CMP-01."""
    for number in range(4):
        with store.producer("w") as producer, producer.transaction():
            for partition in range(CHAINS):
                producer.send("t", b"%d" % number, partition=partition, timestamp=1_000)
    before, sequences = rows(store), [state.sequence for state in connection_of(store).view().states]
    report = store.compact()
    assert (report.merges, report.conflicts, report.records) == (CHAINS, 0, 4 * CHAINS)
    assert [state.sequence for state in connection_of(store).view().states] == [number + 1 for number in sequences]
    assert rows(store) == before
    assert store.verify(deep=True).ok


# Vacuum ---------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("own_objects")
def test_vacuum_deletes_garbage_of_all_chains(store: Store, clock: ManualClock) -> None:
    """RET-09: replaced segments, unregistered uploads, and a deleted topic, in every partition."""
    store.create_topic("gone", partitions=CHAINS)
    for topic in ("t", "gone"):
        for partition in range(CHAINS):
            for number in range(3):
                commit(store, [b"%d" % number], topic, partition)
    store.compact("t")
    store.delete_topic("gone")
    orphans = [keys.segment("t", partition, f"{partition:08}", "parquet") for partition in range(CHAINS)]
    for key in orphans:
        connection_of(store).objects.put(key, b"x")
    assert store.vacuum().deleted == ()
    clock.advance(DAY_MS)
    expected = {item.key for item in connection_of(store).objects.list(keys.TOPICS)} - {
        batch.segment.key for partition in range(CHAINS) for batch in batches(store, TopicPartition("t", partition))
    }
    assert len(expected) == 2 * 3 * CHAINS + CHAINS
    assert set(store.vacuum().deleted) == expected
    assert connection_of(store).view().removals.keys() >= set(orphans)
    assert [row["value"] for row in rows(store)] == [b"0", b"1", b"2"] * CHAINS
    assert store.verify(deep=True).ok
    clock.advance(8 * DAY_MS)
    store.vacuum()
    assert dict(connection_of(store).view().removals) == {}, "forgotten, in all chains"


@pytest.mark.usefixtures("own_objects")
def test_vacuum_copies_deletion_of_topic_to_other_chains(store: Store, clock: ManualClock) -> None:
    """RET-09: until its chain has the deletion of the topic, a segment is in use; the grace period begins then."""
    store.create_topic("gone", partitions=CHAINS)
    for partition in range(CHAINS):
        commit(store, [b"x"], "gone", partition)
    held = {item.key for item in connection_of(store).objects.list(f"{keys.TOPICS}gone/")}
    own = {key for key in held if chain_of_partition(TopicPartition("gone", int(key.split("/")[2])), CHAINS) == 0}
    # Only the catalog's chain has the deletion: the process died there.
    connection_of(store).chain.submit(DeleteTopic("gone"))
    clock.advance(DAY_MS)
    assert set(reopen(store, clock).vacuum(dry_run=True).deleted) == own, "the others do not know it yet"
    assert any("gone" in state.topics for state in connection_of(store).view().states[1:])
    assert set(reopen(store, clock).vacuum().deleted) == own
    assert not any("gone" in state.topics for state in connection_of(store).view().states)
    clock.advance(DAY_MS)
    assert set(reopen(store, clock).vacuum().deleted) == held - own
    assert store.verify(deep=True).ok


def test_vacuum_deletes_old_checkpoints_of_every_chain(store: Store, clock: ManualClock) -> None:
    """CMP-24: The newest two of each chain stay."""
    for number in range(4):
        with store.producer("w") as producer, producer.transaction():
            for partition in range(CHAINS):
                producer.send("t", b"%d" % number, partition=partition)
        store.checkpoint()
        clock.advance(HOUR_MS)
    clock.advance(DAY_MS)
    heads = [key for key in store.vacuum().deleted if keys.checkpoint_sequence(key) is not None]
    assert len(heads) == CHAINS * 2
    for number in range(CHAINS):
        heads = [
            key
            for item in connection_of(store).objects.list(keys.checkpoints(number))
            if keys.checkpoint_sequence(key := item.key)
        ]
        assert len(heads) == 2
    reopened = reopen(store, clock)
    assert connection_of(reopened).view() == connection_of(store).view()
    assert reopened.verify().ok


# Checkpoints ----------------------------------------------------------------------------------------------------------


def test_a_checkpoint_saves_every_chain_and_the_next_open_reads_no_older_entry(
    store: Store, clock: ManualClock
) -> None:
    _decide(store, _everywhere(store, b"x"))
    begin(store, [b"open"], partition=1)
    assert store.checkpoint() == connection_of(store).view().sequence
    connection_of(store).objects.delete(
        [item.key for number in range(CHAINS) for item in connection_of(store).objects.list(keys.entries(number))]
    )
    assert connection_of(reopen(store, clock)).view() == connection_of(store).view()


# Verification ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def full(store: Store) -> Store:
    """Commits and aborts over all chains, compacted; one transaction whose markers are missing, and an open one."""
    for number in range(3):
        with store.producer("w") as producer, producer.transaction():
            for partition in range(CHAINS):
                producer.send("t", b"%d" % number, partition=partition, timestamp=1_000)
    abort(store, [b"lost"], partition=1)
    store.compact()
    store.checkpoint()
    _decide(store, _everywhere(store, b"decided"))
    begin(store, [b"open"], partition=2)
    return store


@pytest.mark.parametrize("deep", [False, True])
def test_a_sound_store_of_several_chains_has_no_violations(full: Store, clock: ManualClock, *, deep: bool) -> None:
    for store in (full, reopen(full, clock), Store(Connection(connection_of(full).counts.inner, read_only=True))):
        report = store.verify(deep=deep)
        assert report.violations == ()
        assert report.sequence == report.entries == connection_of(full).view().sequence
        assert (report.checkpoints, report.segments) == (CHAINS, 2 * CHAINS + 1)


@pytest.mark.parametrize("damaged", range(CHAINS))
def test_a_damaged_chain_does_not_hide_the_others(full: Store, damaged: int) -> None:
    """OBJ-13: its entry is named, and so is what is wrong in the other chains: here a segment of each."""
    last = connection_of(full).view().states[damaged].sequence
    connection_of(full).objects.put(keys.entry(damaged, last), b"{}")
    victims = [next(iter(batches(full, _led_by(number)))).segment for number in range(CHAINS)]
    for victim in victims:
        connection_of(full).objects.put(victim.key, b"?" * victim.size)
    report = Store(Connection(connection_of(full).counts.inner, read_only=True)).verify(deep=True)
    assert _violations(report) == [
        ("entry_intact", keys.entry(damaged, last)),
        ("state_at_head", keys.entries(damaged)),
        *(("segment_content", victim.key) for number, victim in enumerate(victims) if number != damaged),
    ]


def test_violation_names_its_chain(full: Store) -> None:
    """Invariant 4: a marker took an offset that was taken."""
    sequence = _last(full, 2, MarkerWritten)
    entry = _entry(full, 2, sequence)
    events = [replace(item, offset=0) if isinstance(item, MarkerWritten) else item for item in entry.events]
    _rewrite(full, 2, sequence, replace(entry, events=events))
    report = Store(Connection(connection_of(full).counts.inner, read_only=True)).verify()
    assert any(item.name == "batches_in_order" and item.subject.startswith("chain 2, ") for item in report.violations)
    assert not any(word in str(item) for item in report.violations for word in ("chain 0", "chain 1", "/0001/"))


def test_missing_entry_that_another_chain_depends_on_is_found(full: Store) -> None:
    """OBJ-13: missing last entries leave no gap in a chain, but a marker of another chain depends on them."""
    home = chain_of_transactional_id("everywhere", CHAINS)
    full.recover()
    decision = _last(full, home, TxnDecided, transactional_id="everywhere")
    last = connection_of(full).view().states[home].sequence
    connection_of(full).objects.delete([keys.entry(home, number) for number in range(decision, last + 1)])
    report = Store(Connection(connection_of(full).counts.inner, read_only=True)).verify()
    assert _violations(report) == [("cut_is_consistent", keys.CHAINS)]
    assert keys.entry(home, decision) in report.violations[0].message


def test_a_damaged_identity_does_not_change_the_number_of_chains(full: Store) -> None:
    """OBJ-13: a checkpoint tells it; with a wrong one every partition would be looked for in a wrong chain."""
    connection_of(full).objects.put(keys.STORE, b'{"version":1}')
    assert _violations(Store(Connection(connection_of(full).counts.inner, read_only=True)).verify()) == [
        ("identity_intact", keys.STORE)
    ]


# Shared ---------------------------------------------------------------------------------------------------------------


def _entry(store: Store, chain: int, sequence: int) -> Entry:
    key = keys.entry(chain, sequence)
    return decode_entry(key, connection_of(store).objects.get(key))


def _last(store: Store, chain: int, kind: type, **fields: object) -> int:
    """The last entry of a chain that holds such an event."""
    last = connection_of(store).view().states[chain].sequence
    return next(
        number
        for number in range(last, 0, -1)
        if any(
            isinstance(item, kind) and all(getattr(item, name) == value for name, value in fields.items())
            for item in _entry(store, chain, number).events
        )
    )


def _rewrite(store: Store, chain: int, sequence: int, entry: Entry) -> None:
    """Replace an entry by another well-formed one, and everything after it so that the hashes fit again."""
    previous = None
    for number in range(sequence, connection_of(store).view(refresh=False).states[chain].sequence + 1):
        linked = entry if number == sequence else _entry(store, chain, number)
        if previous is not None:
            linked = replace(linked, previous=previous)
        data = encode_entry(linked, payload_of(connection_of(store).objects.get(keys.entry(chain, number))))
        connection_of(store).objects.put(keys.entry(chain, number), data)
        previous = entry_hash(data)
