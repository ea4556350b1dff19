"""DIF-11 while everything changes under transactions: topics, members, identities, time; and two clients at once.

A topic is deleted with open transactions and offsets in it, and created again; members join groups and leave them, and
those that have left still commit; transactions expire; epochs near the last one rotate producer ids; two clients call
at the same time, where the order of the calls makes no difference.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis.stateful import initialize, run_state_machine_as_test

from tests.compat.broker import RunningBroker
from tests.harness.model import Group, RefusedError
from tests.helpers.random_histories import (
    GROUPS,
    IDS,
    KAFKA,
    MORE,
    SETTINGS,
    SHARE_AWAITED,
    TIMEOUTS,
    Histories,
    running,
)
from tests.protocol.harness.test_differential import Applications

__all__ = ["running"]

#: The partitions of each topic; ``u`` is deleted and created again.
TOPICS = {"t": 2, "u": 2}
#: The group of members that send requests by hand, and that of consumers that share the partitions of both topics.
BY_HAND, SHARED = "m", "s"
MEMBERS = 3
NO_TOPIC = "none"
#: The timeout of a transaction that expires in a step of its own: a broker's clock cannot be set, so none is open
#: with it at any other time.
SHORT_MS = 10_000
#: Of all records, which consumers return with it.
TIME = 1_700_000_000_000
#: Near the end of the epochs; a broker is asked for each of them, so it gets there rarely.
OLD, SHARE_OLD = 32_764, 0.1 if KAFKA else 1.0


class Churn(Applications):
    """Producers as applications use them, zombies included, while what they use changes."""

    weights: ClassVar[dict[str, int]] = {
        **Applications.weights,
        # The producers of a store that was opened before a deletion send to the deleted topic for a while.
        "restart": 0,
        # A reader ends an expired transaction; in Kafka only the sweep does, so that follows immediately.
        "tick": 0,
        "init_again": 2,
        "create_again": 5,
        "expire": 1,
        "rotate": 1,
        "at_once": 5,
        "share": 3,
        "read": 4,
        "join": 3,
        "leave": 2,
        "heartbeat": 3,
        "offsets_of_a_new_topic": 2,
        "commit_as_member": 4,
        "send_offsets_as_member": 4,
    }

    #: What is in a buffer when its topic is deleted is refused later, in a transaction that has begun or not (ADD-09).
    flushes: ClassVar[bool] = True

    @initialize()
    def create_topic(self) -> None:
        for name, partitions in TOPICS.items():
            self.do("create_topic", topic=name, partitions=partitions)
        for identity in (*IDS, None):
            self.do("init", producer=self.new_producer(), id=identity, timeout_ms=TIMEOUTS[-1])
        # A group without offsets and members may be deleted at any time, and begins with the first generation again.
        self.do("commit_offsets", group=BY_HAND, offsets={"t-0": 0})

    def record(self) -> dict[str, Any]:
        return {"value": f"v{len(self.ops)}", "timestamp": TIME}

    # Topics -----------------------------------------------------------------------------------------------------------

    def create_again(self) -> None:
        """Delete ``u``, whatever happens in it, or create it.

        The end of a transaction writes a marker into the new topic in Kafka, and not here (END-07), so no transaction
        is open that began in the old one.
        """
        exists = "u-0" in self.model.broker.logs
        if not exists and any(
            tp.startswith("u-") for txn in self.model.broker.transactions.values() for tp in txn.partitions
        ):
            return
        self.commit_all()
        if exists:
            self.do("delete_topic", topic="u")
        else:
            self.do("create_topic", topic="u", partitions=TOPICS["u"])
        self.poll_all()

    def send_offsets(self) -> None:
        name, producer = self.producer()
        if producer.transactional and producer.state == "READY":
            self.do("begin", producer=name)
        offsets = self.offsets()
        if KAFKA and self.behind(name) and any(tp.startswith("u-") for tp in offsets):
            # Java's producer knows the id of the deleted topic, and learns of the new one by sending to it (OFF-18).
            self.do("send", producer=name, partition=next(tp for tp in offsets if tp.startswith("u-")), **self.record())
            self.do("flush", producer=name)
        self.do("send_offsets", producer=name, group=self.rng.choice(GROUPS), offsets=offsets)
        self.do("flush", producer=name)

    def behind(self, name: str) -> bool:
        """Whether a producer used a former topic ``u``, and has not sent to the present one."""
        uses = (op for op in self.ops if op.get("producer") == name or op.get("topic") == "u")
        last = None
        for op in uses:
            if op["op"] == "delete_topic":
                last = "old" if last is not None else None
            elif (op["op"] == "send" and op["partition"].startswith("u-")) or (
                op["op"] == "send_offsets" and last is None and any(tp.startswith("u-") for tp in op["offsets"])
            ):
                last = "new"
        return last == "old"

    def offsets_of_a_new_topic(self) -> None:
        """A producer that sent to the deleted topic commits offsets of the one that was created under its name."""
        if "u-0" not in self.model.broker.logs or (KAFKA and self.rng.random() >= 2 * SHARE_AWAITED):
            return
        names = [name for name, producer in self.model.producers.items() if producer.transactional]
        names = [name for name in names if self.model.producers[name].state == "READY" and self.current(name)]
        names = [name for name in names if self.behind(name)]
        if not names:
            return
        name = self.rng.choice(names)
        transactional_id = self.model.producers[name].identity.transactional_id
        self.do("begin", producer=name)
        # The transaction has begun in Kafka, too, where the offsets do not begin one.
        self.do("send", producer=name, partition="t-0", **self.record())
        self.do("flush", producer=name)
        self.do("send_offsets", producer=name, group=self.rng.choice(GROUPS), offsets={"u-0": self.rng.randrange(10)})
        self.do("flush", producer=name, recreated=True)
        # Java's producer does not come back from a commit, and a store's would commit: a new instance ends both.
        self.do("kill", producer=name)
        self.do("init", producer=self.new_producer(), id=transactional_id, timeout_ms=TIMEOUTS[-1])

    # Time and identities ----------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Transactions of one or both ids expire; then their owners do one thing more, and are replaced."""
        names = {}
        for identity in self.rng.sample(IDS, self.rng.choice([1, 1, 2])):
            names[identity] = name = self.new_producer()
            self.do("init", producer=name, id=identity, timeout_ms=SHORT_MS)
        # Which of two expired transactions a broker aborts first is seen in a partition of both.
        for name, tp in zip(names.values(), self.rng.sample(self.partitions(), 2), strict=False):
            self.do("begin", producer=name)
            if self.rng.random() < 0.7:
                self.do("send", producer=name, partition=tp, **self.record())
            else:
                self.do("send_offsets", producer=name, group=self.rng.choice(GROUPS), offsets=self.offsets())
            self.do("flush", producer=name)
        self.do("tick", ms=SHORT_MS + 1)
        self.do("sweep")
        for name in names.values():
            for call in self.rng.choice([["commit"], ["abort", "begin", "send", "commit"], ["send", "flush"], []]):
                more = {"partition": self.partition(), **self.record()} if call == "send" else {}
                self.do(call, producer=name, **more)
        for identity, name in names.items():
            self.do("kill", producer=name)
            self.do("init", producer=self.new_producer(), id=identity, timeout_ms=TIMEOUTS[-1])

    def rotate(self) -> None:
        """An id that has had nearly all epochs; a new instance of it has the next ones (INIT-07, TV2-04)."""
        name = self.rng.choice(IDS)
        txn = self.model.broker.transactions[name]
        if txn.state == "ONGOING" or txn.epoch >= OLD or self.rng.random() >= SHARE_OLD:
            return
        self.do("set_epoch", id=name, epoch=OLD)
        self.identities.append({"id": name, "producer_id": self._number(txn.producer_id), "epoch": OLD})
        self.do("init", producer=self.new_producer(), id=name, timeout_ms=TIMEOUTS[-1])

    def at_once(self) -> None:
        """Two producers send to different partitions, and flush, commit or abort at the same time."""
        idle = [name for name, producer in self.model.producers.items() if producer.state == "READY"]
        if len(idle) < 2 or any(txn.epoch >= OLD for txn in self.model.broker.transactions.values()):
            return
        calls = []
        tps = self.rng.sample(self.partitions(), 2)
        for name, tp in zip(self.rng.sample(idle, 2), tps, strict=True):
            transactional = self.model.producers[name].transactional
            if transactional:
                self.do("begin", producer=name)
            self.do("send", producer=name, partition=tp, **self.record())
            calls.append({"op": self.rng.choice(["commit", "flush"]) if transactional else "flush", "producer": name})
        self.do("at_once", ops=calls)

    # Groups -----------------------------------------------------------------------------------------------------------

    def sharing(self) -> list[str]:
        """The consumers of the shared group."""
        return sorted(self.model.consumers)

    def commit_all(self) -> None:
        """Before a rebalance: what a member has read when it notices one is read again by others, or not."""
        self.poll_all()
        if self.sharing():
            self.do("commit_all", group=SHARED)

    def poll_all(self) -> None:
        if self.sharing():
            self.do("poll_all", group=SHARED)

    def share(self) -> None:
        """One more consumer shares the partitions, or one less."""
        members = self.sharing()
        self.commit_all()
        if members and (len(members) == MEMBERS or self.rng.random() < 0.4):
            self.do("close_consumer", consumer=self.rng.choice(members))
        else:
            name = f"C{len(self.ops)}"
            self.do("consumer", consumer=name, group=SHARED, isolation="read_committed", reset="earliest")
            self.do("subscribe", consumer=name, topics=sorted(TOPICS))
        self.poll_all()

    def read(self) -> None:
        (self.poll_all if self.rng.random() < 0.5 else self.commit_all)()
        if self.sharing():
            self.do("committed", group=SHARED, partition=self.partition(), require_stable=True)

    def all_members(self) -> list[str]:
        """All members that ever joined."""
        return sorted({op["member"] for op in self.ops if op["op"] == "join"})

    def join(self) -> None:
        """Members of a topic that does not exist: here one cannot commit for a partition of another (OFF-08)."""
        if len(self.model.broker.group(BY_HAND).members) < MEMBERS:
            more: dict[str, Any] = {"instance": "i"} if self.rng.random() < 0.3 else {}
            self.do("join", group=BY_HAND, member=f"M{len(self.ops)}", topics=[NO_TOPIC], **more)

    def leave(self) -> None:
        """One of the members; sometimes one that has left, or was replaced under its static name (KIP-345)."""
        members = sorted(self.model.broker.group(BY_HAND).members)
        if self.all_members() and self.rng.random() < 0.3:
            members = self.all_members()
        if members:
            self.do("leave", group=BY_HAND, member=self.rng.choice(members))

    def heartbeat(self) -> None:
        """Of a member, a former one, a replaced static one; with its generation, or another."""
        if self.all_members():
            self.do("heartbeat", **self.as_member())

    def as_member(self) -> dict[str, Any]:
        """A member of any time, most often a newer one, with its generation or another."""
        members = self.all_members()
        ahead = {"ahead": self.rng.choice([-1, 1])} if self.rng.random() < 0.2 else {}
        return {"group": BY_HAND, "member": self.rng.choice(members + members[-2:] * 2), **ahead}

    def commit_as_member(self) -> None:
        if self.all_members():
            self.do("commit_offsets", offsets=self.offsets(), **self.as_member())

    def send_offsets_as_member(self) -> None:
        """In a transaction; one that is refused begins none here, in Kafka it does (ADD-09)."""
        current = [who for who in self.identities if who["id"] is not None and (txn := self.txn(who)) is not None]
        if not self.all_members() or not current:
            return
        who, claim = self.rng.choice(current), self.as_member()
        txn = self.txn(who)
        if self.accepts(claim) or (txn is not None and txn.state == "ONGOING" and BY_HAND in txn.groups):
            self.do("raw_txn_offset_commit", **who, offsets=self.offsets(), **claim)

    def accepts(self, claim: dict[str, Any]) -> bool:
        group = self.model.broker.groups.get(BY_HAND, Group())
        try:
            group.check(self.model._claim({"op": "", **claim}), transactional=True)
        except RefusedError:
            return False
        return True


@pytest.mark.slow
@pytest.mark.timeout(0 if MORE else 900)
def test_dif_11_histories_are_the_same_while_everything_changes(
    running: RunningBroker | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DIF-11: deletions in transactions, rebalances, timeouts, rotations, and two clients at once."""
    monkeypatch.setattr(Histories, "running", running)
    run_state_machine_as_test(Churn, settings=SETTINGS)
