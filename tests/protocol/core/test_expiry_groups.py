"""Offsets and groups that were unused for too long expire (OFF-16). Decided by the pure core."""

from __future__ import annotations

from dataclasses import replace

from tests.helpers.chains import Cluster
from tests.helpers.core import T0, T1, World, offsets
from tests.helpers.expiry import DAY, NEVER, PRODUCERS, later
from txnstore.core.expiration import Expire, Expired
from txnstore.core.groups.commands import CommitOffsets, JoinGroup, LeaveGroup
from txnstore.core.log.commands import Append
from txnstore.core.model import Outcome, ProducerIdentity, TopicPartition
from txnstore.core.routing import chain_of_group
from txnstore.core.transactions.commands import InitProducer, WriteMarkers

OFFSETS = Expire(producer_ms=NEVER, transactional_id_ms=NEVER)


def test_off_16_offsets_expire_a_week_after_their_commit() -> None:
    """OFF-16: without members it is the commit that counts; the group goes with its last offset."""
    world = World(2)
    world.commit_offset(1, T0)
    world.now += DAY
    world.commit_offset(2, T1)
    assert later(world, 6 * DAY - 1, OFFSETS) == Expired(offsets=1)
    assert (world.offset(T0), world.offset(T1)) == (None, 2)
    assert later(world, 2 * DAY, OFFSETS) == Expired(offsets=1, groups=("g",))
    assert "g" not in world.state.groups


def test_off_16_offsets_expire_after_end_of_last_member() -> None:
    """OFF-16: a live member keeps all offsets; then the time of its end counts, be it that its lease ran out."""
    world = World(2)
    joined = JoinGroup("g", "m", (("t", 2),), session_timeout_ms=60_000)
    world.do(joined)
    generation = world.state.groups["g"].generation
    world.do(Append(ProducerIdentity(), (world.batch(),)))
    world.do(CommitOffsets(replace(offsets({T0: 1}, "g", generation), member_id="m")))
    world.now += 30 * DAY
    world.do(joined)
    assert later(world, 60_000, OFFSETS) == Expired()
    assert later(world, 7 * DAY, OFFSETS) == Expired()
    world.now += 60_000
    assert world.do(OFFSETS) == Expired(offsets=1, groups=("g",))


def test_off_16_empty_group_is_deleted() -> None:
    """OFF-16: its last member left, and nothing was ever committed."""
    world = World()
    world.do(JoinGroup("g", "m", (("t", 1),)))
    assert world.do(OFFSETS) == Expired()
    world.do(LeaveGroup("g", "m"))
    assert world.do(OFFSETS) == Expired(groups=("g",))


def test_off_16_pending_offset_prevents_expiration() -> None:
    """OFF-16: what an open transaction is about to change stays; the group does so, too."""
    world = World(2)
    world.commit_offset(1, T0)
    world.commit_offset(1, T1)
    client = world.client("tx")
    client.send_offsets({T0: 5})
    assert later(world, 30 * DAY, OFFSETS) == Expired(offsets=1)
    assert (world.offset(T0), world.offset(T1)) == (1, None)
    client.abort()
    assert world.do(OFFSETS) == Expired(offsets=1, groups=("g",))


def test_off_16_late_marker_of_older_transaction_is_ignored() -> None:
    """END-08 after an expiry: the fence is forgotten, and set again by the next offsets (FEN-02).

    A recoverer that slept for days brings the marker of the first transaction; the offsets of the second one wait on.
    """
    cluster = Cluster()
    group = next(name for name in map("g{}".format, range(99)) if _leads(cluster, 1, name))
    cluster.name = cluster.home(0)
    cluster.identity = cluster.do(0, InitProducer(cluster.name))
    cluster.send([], groups={1: offsets({TopicPartition("t", 0): 7}, group)})
    first = cluster.prepare(Outcome.COMMIT)
    cluster.finish()
    cluster.now += 2 * DAY
    expired = cluster.do(1, PRODUCERS)
    assert expired.producers == 1
    assert len(cluster.state(1).fences) == 0
    cluster.identity = first.producer
    cluster.send([], groups={1: offsets({TopicPartition("t", 0): 9}, group)})
    assert first.unfinished is not None
    cluster.do(1, WriteMarkers(first.unfinished, (0, cluster.state(0).sequence)))
    assert list(cluster.state(1).groups[group].pending) == [first.producer.producer_id]
    cluster.prepare(Outcome.ABORT)
    cluster.finish()
    record = cluster.state(1).groups[group]
    assert [item.value.offset for item in record.offsets.values()] == [7]
    cluster.sound()


def test_off_16_pending_offsets_keep_fence() -> None:
    """The fence tells which marker the pending offsets wait for."""
    cluster = Cluster()
    group = next(name for name in map("g{}".format, range(99)) if _leads(cluster, 1, name))
    cluster.name = cluster.home(0)
    cluster.identity = cluster.do(0, InitProducer(cluster.name))
    cluster.send([], groups={1: offsets({TopicPartition("t", 0): 7}, group)})
    cluster.now += 30 * DAY
    assert cluster.do(1, Expire()) == Expired()
    cluster.prepare(Outcome.COMMIT)
    cluster.finish()
    cluster.now += 8 * DAY
    assert cluster.do(1, Expire()) == Expired(producers=1, offsets=1, groups=(group,))
    cluster.sound()


def _leads(cluster: Cluster, number: int, group: str) -> bool:
    return chain_of_group(group, len(cluster.states)) == number
