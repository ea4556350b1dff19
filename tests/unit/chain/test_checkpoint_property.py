"""The state from a checkpoint and the entries after it equals the fold from entry 1 (invariant 10)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.executors import InlineExecutor
from tests.helpers import checkpoints, keys
from tests.helpers.shell import runtime
from txnstore.chain.chain import Chain
from txnstore.chain.context import ChainContext
from txnstore.core.catalog.model import AlterTopic, CatalogTopic, CreateTopic, DeleteTopic
from txnstore.core.groups.commands import CommitOffsets, DeleteGroup, Heartbeat, JoinGroup, LeaveGroup, TxnOffsets
from txnstore.core.groups.events import GroupOffset
from txnstore.core.invariants.check import check
from txnstore.core.log.commands import Append
from txnstore.core.log.model import Batch, NewBatch, Segment, next_sequence
from txnstore.core.maintenance import ReplaceSegments
from txnstore.core.model import Command, Outcome, ProducerIdentity, TopicPartition
from txnstore.core.state import State
from txnstore.core.transactions.commands import EndTxn, InitProducer
from txnstore.errors import TxnStoreError
from txnstore.storage.memory import MemoryStore
from txnstore.testing import ManualClock

TOPICS, IDS, GROUPS = ("a", "b"), ("x", "y"), ("g", "h")
_NUMBERS = itertools.count()

Step = tuple[str, int, int, int]
#: Where every run begins, and what then happens more or less often.
BEGINNING: list[Step] = [("create", 0, 0, 2), ("create", 1, 0, 1), ("init", 0, 0, 1), ("init", 1, 0, 1)]
KINDS = (
    ["send"] * 6
    + ["commit", "plain", "offsets", "merge", "join", "beat"] * 3
    + ["abort"] * 2
    + ["create", "delete", "alter", "init", "leave", "ungroup"]
)
steps = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 1), st.integers(0, 1), st.integers(1, 3)),
    min_size=10,
    max_size=40,
)


def command(state: State, step: Step) -> Command:
    """The command of a step, made to fit the state as far as that goes; the chain may refuse it."""
    kind, i, j, n = step
    makers: dict[str, Callable[[], Command]] = {
        "create": lambda: CreateTopic(
            CatalogTopic(TOPICS[i], f"{TOPICS[i]}-{next(_NUMBERS)}", n, config={"retention.ms": "5"})
        ),
        "delete": lambda: DeleteTopic(TOPICS[i]),
        "alter": lambda: _alter(state, TOPICS[i], n),
        "init": lambda: InitProducer(IDS[i], 1_000 * n),
        "plain": lambda: Append(ProducerIdentity(), (_batch(TOPICS[i], j, n, -1),)),
        "send": lambda: _send(state, IDS[i], TOPICS[j], n),
        "commit": lambda: EndTxn(_identity(state, IDS[i]), Outcome.COMMIT, versions=(("job", n),) if j else ()),
        "abort": lambda: EndTxn(_identity(state, IDS[i]), Outcome.ABORT),
        "offsets": lambda: CommitOffsets(_offsets(GROUPS[i], TOPICS[j], n)),
        "join": lambda: JoinGroup(GROUPS[i], f"m{n}", ((TOPICS[j], n),), session_timeout_ms=4, instance_id=_static(n)),
        "beat": lambda: _heartbeat(state, GROUPS[i], f"m{n}"),
        "leave": lambda: LeaveGroup(GROUPS[i], f"m{n}"),
        "ungroup": lambda: DeleteGroup(GROUPS[i]),
        "merge": lambda: _merge(state, TopicPartition(TOPICS[i], j)),
    }
    return makers[kind]()


def _topic(name: str, partitions: int) -> CatalogTopic:
    return CatalogTopic(name, f"{name}-{next(_NUMBERS)}", partitions, config={"retention.ms": "5"})


def _batch(topic: str, partition: int, rows: int, sequence: int) -> NewBatch:
    segment = Segment(f"topics/{topic}/{partition}/{next(_NUMBERS)}.parquet", "parquet", 10, "0" * 64, rows)
    return NewBatch(topic, partition, segment, 5, 6, sequence)


def _identity(state: State, name: str) -> ProducerIdentity:
    txn = state.transactions.get(name)
    return ProducerIdentity(txn.producer_id, txn.epoch, name) if txn is not None else ProducerIdentity(0, 0, name)


def _send(state: State, name: str, topic: str, rows: int) -> Append:
    """A batch with the right sequence, and an offset of a group with it now and then."""
    identity = _identity(state, name)
    partition = state.partition(TopicPartition(topic, 0))
    producer = partition.producers.get(identity.producer_id) if partition is not None else None
    same_epoch = producer is not None and producer.epoch == identity.epoch
    sequence = next_sequence(producer.last_sequence) if producer is not None and same_epoch else 0
    return Append(identity, (_batch(topic, 0, rows, sequence),), (_offsets("g", topic, rows),) if rows == 2 else ())


def _offsets(group: str, topic: str, offset: int) -> TxnOffsets:
    return TxnOffsets(group, (GroupOffset(topic=topic, partition=0, offset=offset, metadata="ü" * offset),))


def _static(number: int) -> str | None:
    return f"static-{number}" if number == 3 else None


def _heartbeat(state: State, group: str, member_id: str) -> Heartbeat:
    """It gives back at once what it is not to read any more."""
    record = state.groups.get(group)
    member = record.members.get(member_id) if record is not None else None
    return Heartbeat(group, member_id, member.assigned if member is not None else ())


def _alter(state: State, name: str, partitions: int) -> Command:
    topic = state.topics.get(name)
    if topic is None:
        return DeleteTopic(name)
    return AlterTopic(replace(topic, partitions=partitions, version=topic.version + 1), topic.version)


def _merge(state: State, tp: TopicPartition) -> ReplaceSegments:
    """Everything below the LSO as one batch: that aborted records are in it does not matter here."""
    partition = state.partition(tp)
    removed = tuple(partition.batches.overlapping(0, partition.last_stable_offset)) if partition is not None else ()
    added: tuple[Batch, ...] = ()
    if removed:
        records = sum(batch.records for batch in removed)
        segment = Segment(
            f"topics/{tp.topic}/{tp.partition}/{next(_NUMBERS)}.parquet", "parquet", 9, "1" * 64, records, True
        )
        added = (Batch(removed[0].base_offset, removed[-1].limit, records, segment, 5, 6),)
    return ReplaceSegments(tp, removed, added)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(steps=steps, every=st.integers(1, 7))
def test_checkpoint_at_any_entry_equals_folded_state(steps: list[Step], every: int) -> None:
    """PST-02, LSO-10."""
    objects, clock = MemoryStore(), ManualClock()
    with InlineExecutor() as pool:

        def opened(hint: bytes | None = None) -> Chain:
            chain = Chain(ChainContext(objects, keys.KEYS, runtime(clock), pool, checkpoint_every=every), 0)
            chain.load(hint)
            return chain

        writer = opened()
        for step in [*BEGINNING, *steps]:
            clock.advance(step[3])
            try:
                writer.submit(command(writer.state, step))
            except TxnStoreError:
                continue  # A refused command leaves the state as it was, which the last lines see.
        assert check(writer.state) == []
        numbers = [keys.checkpoint_sequence(item.key) for item in objects.list(keys.checkpoints(0))]
        saved = sorted(number for number in numbers if number is not None)
        assert saved == [number for number in range(1, writer.state.sequence + 1) if number % every == 0]
        for sequence in saved:
            state = checkpoints.read(objects, sequence)
            assert state is not None
            assert state.sequence == sequence
            assert check(state) == []
        hint = objects.get(keys.latest(0)) if saved else None
        from_checkpoint = opened(hint).state
        assert from_checkpoint == writer.state
        # Without them, from the first entry on.
        objects.delete([item.key for item in objects.list(keys.checkpoints(0))] + [keys.latest(0)])
        assert opened().state == writer.state
