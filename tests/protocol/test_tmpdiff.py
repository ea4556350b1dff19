"""DIF-11, DIF-13: random operations against the model and against stores, compared after each one.

Old producers are kept and used again, identities of long ago send requests again, the store is opened again, time
passes. A failure prints the operations as JSON lines: saved to a file, they are a script for
``python -m txnstore.testing.differential record``. ``TXNSTORE_DIFFERENTIAL=2000`` runs that many random histories of
each machine instead of the few fixed ones.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from txnstore.testing.differential import Comparison, MismatchError, ModelDriver, StoreDriver
from txnstore.testing.model import Log, Producer, Transaction

#: Each history runs against a store of so many chains, and the model.
CHAINS = (1, 3)
IDS = ["a", "b"]
PARTITIONS = ["t-0", "t-1", "t-2"]
GROUPS = ["g", "h"]
MORE = int(os.environ.get("TXNSTORE_DIFFERENTIAL", "0"))

partitions = st.sampled_from(PARTITIONS)
groups = st.sampled_from(GROUPS)
numbers = st.integers(0, 99)
offsets = st.dictionaries(partitions, st.integers(0, 9), min_size=1, max_size=2)


class Histories(RuleBasedStateMachine):
    """What both machines share: the drivers, the comparison, time, restarts, questions."""

    def __init__(self) -> None:
        super().__init__()
        self.model = ModelDriver()
        self.stores = [StoreDriver(chains, thorough=False) for chains in CHAINS]
        self.comparisons = [Comparison() for _ in CHAINS]
        self.ops: list[dict[str, Any]] = []
        #: Every identity that anybody was ever granted.
        self.identities: list[dict[str, Any]] = []

    @initialize()
    def create_topic(self) -> None:
        self.do("create_topic", topic="t", partitions=len(PARTITIONS))

    def do(self, name: str, /, **values: Any) -> Any:
        """Run an operation everywhere; the answer, or None if it was refused."""
        op = {"op": name, **values}
        self.ops.append(op)
        expected = {"error": None, **self.model.apply(op), "state": self.model.observe()}
        for store, comparison in zip(self.stores, self.comparisons, strict=True):
            actual = store.apply(op)
            differences = comparison.step(op, expected, {**actual, "state": store.observe()})
            if differences:
                raise MismatchError(f"a store of {len(store.store.chains)} chains", self.ops, differences)
        answer = expected.get("answer")
        if isinstance(answer, dict) and "producer_id" in answer:
            owner = values.get("id") or self._owner(values)
            self.identities.append({"id": owner, "producer_id": answer["producer_id"], "epoch": answer["epoch"]})
        return answer

    def _owner(self, values: dict[str, Any]) -> str | None:
        name = values.get("producer")
        return self.model.producers[name].identity.transactional_id if name is not None else None

    def teardown(self) -> None:
        for store, comparison in zip(self.stores, self.comparisons, strict=True):
            last = {"op": "look_again"}
            differences = comparison.step(last, {"state": self.model.observe()}, {"state": store.look_again()})
            store.close()
            assert not differences, MismatchError("everything read again", [*self.ops, last], differences)

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
        """A reader that is blocked by an expired transaction would end it; Kafka's only waits (REC-01)."""
        now = self.model.broker.now
        txns = self.model.broker.transactions.values()
        return all(txn.started_at is None or txn.started_at + txn.timeout_ms >= now for txn in txns)

    # Time and questions -----------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 9_999, 10_001, 60_001]), sweep=st.booleans())
    def tick(self, ms: int, sweep: bool) -> None:
        self.do("tick", ms=ms)
        if sweep:
            self.do("sweep")

    @rule(what=st.sampled_from(["restart", "restart", "sweep", "compact"]))
    def maintain(self, what: str) -> None:
        self.do(what, **({"topic": "t"} if what == "compact" else {}))

    @rule(partition=partitions, start=st.integers(0, 30), committed=st.booleans(), most=st.sampled_from([1, 3, 500]))
    def fetch(self, partition: str, start: int, committed: bool, most: int) -> None:
        isolation = "read_committed" if committed else "read_uncommitted"
        self.do("end_offsets", isolation=isolation)
        # What a compaction has dropped is not there to be fetched, and may be what a reader of everything begins at.
        if self.nothing_expired() and (committed or not self.comparisons[0].compacted):
            self.do("fetch", partition=partition, isolation=isolation, max=most, **{"from": start})

    @rule(group=groups, partition=partitions, stable=st.booleans())
    def committed(self, group: str, partition: str, stable: bool) -> None:
        self.do("committed", group=group, partition=partition, require_stable=stable)

    @rule(group=groups, offsets=offsets)
    def commit_offsets(self, group: str, offsets: dict[str, int]) -> None:
        self.do("commit_offsets", group=group, offsets=offsets)


