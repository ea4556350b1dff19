"""Actors that commit offsets of a topic that is deleted and recreated, with what they know of the catalog."""

from __future__ import annotations

from collections.abc import Iterator

from tests.harness.simulation.journal import Journal
from tests.harness.simulation.transacting import REFUSALS, Known, TransactionalActor
from tests.harness.simulation.world import PASSING, Process, World
from tests.helpers.connections import connection_of
from txnstore.core.groups.commands import CommitOffsets, TxnOffsets
from txnstore.core.groups.events import GroupOffset
from txnstore.core.groups.model import GroupMetadata
from txnstore.core.model import TopicPartition
from txnstore.core.routing import CATALOG
from txnstore.errors import TxnStoreError, UnknownTopicOrPartitionError
from txnstore.producer import Producer
from txnstore.store import Store

#: Their group; with three chains it is neither in the chain of the catalog nor in that of the partition.
_GROUP = "follow-3"
_PARTITION = TopicPartition(PASSING, 0)


class Follower(TransactionalActor):
    """Commits offsets of the topic as it was when this process last looked at the catalog, some in transactions.

    The first instance looks each time, the others seldom.
    """

    refusals = (*REFUSALS, UnknownTopicOrPartitionError)

    def live(self, process: Process) -> None:
        often = 1.0 if self.label.endswith("/1") else 0.1
        producer: Producer | None = None
        while self.next_operation():
            try:
                view = connection_of(process.store).view(refresh=[CATALOG] if self.rng.random() < often else False)
            except TxnStoreError as error:
                self.check_expected(process, "state", error, ())
                continue
            topic = view.topics.get(PASSING)
            if topic is None or self.rng.random() < 0.6:
                if topic is not None:
                    self._commit(process, topic.topic_id)
            else:
                if producer is None or not self.usable:
                    producer = self.initialize(self.renamed(process), self.label)
                if producer is None:
                    return
                self._transact(process, producer, topic.topic_id)
            self.breathe()

    def _commit(self, process: Process, topic_id: str) -> None:
        item = GroupOffset(
            topic=PASSING, partition=_PARTITION.partition, offset=self.rng.randrange(9), topic_id=topic_id
        )
        try:
            connection_of(process.store).submit(CommitOffsets(TxnOffsets(_GROUP, (item,))))
        except TxnStoreError as error:
            self.check_expected(process, "commit", error, (UnknownTopicOrPartitionError,))
        else:
            self.world.followed.add((_GROUP, _PARTITION, topic_id))

    def _transact(self, process: Process, producer: Producer, topic_id: str) -> None:
        def body() -> None:
            metadata = GroupMetadata(_GROUP, topic_ids={PASSING: topic_id})
            producer.send_offsets({_PARTITION: self.rng.randrange(9)}, metadata)
            if self.rng.random() < 0.5:
                self.insist(producer.flush)
                self.pause(self.rng.choice((100, 10_000, 130_000)))

        name, history = self.client, self.world.history
        history.invoke(name, "txn", [], self.identity(producer))
        outcome, why = self.transact(Process(name, process.store, process.storage), producer, body)
        if outcome is Known.COMMITTED:
            history.ok(name)
            self.world.followed.add((_GROUP, _PARTITION, topic_id))
        elif outcome is Known.ABORTED:
            history.fail(name, why)
        else:
            history.info(name, why)


def followed(world: World, store: Store, journal: Journal) -> Iterator[str]:
    """OFF-18: an offset is never replaced by one of an earlier topic of that name."""
    newest: dict[tuple[str, TopicPartition], int] = {}
    for group, item in journal.offsets:
        life, key = journal.lives.index(item.topic_id or ""), (group, item.tp)
        if life < newest.get(key, 0):
            yield f"offset-of-an-earlier-topic: group {group!r} has {item} after one of life {newest[key]}"
        newest[key] = max(life, newest.get(key, 0))
    view = connection_of(store).view()
    topic = view.topics.get(PASSING)
    for group, tp, topic_id in sorted(world.followed):
        if topic is not None and topic.topic_id == topic_id:
            value = view.groups[group].offsets.get(tp) if group in view.groups else None
            if value is None or value.topic_id != topic_id:
                yield f"lost-offset: group {group!r} has {value} in {tp}, of which an offset was committed"
