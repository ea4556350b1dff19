"""DIF-11, DIF-13: random operations against the model and against stores, compared after each one.

Old producers are kept and used again, identities of long ago send requests again, the store is opened again, time
passes. A failure prints the operations as JSON lines: saved to a file, they are a script for
``python -m tests.harness.differential record``. ``make differential HISTORIES=2000`` runs that many random histories
of each machine instead of the few fixed ones; with ``KAFKA=…/libs`` also against a broker.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.harness.differential import Comparison, MismatchError, ModelDriver, StoreDriver
from tests.harness.differential.compare import Difference
from tests.harness.kafka import BrokerDriver, RunningBroker
from tests.harness.model import Log, Producer, Transaction
from tests.helpers.connections import connection_of

#: Each history runs against stores of these numbers of chains, and the model.
CHAINS = (1, 3)
IDS = ["a", "b"]
PARTITIONS = ["t-0", "t-1", "t-2"]
GROUPS = ["g", "h"]
MORE = int(os.environ.get("TXNSTORE_DIFFERENTIAL", "0"))
KAFKA = os.environ.get("TXNSTORE_KAFKA")
#: What a broker cannot do, or not in time that is its own; its time-outs must not be over by chance.
NOT_BY_A_BROKER = {"tick", "sweep", "compact", "set_epoch"} if KAFKA else set()
TIMEOUTS = (600_000, 900_000) if KAFKA else (10_000, 60_000)
#: After these and only sometimes, because it takes long, a broker is observed.
SHOWS = {"flush", "commit", "abort", "restart", "raw_append", "raw_end_txn", "raw_init", "commit_positions"}
SHARE_OBSERVED = 0.3
LAST = {"op": "look_again"}


class Histories(RuleBasedStateMachine):
    """What both machines share: the drivers, the comparison, time, restarts, questions.

    A step is a number that Hypothesis gives: it seeds the choice among :attr:`weights`, the methods without arguments.
    So a failing history is made shorter by leaving out steps, and each step does something sensible.
    """

    weights: ClassVar[dict[str, int]] = {
        "tick": 2,
        "restart": 1,
        "sweep": 1,
        "compact": 1,
        "fetch": 2,
        "ask": 1,
        "plain": 1,
    }

    #: The broker that all histories share.
    running: ClassVar[RunningBroker | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(0)
        self.model = ModelDriver()
        self.stores = [StoreDriver(chains, thorough=False) for chains in CHAINS]
        self.comparisons = [Comparison() for _ in CHAINS]
        self.broker = BrokerDriver(self.running) if self.running is not None else None
        self.beside_the_broker = Comparison("kafka", of_model=True)
        self.ops: list[dict[str, Any]] = []
        self.failed = False
        #: Every identity that was ever granted.
        self.identities: list[dict[str, Any]] = []

    @initialize()
    def create_topic(self) -> None:
        self.do("create_topic", topic="t", partitions=len(PARTITIONS))

    @rule(seed=st.integers(0, 2**24))
    def step(self, seed: int) -> None:
        self.rng = random.Random(seed)
        weights = {name: weight for name, weight in self.weights.items() if name not in NOT_BY_A_BROKER}
        [name] = self.rng.choices(list(weights), list(weights.values()))
        getattr(self, name)()

    def do(self, name: str, /, **values: Any) -> Any:
        """Run an operation everywhere; the answer, or None if it was refused."""
        op = {"op": name, **values}
        self.ops.append(op)
        expected = {"error": None, **self.model.apply(op), "state": self.model.observe()}
        for store, comparison in zip(self.stores, self.comparisons, strict=True):
            actual = store.apply(op)
            differences = comparison.step(op, expected, {**actual, "state": store.observe()})
            self.check(f"a store of {len(connection_of(store.store).chains)} chains", differences)
        if self.broker is not None:
            told = {"error": None, **self.broker.apply(op)}
            if told.get("answer", ...) is None:
                del told["answer"]
            if name in SHOWS and random.Random(len(self.ops)).random() < SHARE_OBSERVED:
                told["state"] = self.broker.observe()
            else:
                self.broker.settle()
            self.check("the model beside a broker", self.beside_the_broker.step(op, told, expected))
        answer = expected.get("answer")
        if isinstance(answer, dict) and "producer_id" in answer:
            owner = values.get("id") or self._owner(values)
            self.identities.append({"id": owner, "producer_id": answer["producer_id"], "epoch": answer["epoch"]})
        return answer

    def check(self, name: str, differences: list[Difference]) -> None:
        if differences:
            self.failed = True
            raise MismatchError(name, self.ops, differences)

    def _owner(self, values: dict[str, Any]) -> str | None:
        name = values.get("producer")
        return self.model.producers[name].identity.transactional_id if name is not None else None

    def teardown(self) -> None:
        if self.broker is not None:
            told = {} if self.failed else {"state": self.broker.look_again()}
            self.broker.close()
            self.check("everything observed again", self.beside_the_broker.step(LAST, told, self.everything()))
        for store, comparison in zip(self.stores, self.comparisons, strict=True):
            if not self.failed:
                differences = comparison.step(LAST, self.everything(), {"state": store.look_again()})
                assert not differences, MismatchError("everything read again", [*self.ops, LAST], differences)
            store.close()

    def everything(self) -> dict[str, Any]:
        return {"state": self.model.observe()}

    # What the model knows, to choose by -------------------------------------------------------------------------------

    def txn(self, who: dict[str, Any]) -> Transaction | None:
        """The transaction of an identity, if it is the current one."""
        found = self.model.broker.transactions.get(who["id"] or "")
        if found is None or (self._number(found.producer_id), found.epoch) != (who["producer_id"], who["epoch"]):
            return None
        return found

    def _number(self, producer_id: int) -> int:
        return self.model._ids.number(producer_id)

    def log(self, partition: str) -> Log:
        return self.model.broker.logs[partition]

    def nothing_expired(self) -> bool:
        """A blocked reader or a compaction would end an expired transaction; in Kafka only the sweep does (REC-01)."""
        now = self.model.broker.now
        txns = self.model.broker.transactions.values()
        return all(txn.started_at is None or txn.started_at + txn.timeout_ms >= now for txn in txns)

    def offsets(self) -> dict[str, int]:
        """Positions in one or two partitions."""
        return {tp: self.rng.randrange(10) for tp in self.rng.sample(PARTITIONS, self.rng.choice([1, 1, 2]))}

    # Time and questions -----------------------------------------------------------------------------------------------

    def tick(self) -> None:
        self.do("tick", ms=self.rng.choice([1, 9_999, 10_001, 60_001]))

    def restart(self) -> None:
        self.do("restart")

    def sweep(self) -> None:
        self.do("sweep")

    def compact(self) -> None:
        if self.nothing_expired():
            self.do("compact", topic="t")

    def fetch(self) -> None:
        tp, isolation = self.rng.choice(PARTITIONS), self.rng.choice(["read_committed", "read_uncommitted"])
        self.do("end_offsets", isolation=isolation)
        # What a compaction has dropped is not there to be fetched (CMP-17).
        if self.nothing_expired() and (isolation == "read_committed" or not self.comparisons[0].compacted):
            start = self.rng.randrange(self.log(tp).end + 2)
            self.do("fetch", partition=tp, isolation=isolation, max=self.rng.choice([1, 3, 500]), **{"from": start})

    def ask(self) -> None:
        name, tp = self.rng.choice(IDS), self.rng.choice(PARTITIONS)
        self.do("describe_txn", id=name)
        self.do("describe_producers", partition=tp)
        self.do("list_txn", state=self.rng.choice(["ONGOING", "EMPTY", "COMPLETE_COMMIT"]))
        self.do("committed", group=self.rng.choice(GROUPS), partition=tp, require_stable=self.rng.random() < 0.7)

    def plain(self) -> None:
        self.do("commit_offsets", group=self.rng.choice(GROUPS), offsets=self.offsets())


class Applications(Histories):
    """Producers as applications use them, and misuse them: two transactional ids and one without, zombies included."""

    weights: ClassVar[dict[str, int]] = {
        **Histories.weights,
        "init": 3,
        "send": 12,
        "end": 8,
        "call": 3,
        "send_offsets": 5,
        "late_request": 4,
        "fence": 1,
    }

    @initialize()
    def create_topic(self) -> None:
        super().create_topic()
        for name in (*IDS, None):
            self.do("init", producer=f"P{len(self.model.producers)}", id=name, timeout_ms=TIMEOUTS[-1])

    def init(self) -> None:
        name = self.rng.choice([*IDS, *IDS, None])
        self.do("init", producer=f"P{len(self.model.producers)}", id=name, timeout_ms=self.rng.choice(TIMEOUTS))

    def producer(self) -> tuple[str, Producer]:
        """One of the producers, most often one of the newer ones."""
        names = list(self.model.producers)
        name = self.rng.choice(names + names[-3:] * 3)
        return name, self.model.producers[name]

    def send(self) -> None:
        name, producer = self.producer()
        if producer.transactional and producer.state == "READY":
            self.do("begin", producer=name)
        for _ in range(self.rng.randint(1, 3)):
            self.do("send", producer=name, partition=self.rng.choice(PARTITIONS), value=f"v{len(self.ops)}")
        # Kafka's producer asks for the abort of a transaction, too, of which nothing was sent (API-07).
        if KAFKA or self.rng.random() < 0.7:
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
        if KAFKA or self.rng.random() < 0.5:
            self.do("flush", producer=name)

    def late_request(self) -> None:
        """A request of an identity that is not the current one any more, which was on its way for long (ADD-07)."""
        stale = [who for who in self.identities if who["id"] is not None and self.txn(who) is None]
        if not stale:
            return
        who, tp = self.rng.choice(stale + stale[-2:]), self.rng.choice(PARTITIONS)
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

    def who(self, *, transactional: bool = True) -> dict[str, Any]:
        """An identity of any time; most often a current one."""
        known = [who for who in self.identities if not transactional or who["id"] is not None]
        return self.rng.choice(known + 4 * [who for who in known if who["id"] is None or self.txn(who) is not None])

    def init_again(self) -> None:
        """KIP-360: an init that carries an identity, the current one or an older one."""
        who = self.who()
        # To an old one a broker says no, too, but not before it has ended the transaction that is open (INIT-10).
        if not KAFKA or self.txn(who) is not None or self.model.broker.transactions[who["id"]].state != "ONGOING":
            self.do("raw_init", **who, timeout_ms=TIMEOUTS[-1])

    def append(self) -> None:
        """The next batch, one that was sent before, or one with a gap."""
        who, tp = self.who(transactional=False), self.rng.choice(PARTITIONS)
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
        self.do("raw_add_partitions", **self.who(), partitions=sorted(self.rng.sample(PARTITIONS, 2)))

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


SETTINGS = settings(
    derandomize=not MORE,
    print_blob=True,
    deadline=None,
    database=None,
    max_examples=MORE or 15,
    stateful_step_count=40,
    # Explaining a failure traces every line, which takes minutes here; and a broker starts for each try of a shrinking.
    phases=[Phase.generate] if KAFKA else [Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker | None]:
    """A broker, if ``KAFKA`` names one."""
    if not KAFKA:
        yield None
        return
    with RunningBroker(Path(KAFKA)) as found:
        yield found


@pytest.mark.timeout(0 if MORE else 300)
@pytest.mark.parametrize("machine", [Applications, Requests])
def test_dif_11_random_histories_are_the_same_everywhere(
    machine: type[Histories], running: RunningBroker | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DIF-11, DIF-13, and DIF-06 in the requests by hand."""
    monkeypatch.setattr(Histories, "running", running)
    run_state_machine_as_test(machine, settings=SETTINGS)
