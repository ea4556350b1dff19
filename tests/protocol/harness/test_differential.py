"""DIF-11, DIF-13: random operations against the model and against stores, compared after each one.

Old producers are kept and used again, identities of long ago send requests again, the store is opened again, time
passes. A failure prints the operations as JSON lines: saved to a file, they are a script for ``python -m
tests.harness.differential record``. ``python -m tests.harness differential --histories 2000`` runs that many random
histories of each machine instead of the few fixed ones; with ``KAFKA=…/libs`` also against a broker.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis.stateful import initialize, run_state_machine_as_test

from tests.compat.broker import RunningBroker
from tests.harness.model import Producer
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

__all__ = ["running"]


class Applications(Histories):
    """Producers as applications use them, and misuse them: two transactional ids and one without, zombies included."""

    weights: ClassVar[dict[str, int]] = {
        **Histories.weights,
        "init": 3,
        "send": 12,
        "end": 8,
        "call": 3,
        "send_offsets": 5,
        "send_bad_offsets": 1,
        "late_request": 4,
        "fence": 1,
    }
    #: Whether nothing stays in a buffer after a step.
    flushes: ClassVar[bool] = bool(KAFKA)

    @initialize()
    def create_topic(self) -> None:
        super().create_topic()
        for name in (*IDS, None):
            self.do("init", producer=self.new_producer(), id=name, timeout_ms=TIMEOUTS[-1])

    def new_producer(self) -> str:
        return f"P{sum(op['op'] == 'init' for op in self.ops)}"

    def init(self) -> None:
        name = self.rng.choice([*IDS, *IDS, None])
        self.do("init", producer=self.new_producer(), id=name, timeout_ms=self.rng.choice(TIMEOUTS))

    def producer(self) -> tuple[str, Producer]:
        """One of the producers, most often one of the newer ones."""
        names = list(self.model.producers)
        name = self.rng.choice(names + names[-3:] * 3)
        return name, self.model.producers[name]

    def record(self) -> dict[str, Any]:
        return {"value": f"v{len(self.ops)}"}

    def send(self) -> None:
        name, producer = self.producer()
        if producer.transactional and producer.state == "READY":
            self.do("begin", producer=name)
        for _ in range(self.rng.randint(1, 3)):
            self.do("send", producer=name, partition=self.partition(), **self.record())
        # Kafka's producer asks for the abort of a transaction, too, of which nothing was sent (API-07).
        if self.flushes or self.rng.random() < 0.7:
            self.do("flush", producer=name)

    def end(self) -> None:
        open_ones = [name for name, producer in self.model.producers.items() if producer.state == "IN_TRANSACTION"]
        if open_ones:
            self.do(self.rng.choice(["commit", "commit", "abort"]), producer=self.rng.choice(open_ones))

    def call(self) -> None:
        self.do(self.rng.choice(["begin", "flush", "commit", "abort", "close"]), producer=self.producer()[0])

    def send_offsets(self) -> None:
        name, producer = self.producer()
        if producer.transactional and producer.state == "READY":
            self.do("begin", producer=name)
        self.do("send_offsets", producer=name, group=self.rng.choice(GROUPS), offsets=self.offsets())
        if self.flushes or self.rng.random() < 0.5:
            self.do("flush", producer=name)

    def send_bad_offsets(self) -> None:
        """Offsets that are refused, after records and offsets that are not: nothing of them may be committed.

        Java's producer can only be closed after that, or does not come back from the next call: a new one follows.
        """
        ready = [name for name, producer in self.model.producers.items() if producer.state == "READY"]
        ready = [name for name in ready if self.model.producers[name].transactional and self.current(name)]
        if not ready:
            return
        name = self.rng.choice(ready)
        transactional_id = self.model.producers[name].identity.transactional_id
        waits = not KAFKA or self.rng.random() < SHARE_AWAITED
        what = self.rng.choice(["group", "metadata", *(["partition", "topic"] if waits else [])])
        self.do("begin", producer=name)
        self.do("send", producer=name, partition=self.partition(), **self.record())
        self.do("flush", producer=name)
        self.do("send_bad_offsets", producer=name, what=what)
        if not KAFKA or what in {"group", "metadata"}:
            self.do("commit", producer=name)
        if KAFKA or self.rng.random() < 0.3:
            self.do("kill", producer=name)
            self.do("init", producer=self.new_producer(), id=transactional_id, timeout_ms=TIMEOUTS[-1])
        else:
            self.do("abort", producer=name)

    def current(self, name: str) -> bool:
        """Whether a producer is the newest of its transactional id."""
        identity = self.model.producers[name].identity
        txn = self.model.broker.transactions[identity.transactional_id or ""]
        return (identity.producer_id, identity.epoch) == txn.current

    def late_request(self) -> None:
        """A request of an identity that is not the current one any more, which was on its way for long (ADD-07)."""
        stale = [who for who in self.identities if who["id"] is not None and self.txn(who) is None]
        if not stale:
            return
        who, tp = self.rng.choice(stale + stale[-2:]), self.partition()
        what = self.rng.choice(["end", "append", "add"])
        if what == "end":
            self.do("raw_end_txn", **who, commit=self.rng.random() < 0.5)
        elif what == "append":
            self.do("raw_append", **who, partition=tp, sequence=self.rng.randrange(3), records=[[None, "late"]])
        else:
            self.do("raw_add_partitions", **who, partitions=[tp])

    def fence(self) -> None:
        self.do("fence", id=self.rng.choice(IDS))


class Requests(Histories):
    """Requests by hand: what a correct client never sends (DIF-06)."""

    weights: ClassVar[dict[str, int]] = {
        **Histories.weights,
        "init": 3,
        "init_again": 2,
        "append": 16,
        "end": 8,
        "add_partitions": 2,
        "txn_offset_commit": 5,
        "set_epoch": 1,
    }

    @initialize()
    def create_topic(self) -> None:
        super().create_topic()
        for name in (*IDS, None):
            self.do("raw_init", id=name, timeout_ms=TIMEOUTS[-1])

    def init(self) -> None:
        self.do(
            "raw_init", id=self.rng.choice([*IDS, None]), timeout_ms=self.rng.choice([900_001, *TIMEOUTS, *TIMEOUTS])
        )

    def append(self) -> None:
        """The next batch, one that was sent before, or one with a gap."""
        who, tp = self.who(transactional=False), self.partition()
        producer_id, log = self.model._ids.real(who["producer_id"]), self.log(tp)
        window = log.window(producer_id) if log.epoch_of(producer_id) == who["epoch"] else []
        sequence, count = window[-1].last_sequence + 1 if window else 0, self.rng.randint(1, 3)
        back = self.rng.choice([0, 0, 0, 0, 0, 1, 2, 6, -1])
        if back > 0 and window:
            batch = self.rng.choice(window)
            sequence, count = batch.sequence, len(batch.records) + self.rng.choice([0, 0, 1])
        elif back < 0:
            sequence += 3
        txn = self.txn(who)
        if txn is not None and tp not in txn.partitions:
            # Whether a refused batch has added its partition is not the same everywhere (ADD-09); so that comes first.
            self.do("raw_add_partitions", **who, partitions=[tp])
        records = [[None, f"v{len(self.ops)}.{place}"] for place in range(count)]
        self.do("raw_append", **who, partition=tp, sequence=sequence, records=records)

    def end(self) -> None:
        who = self.who()
        epoch = max(0, who["epoch"] + self.rng.choice([0, 0, 0, 0, 1, -1]))
        self.do("raw_end_txn", **{**who, "epoch": epoch}, commit=self.rng.random() < 0.6)

    def add_partitions(self) -> None:
        self.do("raw_add_partitions", **self.who(), partitions=sorted(self.rng.sample(self.partitions(), 2)))

    def txn_offset_commit(self) -> None:
        who, group = self.who(), self.rng.choice(GROUPS)
        txn = self.txn(who)
        wrong = self.rng.random() < 0.2 and (txn is None or group in txn.groups)
        generation = {"generation": 4} if wrong else {}
        self.do("raw_txn_offset_commit", **who, group=group, offsets=self.offsets(), **generation)

    def set_epoch(self) -> None:
        """Near the end of the epochs: the next ones rotate the producer id (INIT-07, TV2-04)."""
        name, epoch = self.rng.choice(IDS), self.rng.choice([32_764, 32_766])
        txn = self.model.broker.transactions[name]
        if txn.state != "ONGOING" and txn.epoch < epoch:
            self.do("set_epoch", id=name, epoch=epoch)
            self.identities.append({"id": name, "producer_id": self._number(txn.producer_id), "epoch": epoch})


@pytest.mark.slow
@pytest.mark.timeout(0 if MORE else 900)
@pytest.mark.parametrize("machine", [Applications, Requests])
def test_dif_11_random_histories_are_the_same_everywhere(
    machine: type[Histories], running: RunningBroker | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DIF-11, DIF-13, and DIF-06 in the requests by hand."""
    monkeypatch.setattr(Histories, "running", running)
    run_state_machine_as_test(machine, settings=SETTINGS)
