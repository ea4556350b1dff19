"""Groups of both protocols, by single requests: each operation ends with a group that is stable."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.compat.broker.cluster import VirtualMachine, again
from tests.compat.broker.requests import BrokerError, Pending, Requests
from tests.harness.differential.members import Claim, Members

JOIN_GROUP = 9
SYNC_GROUP = 5
HEARTBEAT = 4
LEAVE_GROUP = 5
CONSUMER_GROUP_HEARTBEAT = 1
#: The epoch of a member that leaves (KIP-848), and of a static one that will be back.
LEAVING = -1
LEAVING_FOR_A_WHILE = -2
#: Kafka's largest; members that are in no operation send no heartbeats.
SESSION_TIMEOUT_MS = 1_800_000
REBALANCE_TIMEOUT_MS = 60_000


class ClassicGroups:
    """The members of the groups whose members rebalance together."""

    def __init__(self, machine: VirtualMachine, requests: Requests, members: Members) -> None:
        self._machine = machine
        self._requests = requests
        self._members = members
        self._api: Any = machine.kafka.common.requests
        self._message: Any = machine.kafka.common.message
        self._present: dict[str, list[str]] = {}
        self._topics: dict[tuple[str, str], list[str]] = {}

    def join(self, group: str, name: str, instance: str | None, topics: Mapping[str, int]) -> dict[str, int]:
        """``JoinGroup`` of a member, and of all others in a rebalance; returns the new generation."""
        present = self._present.setdefault(group, [])
        present[:] = [
            other for other in present if instance is None or self._members.claim_of(group, other).instance != instance
        ]
        self._members.update(group, name, Claim(instance=instance))
        self._topics[group, name] = list(topics)
        self._rebalance(group, {name: self._join(group, name)})
        present.append(name)
        return {"generation": self._members.claim_of(group, name).generation}

    def leave(self, group: str, claim: Claim) -> None:
        """``LeaveGroup`` of one member, after which the others join again."""
        identity = self._message.LeaveGroupRequestData.MemberIdentity().setMemberId(claim.member_id)
        builder = self._api.LeaveGroupRequest.Builder(group, [identity.setGroupInstanceId(claim.instance)])
        answer = self._requests.send(builder.build(LEAVE_GROUP)).data()
        self._requests.check(answer.errorCode())
        for member in answer.members():
            self._requests.check(member.errorCode())
        for name in self._members.named(group, [claim.member_id]):
            self._present[group].remove(name)
        self._rebalance(group, {})

    def heartbeat(self, group: str, claim: Claim) -> None:
        """``Heartbeat`` of one member."""
        data = self._message.HeartbeatRequestData().setGroupId(group).setGenerationId(claim.generation)
        data.setMemberId(claim.member_id).setGroupInstanceId(claim.instance)
        answer = self._requests.send(self._api.HeartbeatRequest.Builder(data).build(HEARTBEAT)).data()
        self._requests.check(answer.errorCode())

    def _rebalance(self, group: str, waiting: dict[str, Pending]) -> None:
        """Every member joins the rebalance; after all answers, all request their assignments."""
        joined: dict[str, Any] = {}
        for _ in again(f"group {group!r} should be stable"):
            for name in self._present[group]:
                if name not in waiting and name not in joined and self._must_join(group, name):
                    waiting[name] = self._join(group, name)
            for name in [name for name, pending in waiting.items() if pending.ready(0.02)]:
                with waiting.pop(name) as pending:
                    answer = pending.answer().data()
                self._members.update(
                    group, name, replace(self._members.claim_of(group, name), member_id=answer.memberId())
                )
                if self._requests.error(answer.errorCode()) == "MEMBER_ID_REQUIRED":
                    waiting[name] = self._join(group, name)
                else:
                    self._requests.check(answer.errorCode())
                    joined[name] = answer
            if not waiting:
                break
        # The leader's request brings the assignments, so it comes first.
        for name, answer in sorted(joined.items(), key=lambda item: item[1].leader() != item[1].memberId()):
            self._sync(group, name, answer)

    def _join(self, group: str, name: str) -> Pending:
        kind, claim = self._message.JoinGroupRequestData, self._members.claim_of(group, name)
        consumer = self._machine.kafka.clients.consumer
        subscription = consumer.ConsumerPartitionAssignor.Subscription(self._topics[group, name])
        written = consumer.internals.ConsumerProtocol.serializeSubscription(subscription)
        protocols = kind.JoinGroupRequestProtocolCollection()
        protocols.add(kind.JoinGroupRequestProtocol().setName("range").setMetadata(bytes(written.array())))
        data = kind().setGroupId(group).setMemberId(claim.member_id).setGroupInstanceId(claim.instance)
        data.setSessionTimeoutMs(SESSION_TIMEOUT_MS).setRebalanceTimeoutMs(REBALANCE_TIMEOUT_MS)
        data.setProtocolType("consumer").setProtocols(protocols)
        return self._requests.post(self._api.JoinGroupRequest.Builder(data).build(JOIN_GROUP))

    def _must_join(self, group: str, name: str) -> bool:
        """``Heartbeat``: whether a member has to join again."""
        try:
            self.heartbeat(group, self._members.claim_of(group, name))
        except BrokerError as error:
            if error.name != "REBALANCE_IN_PROGRESS":
                raise
            return True
        return False

    def _sync(self, group: str, name: str, joined: Any) -> None:
        """``SyncGroup`` with empty assignments, which do not matter for a commit."""
        claim = replace(self._members.claim_of(group, name), generation=joined.generationId())
        data = self._message.SyncGroupRequestData().setGroupId(group).setGenerationId(claim.generation)
        data.setMemberId(claim.member_id).setGroupInstanceId(claim.instance)
        data.setProtocolType(joined.protocolType()).setProtocolName(joined.protocolName())
        self._requests.check(
            self._requests.send(self._api.SyncGroupRequest.Builder(data).build(SYNC_GROUP)).data().errorCode()
        )
        self._members.update(group, name, claim)


class ConsumerGroups:
    """The members of the groups whose broker assigns the partitions (KIP-848): a generation is a member's epoch."""

    def __init__(self, machine: VirtualMachine, requests: Requests, members: Members) -> None:
        self._machine = machine
        self._requests = requests
        self._members = members
        self._api: Any = machine.kafka.common.requests
        self._message: Any = machine.kafka.common.message
        self._owned: dict[tuple[str, str], Any] = {}
        self._topics: dict[tuple[str, str], dict[str, int]] = {}

    def join(self, group: str, name: str, instance: str | None, topics: Mapping[str, int]) -> None:
        """The first heartbeat of a member, and those of all others. The value of the epoch is not compared."""
        for other in self._present(group):
            claim = self._members.claim_of(group, other)
            if instance is not None and claim.instance == instance:
                self._heartbeat(group, replace(claim, generation=LEAVING_FOR_A_WHILE), [])
                del self._owned[group, other]
        self._members.update(group, name, Claim(str(uuid.uuid4()), 0, instance))
        self._owned[group, name], self._topics[group, name] = [], dict(topics)
        self._settle(group)

    def leave(self, group: str, claim: Claim) -> None:
        """The last heartbeat of a member, after which the others get their new assignments."""
        self._heartbeat(group, replace(claim, generation=LEAVING), [])
        for name in self._members.named(group, [claim.member_id]):
            del self._owned[group, name]
        self._settle(group)

    def heartbeat(self, group: str, claim: Claim) -> None:
        """A heartbeat of one member, which acknowledges nothing."""
        self._heartbeat(group, claim, [])

    def _present(self, group: str) -> list[str]:
        return [name for of, name in self._owned if of == group]

    def _settle(self, group: str) -> None:
        """Heartbeats of all, until all have one epoch and every partition is assigned."""
        names = self._present(group)
        for _ in again(f"group {group!r} should be stable"):
            if not names or self._settled(group, names):
                return
            for name in names:
                claim = self._members.claim_of(group, name)
                answer = self._heartbeat(group, claim, self._owned[group, name], list(self._topics[group, name]))
                self._members.update(group, name, replace(claim, generation=answer.memberEpoch()))
                if answer.assignment() is not None:
                    self._owned[group, name] = list(answer.assignment().topicPartitions())

    def _settled(self, group: str, names: list[str]) -> bool:
        owned = sum(len(list(row.partitions())) for name in names for row in self._owned[group, name])
        epochs = {self._members.claim_of(group, name).generation for name in names}
        topics = {topic: count for name in names for topic, count in self._topics[group, name].items()}
        return len(epochs) == 1 and epochs != {0} and owned == sum(topics.values())

    def _heartbeat(self, group: str, claim: Claim, owned: list[Any], topics: list[str] | None = None) -> Any:
        kind = self._message.ConsumerGroupHeartbeatRequestData
        data = kind().setGroupId(group).setMemberId(claim.member_id).setMemberEpoch(claim.generation)
        data.setInstanceId(claim.instance)
        if topics is not None:
            rows = [kind.TopicPartitions().setTopicId(row.topicId()).setPartitions(row.partitions()) for row in owned]
            data.setRebalanceTimeoutMs(REBALANCE_TIMEOUT_MS).setSubscribedTopicNames(topics).setTopicPartitions(rows)
        builder = self._api.ConsumerGroupHeartbeatRequest.Builder(data)
        answer = self._requests.send(builder.build(CONSUMER_GROUP_HEARTBEAT)).data()
        self._requests.check(answer.errorCode())
        return answer