class Applications(Histories):
    """Producers as applications use them, and misuse them: two transactional ids and one without, zombies included."""

    @rule(who=st.sampled_from([*IDS, *IDS, None]), timeout_ms=st.sampled_from([10_000, 60_000]))
    def init(self, who: str | None, timeout_ms: int) -> None:
        self.do("init", producer=f"P{len(self.model.producers)}", id=who, timeout_ms=timeout_ms)

    def producer(self, number: int) -> tuple[str, Producer]:
        """One of the producers; the newer ones twice as often."""
        names = list(self.model.producers)
        name = (names + names[-3:])[number % (len(names) + len(names[-3:]))]
        return name, self.model.producers[name]

    @precondition(lambda self: self.model.producers)
    @rule(number=numbers, partition=partitions, count=st.integers(1, 3), flush=st.booleans())
    def send(self, number: int, partition: str, count: int, flush: bool) -> None:
        name, producer = self.producer(number)
        if producer.transactional and producer.state == "READY":
            self.do("begin", producer=name)
        for _ in range(count):
            self.do("send", producer=name, partition=partition, value=f"v{len(self.ops)}")
        if flush:
            self.do("flush", producer=name)

    @precondition(lambda self: self.model.producers)
    @rule(number=numbers, what=st.sampled_from(["begin", "flush", "commit", "commit", "abort", "close"]))
    def call(self, number: int, what: str) -> None:
        self.do(what, producer=self.producer(number)[0])

    @precondition(lambda self: self.model.producers)
    @rule(number=numbers, group=groups, offsets=offsets, flush=st.booleans())
    def send_offsets(self, number: int, group: str, offsets: dict[str, int], flush: bool) -> None:
        name, _ = self.producer(number)
        self.do("send_offsets", producer=name, group=group, offsets=offsets)
        if flush:
            self.do("flush", producer=name)

    @precondition(lambda self: self.model.producers)
    @rule(number=numbers, partition=partitions, commit=st.booleans(), what=st.sampled_from(["end", "append", "add"]))
    def late_request(self, number: int, partition: str, commit: bool, what: str) -> None:
        """A request of an identity that is not the current one any more, which was on its way for long (ADD-07)."""
        stale = [who for who in self.identities if who["id"] is not None and self.txn(who) is None]
        if not stale:
            return
        who = stale[number % len(stale)]
        if what == "end":
            self.do("raw_end_txn", **who, commit=commit)
        elif what == "append":
            self.do("raw_append", **who, partition=partition, sequence=number % 3, records=[[None, "late"]])
        else:
            self.do("raw_add_partitions", **who, partitions=[partition])

    @precondition(lambda self: self.model.broker.transactions)
    @rule(who=st.sampled_from(IDS))
    def fence(self, who: str) -> None:
        if who in self.model.broker.transactions:
            self.do("fence", id=who)


