"""Members of groups at gateways: of the classic protocol, of KIP-848, and beside them consumers of the library.

They commit offsets alone and in transactions, and also as the members that they were before. What a gateway tells them
is compared with the entries at that moment.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from tests.harness.simulation.actor import Actor
from tests.harness.simulation.ledger import Ledger, Mark
from tests.harness.simulation.wire import (
    ATTEMPTS,
    ELSEWHERE,
    FENCED_EPOCH,
    FENCED_INSTANCE,
    ILLEGAL_GENERATION,
    INCONSISTENT,
    MEMBER_ID_REQUIRED,
    NONE,
    REBALANCING,
    STALE_EPOCH,
    UNKNOWN_MEMBER,
    UNRELEASED,
    Unanswered,
    WireClient,
    code_of,
)
from tests.harness.simulation.wire_transactions import Transactions
from tests.harness.simulation.world import SOURCE, Process, World
from txnstore.consumer import Consumer
from txnstore.core.model import TopicPartition
from txnstore.errors import (
    FencedInstanceError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    StorageError,
    TxnStoreError,
    UnknownMemberError,
    UnstableOffsetCommitError,
)
from txnstore.gateway.apis import Api

#: The codes of a commit of who is no member any more, or not in this generation.
_STALE = frozenset({ILLEGAL_GENERATION, UNKNOWN_MEMBER, FENCED_INSTANCE, FENCED_EPOCH, STALE_EPOCH, REBALANCING})
_SESSION_MS, _REBALANCE_MS = 10_000, 15_000


class _Ended(Exception):  # noqa: N818 - the course of a program
    """This instance of the program ends."""


class GroupClient(WireClient):
    """A consumer: a member of the group of its label, which some of them share."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.group = self.label.partition("/")[0]
        self.instance_id = self.label if self.rng.random() < 0.4 else None
        self.member_id = ""
        self.generation = -1
        self.owned: set[TopicPartition] = set()
        #: What it was before, with a partition of that time.
        self._before: list[tuple[str, int, TopicPartition, str | None]] = []
        transactional_id = f"{self.group}-{self.name}"
        self._transactions = Transactions(self, transactional_id, is_v1=self.rng.random() < 0.6)
        #: The last commit that was acknowledged, by partition.
        self._commits_version = 8

    @property
    def ledger(self) -> Ledger:
        """The entries."""
        return self.world.ledger

    @abstractmethod
    def join(self) -> None:
        """Become a member, or one of a newer generation. Raises :class:`_Ended` if that cannot be."""

    @abstractmethod
    def beat(self) -> None:
        """A heartbeat."""

    @abstractmethod
    def leave(self) -> None:
        """Leave the group."""

    def program(self) -> None:
        self.member_id, self.generation, self.owned = "", -1, set()
        self._transactions.is_usable = False
        try:
            self.join()
            while self.next_operation():
                drawn = self.rng.random()
                if drawn < 0.45:
                    self.beat()
                elif drawn < 0.75:
                    self._commit()
                elif drawn < 0.85:
                    self._look_up()
                elif drawn < 0.95:
                    self._transact()
                else:
                    break
                self.breathe()
            if self.rng.random() < 0.6:
                self.leave()
        except (_Ended, Unanswered):
            return

    def fenced(self, code: int) -> None:
        """Its static name is taken: by a request of its own that it has given up, for no other client has the name."""
        if code == FENCED_INSTANCE and not self.world.settings.mishaps:
            self.world.anomalies.append(f"fenced-without-cause: {self.client}, alone with {self.instance_id}")

    def remember(self) -> None:
        """Keep what it is for late commits, before it becomes something else."""
        if self.owned and self.member_id:
            tp = self.rng.choice(sorted(self.owned))
            self._before = [*self._before[-3:], (self.member_id, self.generation, tp, self.instance_id)]

    # Commits ----------------------------------------------------------------------------------------------------------

    def _drawn(self) -> tuple[TopicPartition, Mark, str | None] | None:
        """Something to commit: of now, or of before."""
        number = self.world.next_value()
        if self._before and self.rng.random() < 0.25:
            member_id, generation, tp, instance_id = self.rng.choice(self._before)
            return tp, Mark(number, member_id, generation), instance_id
        if not self.owned:
            return None
        return self.rng.choice(sorted(self.owned)), Mark(number, self.member_id, self.generation), self.instance_id

    def _commit(self) -> None:
        drawn = self._drawn()
        if drawn is None:
            return
        tp, mark, instance_id = drawn
        partition = {
            "partition_index": tp.partition,
            "committed_offset": mark.number,
            "committed_metadata": str(mark),
        }
        fields = {
            "group_id": self.group,
            "generation_id_or_member_epoch": mark.generation,
            "member_id": mark.member_id,
            "group_instance_id": instance_id,
            "topics": [{"name": tp.topic, "partitions": [partition]}],
        }
        unknown = False
        for _ in range(ATTEMPTS):
            try:
                answer = self.ask(Api.OFFSET_COMMIT, self._commits_version, fields, group=self.group)
            except Unanswered:
                unknown = True
                continue
            code = int(answer["topics"][0]["partitions"][0]["error_code"])
            numbers = self.ledger.commits.get(self.group, ())
            if code == NONE:
                if mark.number not in numbers:
                    self.world.anomalies.append(f"lost-commit: {self.client} {mark} of {self.group} was acknowledged")
                return
            if code in ELSEWHERE:
                unknown = unknown or code == 15
                self.pause(500)
                continue
            if code not in _STALE:
                self.odd("OFFSET_COMMIT", code)
            if not unknown and mark.number in numbers:
                self.world.anomalies.append(f"refused-commit: {self.client} {mark} of {self.group} with {code}")
            if mark.member_id == self.member_id:
                self.stale(code)
            return

    def stale(self, code: int) -> None:
        """A commit is refused: it learns more with a heartbeat."""

    def _look_up(self) -> None:
        """OFF-03: who asks for committed offsets gets what was acknowledged before, or something newer."""
        tps = [TopicPartition(SOURCE, number) for number in range(self.world.settings.partitions)]
        topics = [{"name": SOURCE, "partition_indexes": [tp.partition for tp in tps]}]
        before = len(self.ledger.commits.get(self.group, ()))
        fields = {"groups": [{"group_id": self.group, "topics": topics}], "require_stable": False}
        try:
            answer = self.ask(Api.OFFSET_FETCH, 8, fields, group=self.group)
        except Unanswered:
            return
        (described,) = answer["groups"]
        if described["error_code"] in ELSEWHERE:
            return
        if described["error_code"] != NONE:
            self.odd("OFFSET_FETCH", int(described["error_code"]))
            return
        numbers = self.ledger.commits.get(self.group, [])
        for item in described["topics"][0]["partitions"]:
            tp = TopicPartition(SOURCE, item["partition_index"])
            least = self.ledger.plain.get((self.group, tp), [])
            older = [number for number in least if number in numbers[:before]]
            found = item["committed_offset"]
            if older and found in least and least.index(found) < least.index(older[-1]):
                what = f"{self.client} got {found} of {tp} in {self.group}, after {older[-1]}"
                self.world.anomalies.append(f"outdated-offset: {what}")

    def _transact(self) -> None:
        drawn = self._drawn()
        if drawn is None:
            return
        tp, mark, instance_id = drawn
        committed, code = self._transactions.transact((self.group, tp, mark, instance_id), most=1)
        numbers = self.ledger.commits.get(self.group, ())
        if committed and mark.number not in numbers:
            self.world.anomalies.append(f"lost-commit: {self.client} {mark} of {self.group}, in a transaction")
        if code is not None and mark.member_id == self.member_id:
            self.stale(code)


