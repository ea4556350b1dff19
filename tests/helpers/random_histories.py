"""What all machines of random histories share: the drivers, the comparison, time, restarts, questions (DIF-11)."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.compat.broker import BrokerDriver, RunningBroker
from tests.compat.broker.at_gateway import gateway_comparison
from tests.compat.broker.gateway import GatewayDriver, ServedHistories
from tests.harness.differential import Comparison, MismatchError, ModelDriver, StoreDriver
from tests.harness.differential.difference import Difference
from tests.harness.model import Log, Transaction
from tests.helpers.connections import connection_of

#: Each history runs against stores of these numbers of chains, and the model.
CHAINS = (1, 3)
IDS = ["a", "b"]
GROUPS = ["g", "h"]
MORE = int(os.environ.get("TXNSTORE_DIFFERENTIAL", "0"))
KAFKA = os.environ.get("TXNSTORE_KAFKA")
#: Operations that no history with a broker has: a broker has no injected clock, so no timeout may end by chance.
NOT_BY_A_BROKER = {"tick", "sweep", "compact", "delete_records", "set_epoch"} if KAFKA else set()
TIMEOUTS = (600_000, 900_000) if KAFKA else (10_000, 60_000)
#: How often a step is done in which Java's producer waits until its ``max.block.ms``.
SHARE_AWAITED = 0.05
#: After these and only sometimes, because it takes long, a broker is observed.
SHOWS = {
    "at_once",
    "delete_topic",
    "sweep",
    "flush",
    "commit",
    "abort",
    "restart",
    "raw_append",
    "raw_end_txn",
    "raw_init",
    "commit_positions",
}
SHARE_OBSERVED = 0.3
ALWAYS_OBSERVED = {"clean", "delete_records", "retain"}
#: A broker takes much longer to start than to run a history.
SHARE_RESTARTED = 0.2 if KAFKA else 1.0
LAST = {"op": "look_again"}


class Histories(RuleBasedStateMachine):
    """What all machines share.

    A step is a number that Hypothesis gives: it seeds the choice among :attr:`weights`, the methods without arguments.
    So a failing history is made shorter by leaving out steps, and each step does something sensible.
    """

    weights: ClassVar[dict[str, int]] = {
        "tick": 2,
        "restart": 1,
        "sweep": 1,
        "compact": 1,
        "delete_records": 1,
        "fetch": 2,
        "ask": 1,
        "plain": 1,
    }

    #: The broker that all histories share, and a gateway beside it.
    running: ClassVar[RunningBroker | None] = None
    served: ClassVar[ServedHistories | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(0)
        self.model = ModelDriver()
        self.stores = [StoreDriver(chains, thorough=False) for chains in CHAINS]
        self.comparisons = [Comparison() for _ in CHAINS]
        self.broker = BrokerDriver(self.running) if self.running is not None else None
        self.beside_the_broker = Comparison("kafka", of_model=True)
        self.gateway = GatewayDriver(self.served) if self.served is not None else None
        self.gateway_beside_the_broker = gateway_comparison("kafka")
        self.ops: list[dict[str, Any]] = []
        self.failed = False
        self.compacted = False
        #: Every identity that was ever granted.
        self.identities: list[dict[str, Any]] = []

    @initialize()
    def create_topic(self) -> None:
        self.do("create_topic", topic="t", partitions=3)

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
        self.compacted = self.compacted or name == "compact"
        expected = {"error": None, **self.model.apply(op), "state": self.model.observe()}
        for store, comparison in zip(self.stores, self.comparisons, strict=True):
            actual = store.apply(op)
            differences = comparison.step(op, expected, {**actual, "state": store.observe()})
            self.check(f"a store of {len(connection_of(store.store).chains)} chains", differences)
        if self.broker is not None:
            observed = {"error": None, **self.broker.apply(op)}
            if observed.get("answer", ...) is None:
                del observed["answer"]
            seldom = name in SHOWS and random.Random(len(self.ops)).random() < SHARE_OBSERVED
            if seldom or name in ALWAYS_OBSERVED:
                observed["state"] = self.broker.observe()
            else:
                self.broker.settle()
            self.check("the model beside a broker", self.beside_the_broker.step(op, observed, expected))
            self.do_at_gateway(op, observed)
        answer = expected.get("answer")
        if isinstance(answer, dict) and "producer_id" in answer:
            owner = values.get("id") or self._owner(values)
            self.identities.append({"id": owner, "producer_id": answer["producer_id"], "epoch": answer["epoch"]})
        return answer

    def do_at_gateway(self, op: dict[str, Any], observed: dict[str, Any]) -> None:
        """Run an operation at a gateway, with the same clients, and compare it with what was observed at the broker."""
        if self.gateway is None:
            return
        actual = {"error": None, **self.gateway.apply(op)}
        if "state" in observed:
            actual["state"] = self.gateway.observe()
        else:
            self.gateway.settle()
        self.check("a gateway beside a broker", self.gateway_beside_the_broker.step(op, observed, actual))

    def check(self, name: str, differences: list[Difference]) -> None:
        if differences:
            self.failed = True
            raise MismatchError(name, self.ops, differences)

    def _owner(self, values: dict[str, Any]) -> str | None:
        name = values.get("producer")
        return self.model.producers[name].identity.transactional_id if name is not None else None

    def teardown(self) -> None:
        if self.broker is not None:
            observed = {} if self.failed else {"state": self.broker.look_again()}
            self.broker.close()
            if self.gateway is not None:
                actual = {} if self.failed else {"state": self.gateway.look_again()}
                self.gateway.close()
                different = self.gateway_beside_the_broker.step(LAST, observed, actual) if actual else []
                self.check("a gateway observed again", different)
            self.check("everything observed again", self.beside_the_broker.step(LAST, observed, self.everything()))
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
        current = self.model.broker.transactions.get(who["id"] or "")
        if current is None or (self._number(current.producer_id), current.epoch) != (who["producer_id"], who["epoch"]):
            return None
        return current

    def _number(self, producer_id: int) -> int:
        return self.model._ids.number(producer_id)

    def log(self, partition: str) -> Log:
        return self.model.broker.logs[partition]

    def nothing_expired(self) -> bool:
        """A blocked reader or a compaction would end an expired transaction; in Kafka only the sweep does (REC-01)."""
        now = self.model.broker.now
        txns = self.model.broker.transactions.values()
        return all(txn.started_at is None or txn.started_at + txn.timeout_ms >= now for txn in txns)

    def partitions(self) -> list[str]:
        """The partitions of the topics that exist."""
        return sorted(self.model.broker.logs)

    def partition(self) -> str:
        """One of them."""
        return self.rng.choice(self.partitions())

    def offsets(self) -> dict[str, int]:
        """Positions in one or two partitions."""
        return {tp: self.rng.randrange(10) for tp in self.rng.sample(self.partitions(), self.rng.choice([1, 1, 2]))}

    def who(self, *, transactional: bool = True) -> dict[str, Any]:
        """An identity of any time; most often a current one."""
        identities = [who for who in self.identities if not transactional or who["id"] is not None]
        return self.rng.choice(
            identities + 4 * [who for who in identities if who["id"] is None or self.txn(who) is not None]
        )

    def init_again(self) -> None:
        """KIP-360: an init that carries an identity, the current one or an older one."""
        who = self.who()
        # To an old one a broker says no, too, but not before it has ended the transaction that is open (INIT-10).
        if not KAFKA or self.txn(who) is not None or self.model.broker.transactions[who["id"]].state != "ONGOING":
            self.do("raw_init", **who, timeout_ms=TIMEOUTS[-1])

    # Time and questions -----------------------------------------------------------------------------------------------

    def tick(self) -> None:
        self.do("tick", ms=self.rng.choice([1, 9_999, 10_001, 60_001]))

    def restart(self) -> None:
        if self.rng.random() < SHARE_RESTARTED:
            self.do("restart")

    def sweep(self) -> None:
        self.do("sweep")

    def compact(self) -> None:
        if self.nothing_expired():
            self.do("compact", topic="t")

    def delete_records(self) -> None:
        """Up to any offset: most often one that is allowed, so that logs begin at different places."""
        if self.nothing_expired():
            tp = self.partition()
            limit = self.rng.choice(
                [self.log(tp).last_stable_offset, self.log(tp).last_stable_offset, self.log(tp).end]
            )
            self.do("delete_records", partition=tp, offset=self.rng.choice([-2, -1, *range(limit + 2)]))

    def fetch(self) -> None:
        tp, isolation = self.partition(), self.rng.choice(["read_committed", "read_uncommitted"])
        if isolation == "read_uncommitted" or self.nothing_expired():
            self.do("end_offsets", isolation=isolation)
        # What a compaction has dropped is not there to be fetched (CMP-17).
        if self.nothing_expired() and (isolation == "read_committed" or not self.compacted):
            start = self.rng.randrange(self.log(tp).end + 2)
            self.do("fetch", partition=tp, isolation=isolation, max=self.rng.choice([1, 3, 500]), **{"from": start})

    def ask(self) -> None:
        name, tp = self.rng.choice(IDS), self.partition()
        self.do("describe_txn", id=name)
        self.do("describe_producers", partition=tp)
        self.do("list_txn", state=self.rng.choice(["ONGOING", "EMPTY", "COMPLETE_COMMIT"]))
        self.do("committed", group=self.rng.choice(GROUPS), partition=tp, require_stable=self.rng.random() < 0.7)

    def plain(self) -> None:
        self.do("commit_offsets", group=self.rng.choice(GROUPS), offsets=self.offsets())


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
    """A broker, if ``KAFKA`` names one; then a gateway on a store of three chains is beside it."""
    if not KAFKA:
        yield None
        return
    with RunningBroker(Path(KAFKA)) as broker, ServedHistories(Path(KAFKA), chains=3) as Histories.served:
        yield broker
    Histories.served = None
