"""END and TV2: ending transactions, and the epoch that every end bumps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.helpers.core import RC, T0, T1, Client, World, offsets
from txnstore.core.catalog.model import DeleteTopic
from txnstore.core.log.events import MarkerWritten
from txnstore.core.model import Command, Outcome, ProducerIdentity, TopicPartition
from txnstore.core.transactions.commands import EndTxn, InitProducer
from txnstore.core.transactions.events import PartitionsAdded
from txnstore.core.transactions.model import MAX_EPOCH, TxnState
from txnstore.errors import (
    InvalidPidMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
    TxnStoreError,
)

COMMIT, ABORT = Outcome.COMMIT, Outcome.ABORT


@pytest.fixture
def world() -> World:
    return World(partitions=3)


# END ------------------------------------------------------------------------------------------------------------------


def test_outcome_never_changes(world: World) -> None:
    """END-01: whatever comes afterwards, the records of the commit stay, and those of the abort do not."""
    client = world.client("a")
    client.send(2)
    committed = client.end(COMMIT)
    client.commit()
    client.send(2)
    aborted = client.end(ABORT)
    client.abort()
    for late in (committed, aborted):
        flipped = EndTxn(late.producer, ABORT if late.outcome is COMMIT else COMMIT)
        world.refuse(ProducerFencedError, flipped)
    world.client("a")
    assert world.read(RC) == [0, 1]


def test_end_requires_current_producer_id_and_epoch(world: World) -> None:
    """TST-08, END-02: first the mapping, then the epoch, which must be equal: smaller and larger are fenced."""
    client, other = world.client("a"), world.client("b")
    client.send()
    client.commit()
    client.send()
    pid = client.producer_id
    for outcome in Outcome:
        world.refuse(InvalidPidMappingError, EndTxn(ProducerIdentity(pid, 1, "gone"), outcome))
        world.refuse(InvalidPidMappingError, EndTxn(ProducerIdentity(other.producer_id, 1, "a"), outcome))
        world.refuse(InvalidPidMappingError, EndTxn(ProducerIdentity(-1, -1, "a"), outcome))
        world.refuse(ProducerFencedError, EndTxn(ProducerIdentity(pid, 0, "a"), outcome))
        world.refuse(ProducerFencedError, EndTxn(ProducerIdentity(pid, 2, "a"), outcome))
    client.commit()


def test_late_end_does_not_end_next_transaction(world: World) -> None:
    """BUG-01, END-04, KAFKA-17754: the commit of transaction 1, replayed while transaction 2 is open, is refused."""
    client = world.client("a")
    client.send()
    late = client.end(COMMIT)
    client.commit()
    client.send()
    world.refuse(ProducerFencedError, late)
    assert world.ends() == (2, 3)
    client.abort()
    assert world.read(RC) == [0]


def test_markers_reach_every_partition_and_group() -> None:
    """END-05: 50 partitions and 3 groups; every log has one offset more, and nothing is open."""
    world = World(partitions=50)
    client = world.client("a")
    tps = [TopicPartition("t", number) for number in range(50)]
    world.do(client.append(*(client.numbered(1, tp) for tp in tps)))
    for group in ("g1", "g2", "g3"):
        client.send_offsets({T0: 1}, group)
    client.commit()
    assert [world.ends(tp) for tp in tps] == [(2, 2)] * 50
    assert all(world.read(RC, tp) == [0] for tp in tps)
    assert [world.offset(T0, group, require_stable=True) for group in ("g1", "g2", "g3")] == [1, 1, 1]
    assert world.txn("a").state is TxnState.COMPLETE_COMMIT
    markers = [event for event in world.entries[-1][1] if isinstance(event, MarkerWritten)]
    assert {(marker.epoch, marker.outcome) for marker in markers} == {(1, COMMIT)}


def test_end_skips_deleted_topic(world: World) -> None:
    """END-07: the rest of the transaction commits."""
    world.create("u")
    other = TopicPartition("u", 0)
    client = world.client("a")
    client.send()
    client.send(tp=other)
    world.do(DeleteTopic("u"))
    client.commit()
    assert world.read(RC) == [0]
    client.send(tp=T1)
    world.do(DeleteTopic("t"))
    client.commit()
    assert world.txn("a").state is TxnState.COMPLETE_COMMIT


def test_repeated_end_writes_no_second_marker(world: World) -> None:
    """BUG-14, REC-07, END-08: the answer is the same, and the logs are as they were."""
    client = world.client("a")
    command = client.end(COMMIT, client.numbered(3))
    first = world.do(command)
    before = world.state
    again = world.do(command)
    assert (again.producer, again.appended[0].base_offset, again.appended[0].timestamp) == (
        first.producer,
        0,
        first.appended[0].timestamp,
    )
    assert world.state is before


def test_partition_without_data_has_no_aborted_index_entry(world: World) -> None:
    """END-09: its marker takes an offset, but blocks no reader and hides no record."""
    client = world.client("a")
    world.plain(2, T1)
    world.happen(PartitionsAdded(transactional_id="a", producer_id=client.producer_id, epoch=0, partitions=[T0, T1]))
    assert world.ends(T1) == (2, 2)
    client.abort()
    assert (world.log(T0).aborted, world.log(T1).aborted) == ((), ())
    assert world.ends(T1) == (3, 3)
    assert world.read(RC, T1) == [0, 1]


def test_empty_transaction_writes_no_marker(world: World) -> None:
    """END-09: nothing was sent, so a commit is refused, and no log grows."""
    client = world.client("a")
    world.refuse(InvalidTxnStateError, client.end(COMMIT))
    assert world.ends() == (0, 0)


@pytest.mark.parametrize(("data", "positions"), [(True, False), (False, True), (True, True)])
def test_transaction_with_records_offsets_or_both(world: World, data: bool, positions: bool) -> None:
    """END-16: each is a transaction."""
    client = world.client("a")
    batches = (client.numbered(2),) if data else ()
    groups = (offsets({T1: 5}),) if positions else ()
    world.do(EndTxn(client.identity, COMMIT, batches, groups))
    assert world.read(RC) == ([0, 1] if data else [])
    assert world.offset(T1) == (5 if positions else None)


def test_late_repeated_end_is_answered_after_compaction_and_deletion(world: World) -> None:
    """END-04: the commit has happened, so it is never answered with an error that makes the caller send again."""
    client = world.client("a")
    command = client.end(COMMIT, client.numbered(3), client.numbered(1, T1))
    first = world.do(command)
    world.compact()
    world.compact(T1)
    again = world.do(command)
    assert again.producer == first.producer
    assert [(item.tp, item.base_offset, item.limit) for item in again.appended] == [(T0, -1, -1), (T1, -1, -1)]
    world.do(DeleteTopic("t"))
    assert world.do(command).producer == first.producer


# Versions of jobs -----------------------------------------------------------------------------------------------------


def test_version_is_committed_once(world: World) -> None:
    """The same and an older version do nothing; a newer one and another scope do."""
    client = world.client("job")
    ended = world.do(client.end(COMMIT, client.numbered(2), versions=(("s", 3),)))
    for version, sent in ((3, 0), (2, 0), (4, 1)):
        client = Client(world, ended.producer)
        ended = world.do(client.end(COMMIT, client.numbered(sent or 1), versions=(("s", version),)))
        assert ended.repeated is (sent == 0)
    assert world.read(RC) == [0, 1, 3]
    assert dict(world.txn("job").versions.items()) == {"s": 4}
    world.client("job")
    assert dict(world.txn("job").versions.items()) == {"s": 4}


def test_repeated_version_aborts_registered_batches(world: World) -> None:
    """Else its records would be committed with the next version of the job."""
    client = world.client("job")
    first = world.do(client.end(COMMIT, client.numbered(2), versions=(("s", 1),)))
    client = Client(world, first.producer)
    client.send(2)
    repeated = world.do(client.end(COMMIT, versions=(("s", 1),)))
    assert repeated.repeated
    client = Client(world, repeated.producer)
    client.commit(client.numbered(1))
    assert world.read(RC) == [0, 1, 6]


def test_repeated_version_gets_same_answer(world: World) -> None:
    """TV2-02: the answer may have been lost, and no other process has ended the transaction."""
    client = world.client("job")
    first = world.do(client.end(COMMIT, client.numbered(2), versions=(("s", 1),)))
    client = Client(world, first.producer)
    client.send(2)
    end = client.end(COMMIT, versions=(("s", 1),))
    assert world.do(end) == world.do(end)
    world.client("job")
    world.refuse(ProducerFencedError, end)


def test_commit_of_another_version_is_no_repetition(world: World) -> None:
    """Two processes have the identity of a job, and the other one has committed with it: nothing of this is stored."""
    client = world.client("job")
    other = client.end(COMMIT, client.numbered(2), versions=(("s", 1),))
    late = client.end(COMMIT, client.numbered(1), versions=(("s", 2),))
    first = world.do(other)
    world.refuse(ProducerFencedError, late)
    assert world.do(other).producer == first.producer
    assert world.read(RC) == [0, 1]


def test_aborted_version_is_not_committed(world: World) -> None:
    client = world.client("job")
    client.send()
    ended = world.do(client.end(ABORT, versions=(("s", 1),)))
    client = Client(world, ended.producer)
    assert not world.do(client.end(COMMIT, client.numbered(), versions=(("s", 1),))).repeated
    assert world.read(RC) == [2]


def test_version_without_records_is_recorded(world: World) -> None:
    """An empty batch of a job is done, too; no transaction begins for it."""
    client = world.client("job")
    assert not world.do(client.end(COMMIT, versions=(("s", 1),))).repeated
    assert world.do(client.end(COMMIT, client.numbered(), versions=(("s", 1),))).repeated
    assert world.ends() == (0, 0)


# TV2 ------------------------------------------------------------------------------------------------------------------


def test_every_end_bumps_the_epoch(world: World) -> None:
    """TST-04, TV2-01, BUG-09: e, e+1, e+2, whether it commits or aborts, and sequences begin at 0 each time."""
    client = world.client("a")
    epochs = []
    for end in (client.commit, client.abort, client.commit):
        epochs.append(client.epoch)
        client.send(2, sequence=0)
        client.send(2, T1, sequence=0)
        ended = end()
        assert ended.producer == client.identity
    assert epochs == [0, 1, 2]
    assert world.read(RC) == [0, 1, 6, 7]


def _empty(client: Client) -> None:
    """The state after an init that its own holder asked for, so that there is an epoch before."""
    client.send()
    client.commit()
    client.identity = client.world.client("a", (client.producer_id, client.epoch)).identity


def _complete_commit(client: Client) -> None:
    client.send()
    client.commit()


def _complete_abort(client: Client) -> None:
    client.send()
    client.abort()


def _ongoing(client: Client) -> None:
    _complete_commit(client)
    client.send()


FENCED, INVALID, OK, BUMPED = ProducerFencedError, InvalidTxnStateError, "ok", "ok, and the epoch is bumped"


@pytest.mark.parametrize(
    ("arrange", "outcome", "epoch", "expected"),
    [
        (_empty, ABORT, "retry", FENCED),
        (_empty, ABORT, "current", BUMPED),
        (_empty, COMMIT, "retry", FENCED),
        (_empty, COMMIT, "current", INVALID),
        (_complete_abort, ABORT, "retry", OK),
        (_complete_abort, ABORT, "current", BUMPED),
        (_complete_abort, COMMIT, "retry", FENCED),
        (_complete_abort, COMMIT, "current", INVALID),
        (_complete_commit, ABORT, "retry", INVALID),
        (_complete_commit, ABORT, "current", BUMPED),
        (_complete_commit, COMMIT, "retry", OK),
        (_complete_commit, COMMIT, "current", INVALID),
        (_ongoing, ABORT, "retry", FENCED),
        (_ongoing, ABORT, "current", BUMPED),
        (_ongoing, COMMIT, "retry", FENCED),
        (_ongoing, COMMIT, "current", BUMPED),
    ],
)
def test_end_in_every_state(
    world: World,
    arrange: Callable[[Client], None],
    outcome: Outcome,
    epoch: str,
    expected: type[TxnStoreError] | str,
) -> None:
    """TST-08, TV2-02 (with KAFKA-20785), TV2-08: every cell; the rows PREPARE_* cannot be seen, as one entry does it
    all.
    """
    client = world.client("a")
    arrange(client)
    current = client.identity
    producer = current if epoch == "current" else ProducerIdentity(current.producer_id, current.epoch - 1, "a")
    command = EndTxn(producer, outcome)
    before = world.state
    if isinstance(expected, type):
        world.refuse(expected, command)
        return
    ended = world.do(command)
    bumped = current.epoch + 1 if expected == BUMPED else current.epoch
    assert ended.producer == ProducerIdentity(current.producer_id, bumped, "a")
    assert (world.state is before) is (expected == OK)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_repeated_end_returns_lost_answer(world: World, outcome: Outcome) -> None:
    """TV2-03, BUG-18: the retry gives the next identity, with which the client continues without being fenced."""
    client = world.client("a")
    client.send()
    command = client.end(outcome)
    world.do(command)
    client.identity, client.sequences = world.do(command).producer, {}
    client.send()
    client.commit()
    assert world.read(RC)[-1] == 2


def test_end_rotates_producer_id_at_last_epoch(world: World) -> None:
    """TST-04, TV2-04: five transactions over the edge; the markers are of the id and the epoch that they end."""
    client = world.at_epoch("a", MAX_EPOCH - 1)
    old = client.producer_id
    identities = []
    for _ in range(5):
        identities.append((client.producer_id, client.epoch))
        client.send(2)
        command = client.end(COMMIT)
        client.commit()
        assert world.do(command).producer == client.identity
        marker = next(event for event in world.entries[-1][1] if isinstance(event, MarkerWritten))
        assert (marker.producer_id, marker.epoch) == (identities[-1][0], identities[-1][1] + 1)
    new = client.producer_id
    assert identities == [(old, 32765), (old, 32766), (new, 0), (new, 1), (new, 2)]
    assert new != old
    assert world.read(RC) == [0, 1, 3, 4, 6, 7, 9, 10, 12, 13]


def test_rotation_fences_old_producer_id(world: World) -> None:
    """TV2-04, FEN-05: the retry is answered once the id has rotated, but not after the next transaction."""
    client = world.at_epoch("a", MAX_EPOCH)
    client.send()
    late = client.end(COMMIT)
    zombie = client.append(client.numbered())
    client.commit()
    assert world.txn("a").last_epoch == MAX_EPOCH
    assert world.txn("a").previous_producer_id == late.producer.producer_id
    world.refuse(ProducerFencedError, zombie)
    client.send()
    client.commit()
    world.refuse(ProducerFencedError, late)
    world.refuse(ProducerFencedError, zombie)


def test_init_at_last_epoch_grants_no_epoch_twice(world: World) -> None:
    """TV2-06: the abort of the init rotates, the grant is the next one; the late owner is fenced whatever it asks."""
    client = world.at_epoch("a", MAX_EPOCH)
    client.send()
    late: list[Command] = [client.end(ABORT), client.end(COMMIT), client.append(client.numbered())]
    new = world.client("a")
    assert (new.epoch, new.producer_id == client.producer_id) == (1, False)
    for command in late:
        world.refuse(ProducerFencedError, command)
    world.refuse(ProducerFencedError, InitProducer("a", expected=(client.producer_id, MAX_EPOCH)))


def test_marker_epoch_exceeds_data_epoch(world: World) -> None:
    """TV2-07: in every partition, at every end; so a batch of the ended transaction can never be accepted again."""
    client = world.client("a")
    for end in (client.commit, client.abort, client.commit):
        client.send()
        before = world.log().producers[client.producer_id].epoch
        end()
        assert world.log().producers[client.producer_id].epoch == before + 1