class ClassicClient(GroupClient):
    """A member of a classic group."""

    def _ask(self, api: Api, version: int, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.ask(api, version, {"group_id": self.group, "group_instance_id": self.instance_id, **fields},
                        group=self.group)  # fmt: skip

    def join(self) -> None:
        self.remember()
        for _ in range(ATTEMPTS):
            if self._try_to_join():
                return
            self.pause(300)
        raise _Ended

    def _try_to_join(self) -> bool:
        self.owned = set()
        fields = {
            "session_timeout": _SESSION_MS,
            "rebalance_timeout": _REBALANCE_MS,
            "member_id": self.member_id,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        }
        try:
            answer = self._ask(Api.JOIN_GROUP, 9, fields)
        except Unanswered:
            return False
        code = code_of(answer)
        if code == MEMBER_ID_REQUIRED:
            self.member_id = answer["member_id"]
        elif code == UNKNOWN_MEMBER:
            self.member_id = ""
        elif code in (FENCED_INSTANCE, INCONSISTENT):
            self.fenced(code)
            raise _Ended
        elif code in ELSEWHERE or code == REBALANCING:
            if code in ELSEWHERE:
                self.node = None
        elif code != NONE:
            self.odd("JOIN_GROUP", code)
        else:
            self.member_id, self.generation = answer["member_id"], answer["generation_id"]
            return self._sync(answer)
        return False

    def _sync(self, joined: Mapping[str, Any]) -> bool:
        fields: dict[str, Any] = {
            "generation_id": self.generation,
            "member_id": self.member_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
        }
        if joined["leader"] == self.member_id and not joined.get("skip_assignment"):
            fields["assignments"] = self._assigned([member["member_id"] for member in joined["members"]])
        for _ in range(ATTEMPTS):
            try:
                answer = self._ask(Api.SYNC_GROUP, 5, fields)
            except Unanswered:
                continue
            code = code_of(answer)
            if code == NONE:
                self._answered(answer["assignment"])
                return True
            if code in (ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCING, *ELSEWHERE):
                if code == UNKNOWN_MEMBER:
                    self.member_id = ""
                if code in ELSEWHERE:
                    self.node = None
                return False
            if code == FENCED_INSTANCE:
                return False
            self.odd("SYNC_GROUP", code)
            return False
        return False

    def _assigned(self, members: list[str]) -> list[Mapping[str, Any]]:
        """The assignments of a leader: each partition has one member, and no two assignments are the same bytes."""
        numbers: dict[str, list[int]] = {member: [] for member in members}
        first = self.rng.randrange(len(members))
        for number in range(self.world.settings.partitions):
            numbers[members[(first + number) % len(members)]].append(number)
        turn = self.world.next_value()
        return [
            {"member_id": member, "assignment": f"{turn}:{','.join(map(str, owned))}".encode()}
            for member, owned in numbers.items()
        ]

    def _answered(self, assignment: bytes) -> None:
        stored = self.ledger.assignment(self.group, self.generation, self.member_id)
        if stored != assignment:
            what = f"{self.client} {self.member_id} got {assignment!r} in generation {self.generation}"
            self.world.anomalies.append(f"assignment-not-stored: {what}, stored is {stored!r}")
        numbers = assignment.decode().partition(":")[2]
        self.owned = {TopicPartition(SOURCE, int(number)) for number in numbers.split(",") if number}

    def beat(self) -> None:
        fields = {"generation_id": self.generation, "member_id": self.member_id}
        try:
            code = code_of(self._ask(Api.HEARTBEAT, 4, fields))
        except Unanswered:
            return
        if code == NONE:
            return
        if code in ELSEWHERE:
            self.node = None
            return
        if code == UNKNOWN_MEMBER:
            self.remember()
            self.member_id = ""
        elif code not in (REBALANCING, ILLEGAL_GENERATION, FENCED_INSTANCE):
            self.odd("HEARTBEAT", code)
        self.join()

    def stale(self, code: int) -> None:
        if code == UNKNOWN_MEMBER:
            self.remember()
            self.member_id = ""
        self.join()

    def leave(self) -> None:
        if self.instance_id is None:
            members = [{"member_id": self.member_id, "group_instance_id": None}]
            answer = self.ask(Api.LEAVE_GROUP, 5, {"group_id": self.group, "members": members}, group=self.group)
            code = code_of(answer)
            # Its session may have ended, and the group may have members of another kind since.
            is_none = code == UNKNOWN_MEMBER and not self.ledger.is_member(self.group, self.member_id)
            if code not in (NONE, *ELSEWHERE) and not is_none:
                self.odd("LEAVE_GROUP", code)


class EpochClient(GroupClient):
    """A member of a group of KIP-848."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._commits_version = 9
        world.readers.append(self)
        self._is_full = True
        #: The assignment that it got last, of which it may read more still.
        self._target: set[TopicPartition] = set()

    def join(self) -> None:
        self.member_id = f"{self.client}/{self.world.next_value()}"
        self._rejoin()

    def _rejoin(self) -> None:
        self.remember()
        self.owned, self._target, self.generation, self._is_full = set(), set(), 0, True
        for _ in range(ATTEMPTS):
            self.beat()
            if self.generation > 0:
                return
            self.pause(300)
        raise _Ended

    def beat(self) -> None:
        keeps = self.owned - self._target
        if keeps and self.rng.random() < 0.7:
            self.remember()
            self.owned &= self._target  # It has given up what it shall not read any more.
        fields: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.generation,
            "instance_id": self.instance_id,
            "rebalance_timeout": -1,
            "subscribed_topic_names": None,
            "topic_partitions": None,
        }
        owned = set(self.owned)
        if self._is_full or self.rng.random() < 0.3:
            fields |= {"rebalance_timeout": _REBALANCE_MS, "subscribed_topic_names": [SOURCE]}
            fields["topic_partitions"] = self._by_id(owned)
        elif keeps:
            fields["topic_partitions"] = self._by_id(owned)
        try:
            # A late one of a member that joins again would take from it what it was assigned since, as in Kafka.
            answer = self.ask(Api.CONSUMER_GROUP_HEARTBEAT, 1, fields, group=self.group, late=self.generation > 0)
        except Unanswered:
            self._is_full = True
            return
        code = code_of(answer)
        if code == NONE:
            self._answered(answer)
        elif code in ELSEWHERE:
            self.node, self._is_full = None, True
        elif code in (FENCED_EPOCH, UNKNOWN_MEMBER) and self.generation > 0:
            self._rejoin()
        elif code in (INCONSISTENT, UNRELEASED, FENCED_INSTANCE):
            self.fenced(code)
            raise _Ended
        else:
            self.odd(f"CONSUMER_GROUP_HEARTBEAT of epoch {self.generation}", code)

    def _answered(self, answer: Mapping[str, Any]) -> None:
        epoch = answer["member_epoch"]
        if epoch < self.generation:
            self.world.anomalies.append(f"epoch-regression: {self.client} {self.generation} to {epoch}")
        if epoch != self.generation:
            self.remember()
        self.generation, self._is_full = epoch, False
        assignment = answer.get("assignment")
        if assignment is None:
            return
        by_id = {self.topic_id: SOURCE}
        assigned = {
            TopicPartition(by_id[topic["topic_id"]], number)
            for topic in assignment["topic_partitions"]
            for number in topic["partitions"]
        }
        if self.ledger.is_member(self.group, self.member_id):
            for tp in sorted(assigned - self.owned):
                if not self.ledger.may_read(self.group, self.member_id, tp):
                    self.world.anomalies.append(f"read-without-holding: {self.client} got {tp} of {self.group}")
        for tp in sorted(assigned - self.owned):
            self._check_given_up(tp)
        self._target = assigned
        self.owned |= assigned

    def _check_given_up(self, tp: TopicPartition) -> None:
        """KIP-848: no other member reads a partition still when this one gets it."""
        for other in self.world.readers:
            if other is self or not isinstance(other, EpochClient) or other.group != self.group:
                continue
            if tp in other.owned and self.ledger.is_member(self.group, other.member_id):
                what = f"{self.client} got {tp} of {self.group}, which {other.client} has not given up"
                self.world.anomalies.append(f"read-by-two: {what}")

    @property
    def topic_id(self) -> Any:
        """The id of the topic that it reads."""
        return self.world.source_id

    def _by_id(self, owned: set[TopicPartition]) -> list[Mapping[str, Any]]:
        numbers = sorted(tp.partition for tp in owned)
        return [{"topic_id": self.topic_id, "partitions": numbers}] if numbers else []

    def stale(self, code: int) -> None:
        if code in (UNKNOWN_MEMBER, FENCED_EPOCH):
            self._rejoin()
        else:
            self.beat()

    def leave(self) -> None:
        self.remember()
        self.owned = set()  # It reads nothing any more, also if it leaves only for now.
        epoch = -2 if self.instance_id is not None and self.rng.random() < 0.5 else -1
        fields = {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": epoch,
            "instance_id": self.instance_id,
            "rebalance_timeout": -1,
            "topic_partitions": None,
        }
        code = code_of(self.ask(Api.CONSUMER_GROUP_HEARTBEAT, 1, fields, group=self.group))
        if code not in (NONE, UNKNOWN_MEMBER, FENCED_INSTANCE, *ELSEWHERE):
            self.odd("CONSUMER_GROUP_HEARTBEAT, leaving", code)


class NativeClient(Actor):
    """A consumer of the library in the same group, which can join only while no gateway keeps members of it."""

    def live(self, process: Process) -> None:
        expected = (
            InconsistentGroupProtocolError,
            UnknownMemberError,
            IllegalGenerationError,
            FencedInstanceError,
            UnstableOffsetCommitError,
        )
        consumer: Consumer | None = None
        while self.next_operation():
            try:
                if consumer is None:
                    group = self.label.partition("/")[0]
                    consumer = process.store.consumer([SOURCE], group=group, session_timeout=10.0)
                consumer.poll(max_records=5)
                if consumer.assignment():
                    consumer.commit()
            except (StorageError, *expected) as error:
                self.check_expected(process, "consume", error, expected)
            except TxnStoreError as error:
                self.check_expected(process, "consume", error, expected)
            if self.rng.random() < 0.15 and consumer is not None:
                try:
                    consumer.close()
                except TxnStoreError as error:
                    self.check_expected(process, "close", error, expected)
                consumer = None
            self.breathe()