class Requests(Histories):
    """Requests by hand: what a correct client never sends (DIF-06)."""

    @rule(who=st.sampled_from([*IDS, *IDS, None]), timeout_ms=st.sampled_from([0, 10_000, 60_000, 60_000]))
    def init(self, who: str | None, timeout_ms: int) -> None:
        self.do("raw_init", id=who, timeout_ms=timeout_ms)

    def who(self, number: int, *, transactional: bool = True) -> dict[str, Any] | None:
        """An identity of any time; the newer ones more often."""
        known = [who for who in self.identities if not transactional or who["id"] is not None]
        known += known[-2:] * 4
        return known[number % len(known)] if known else None

    @rule(number=numbers)
    def init_again(self, number: int) -> None:
        """KIP-360: an init that carries an identity, the current one or an older one."""
        who = self.who(number)
        if who is not None:
            self.do("raw_init", **who)

    @rule(
        number=numbers, partition=partitions, back=st.sampled_from([0, 0, 0, 0, 1, 2, 6, -1]), count=st.integers(1, 3)
    )
    def append(self, number: int, partition: str, back: int, count: int) -> None:
        """The next batch, one that was sent before, or one with a gap."""
        who = self.who(number, transactional=False)
        if who is None:
            return
        producer_id, log = self.model._ids.real(who["producer_id"]), self.log(partition)
        window = log.window(producer_id) if log.epoch_of(producer_id) == who["epoch"] else []
        sequence = window[-1].last_sequence + 1 if window else 0
        if back > 0 and window:
            batch = window[max(0, len(window) - back)]
            sequence, count = batch.sequence, len(batch.records) + (back == 2)
        elif back < 0:
            sequence += 3
        txn = self.txn(who)
        if txn is not None and partition not in txn.partitions:
            # Whether a refused batch has added its partition is not the same everywhere (ADD-09); so that comes first.
            self.do("raw_add_partitions", **who, partitions=[partition])
        records = [[None, f"v{len(self.ops)}.{place}"] for place in range(count)]
        self.do("raw_append", **who, partition=partition, sequence=sequence, records=records)

    @rule(number=numbers, ahead=st.sampled_from([0, 0, 0, 1, -1]), commit=st.booleans())
    def end(self, number: int, ahead: int, commit: bool) -> None:
        who = self.who(number)
        if who is not None:
            self.do("raw_end_txn", **{**who, "epoch": max(0, who["epoch"] + ahead)}, commit=commit)

    @rule(number=numbers, some=st.sets(partitions, min_size=1, max_size=2))
    def add_partitions(self, number: int, some: set[str]) -> None:
        who = self.who(number)
        if who is not None:
            self.do("raw_add_partitions", **who, partitions=sorted(some))

    @rule(number=numbers, group=groups, offsets=offsets, wrong=st.sampled_from([False, False, False, True]))
    def txn_offset_commit(self, number: int, group: str, offsets: dict[str, int], wrong: bool) -> None:
        who = self.who(number)
        if who is None:
            return
        txn = self.txn(who)
        generation = {"generation": 4} if wrong and (txn is None or group in txn.groups) else {}
        self.do("raw_txn_offset_commit", **who, group=group, offsets=offsets, **generation)

    @rule(who=st.sampled_from(IDS), epoch=st.sampled_from([32_764, 32_766]))
    def set_epoch(self, who: str, epoch: int) -> None:
        """Near the end of the epochs: the next ones rotate the producer id (INIT-07, TV2-04)."""
        txn = self.model.broker.transactions.get(who)
        if txn is not None and txn.state != "ONGOING" and txn.epoch < epoch:
            self.do("set_epoch", id=who, epoch=epoch)
            self.identities.append({"id": who, "producer_id": self._number(txn.producer_id), "epoch": epoch})

    @rule(who=st.sampled_from(IDS), partition=partitions)
    def ask(self, who: str, partition: str) -> None:
        self.do("describe_txn", id=who)
        self.do("describe_producers", partition=partition)
        self.do("list_txn", state="ONGOING")


TestApplications = Applications.TestCase
TestRequests = Requests.TestCase
TestApplications.settings = TestRequests.settings = settings(
    derandomize=not MORE,
    print_blob=True,
    deadline=None,
    database=None,
    max_examples=MORE or 25,
    stateful_step_count=40,
    phases=[Phase.generate],  # Explaining a failure traces every line, which takes minutes here.
    suppress_health_check=list(HealthCheck),
)
