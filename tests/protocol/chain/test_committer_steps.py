"""Processes that share entries stand still, are cut off, or die, at each of their requests and messages in turn.

Commands that concern each other are under way: a transaction ends while another process aborts it, and gateways ask for
principals of which some are refused. What callers were told must be what the entries hold, each command once.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.harness.simulation.handing import Handing
from tests.helpers.committing import Action, Place, Process, a_place
from tests.helpers.sessions import inlined
from tests.helpers.shell import entries, topic
from txnstore.core.authorization.model import Acl
from txnstore.core.catalog.model import CreateTopic
from txnstore.core.invariants.check import check_view
from txnstore.core.log.commands import Append
from txnstore.core.model import ProducerIdentity, TopicPartition
from txnstore.core.transactions.commands import AbortTxn
from txnstore.errors import StorageError, TxnStoreError, UnknownOutcomeError

T, U = TopicPartition("t", 0), TopicPartition("u", 0)
#: Longer than a process waits for an answer, and longer than all timeouts, in ms.
SHORTLY, LONG = 5_000, 200_000
ACTIONS: dict[str, Action] = {
    "stands still": lambda process: process.stand_still(SHORTLY),
    "sleeps": lambda process: process.stand_still(LONG),
    "is cut off": Process.cut,
    "dies": Process.kill,
}


class Outcomes:
    """What callers were told of the records and the commands that they have asked for, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, bool | None] = {}

    def of(self, name: str, work: Callable[[], object]) -> Callable[[], None]:
        """Work of which is recorded whether it has happened; None: that is not known, or its process has died."""

        def run() -> None:
            self.by_name[name] = None
            try:
                self.note(name, work())
            except TxnStoreError as error:
                self.note(name, error)

        return run

    def note(self, name: str, answer: object) -> None:
        if isinstance(answer, UnknownOutcomeError):
            return
        assert not isinstance(answer, StorageError), "no request fails"
        self.by_name[name] = not isinstance(answer, Exception)

    def check(self, found: dict[str, int]) -> None:
        """What has happened is found once, what was refused is not, and what is not known at most once."""
        for name, happened in self.by_name.items():
            assert found.get(name, 0) in ((0, 1) if happened is None else (int(happened),)), (name, happened, found)


def append(process: Process, tp: TopicPartition, value: str) -> Callable[[], object]:
    return lambda: process.connection.submit(Append(ProducerIdentity(), (inlined(tp, -1, value),)))


def transactions(outcomes: Outcomes, *processes: Process) -> list[Callable[[], object]]:
    """One process ends the transaction that another one aborts; both, and the committer, append to another topic."""
    committer, one, other = processes
    committer.store.create_topic("t")
    committer.store.create_topic("u")
    producer = other.store.producer("id", linger=None)
    producer.begin_transaction()
    producer.send("t", b"in transaction")
    producer.flush()
    abort = AbortTxn("id", (producer.producer_id, producer.epoch), expired_only=True)
    return [
        outcomes.of("in transaction", producer.commit_transaction),
        outcomes.of("of the caller", append(one, U, "of the caller")),
        lambda: one.connection.submit(abort),
        outcomes.of("of the committer", append(committer, U, "of the committer")),
    ]


def principals(outcomes: Outcomes, *processes: Process) -> list[Callable[[], object]]:
    """Each process is a gateway: it asks for two principals that may write, and for one between them that may not."""
    committer = processes[0]
    for name in ("alice", "carol"):
        committer.store.acls.create(Acl(f"User:{name}", "ALLOW", "WRITE", "TOPIC", "t"))
    committer.store.create_topic("t")
    committer.store.create_topic("u")
    committer.store.acls.enable([committer.store.principal])

    def ask(process: Process) -> None:
        asked = [f"{name} by {process.name}" for name in ("alice", "bob", "carol")]
        outcomes.by_name.update(dict.fromkeys(asked))
        answers = process.connection.submit_all(
            [(Append(ProducerIdentity(), (inlined(T, -1, each),)), f"User:{each.split()[0]}") for each in asked]
        )
        for name, answer in zip(asked, answers, strict=True):
            outcomes.note(name, answer)

    return [lambda process=process: ask(process) for process in processes]  # type: ignore[misc]


def values(place: Place) -> dict[str, int]:
    """How often each value is stored, by all that a new reader finds; its principal may have written it."""
    reader = place.process("reader")
    assert check_view(reader.connection.view()) == []
    assert reader.store.verify(deep=True).violations == ()
    stored = [value.decode() for name in "tu" for value in reader.store.scan(name).to_table()["value"].to_pylist()]
    assert not any(value.startswith("bob") for value in stored)
    for process in place.processes[:-1]:
        if not process.dead:
            process.chain.refresh()
            assert process.chain.state == reader.chain.state
    return {value: stored.count(value) for value in stored}


Scenario = Callable[..., list[Callable[[], object]]]


def run(scenario: Scenario, victim: int, step: int = 0, action: Action | None = None) -> int:
    """Let something happen at a step of one of three processes; returns how many it takes."""
    handing, outcomes, taken = Handing(), Outcomes(), list[int]()
    with a_place() as place, handing.watched():

        def script() -> None:
            processes = place.committer_and_callers("a", "b", "c")
            works = scenario(outcomes, *processes)
            before = processes[victim].steps
            if action is not None:
                processes[victim].at_step[before + step] = action
            place.in_one_entry(processes[0], *works)
            taken.append(processes[victim].steps - before)
            place.scheduler.sleep(LONG)
            for process in processes:
                if not process.dead:  # All go on.
                    process.connection.submit(CreateTopic(topic(f"end-{process.name}")))
            outcomes.check(values(place))

        place.run(script)
        assert list(handing.anomalies(place.archive(), 1)) == []
        if action is None:
            assert sum(len(entry.carried or ()) for entry in entries(place.bucket)) >= 4
    return taken[0]


@pytest.mark.slow
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("victim", ["committer", "caller", "other caller"])
@pytest.mark.parametrize("scenario", [transactions, principals])
def test_at_whatever_step_something_happens_to_a_process(scenario: Scenario, victim: str, action: str) -> None:
    number = ["committer", "caller", "other caller"].index(victim)
    steps = run(scenario, number)
    assert steps >= 5
    for step in range(1, steps + 1):
        run(scenario, number, step, ACTIONS[action])
