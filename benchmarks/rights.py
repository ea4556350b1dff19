"""What it costs to check rights: a command in a store with 10,000 rules, and a commit beside one without rules."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import txnstore
from benchmarks.measure import Result, interleaved, median_ms
from txnstore.core.authorization.model import CLUSTER, Acl
from txnstore.core.authorization.rights import check_rights
from txnstore.core.authorization.rules import Authorization
from txnstore.core.commands import COMMANDS
from txnstore.core.log.commands import Append
from txnstore.core.log.model import NewBatch, Segment
from txnstore.core.model import Map, ProducerIdentity
from txnstore.core.state import first_state
from txnstore.store import Store

CALLS, ROUNDS, COMMITS = 20_000, 7, 200
OWNER = "User:owner"
OWN = [
    Acl(OWNER, "ALLOW", "WRITE", "TOPIC", "t"),
    Acl(OWNER, "ALLOW", "WRITE", "TRANSACTIONAL_ID", "id"),
    Acl(OWNER, "ALLOW", "CLUSTER_ACTION", "CLUSTER", CLUSTER),  # Else it would write no checkpoints.
    Acl(OWNER, "ALLOW", "ALTER", "CLUSTER", CLUSTER),
]
OTHERS = [Acl(f"User:{number}", "ALLOW", "READ", "TOPIC", f"topic-{number}") for number in range(9_000)] + [
    Acl(f"User:{number}", "ALLOW", "READ", "TOPIC", f"prefix-{number}-", "PREFIXED") for number in range(996)
]


def run() -> Iterator[Result]:
    """Microseconds for a command, by the processor; and the ratio of commits."""
    rules = Authorization("declared", acls=Map(dict.fromkeys([*OTHERS, *OWN])))
    batch = NewBatch("t", 0, Segment("topics/t/0/x", "arrow", 1, "", 1), 1, 0, 0)
    command = Append(ProducerIdentity(0, 0, "id"), (batch,))

    declared, state = COMMANDS[Append], first_state()

    def warm() -> None:
        check_rights(rules, OWNER, declared.right(command, state))

    def cold() -> None:
        rules._cached_answers.clear()  # noqa: SLF001 - as for names that no command has had
        check_rights(rules, OWNER, declared.right(command, state))

    for name, call, target in (("known before", warm, 5), ("new names", cold, 20)):
        yield Result(f"rights: µs per command, 10,000 rules, {name}", _us(call), target, at_most=True, detail="")
    yield _commits()


def _us(call: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.thread_time()
        for _ in range(CALLS):
            call()
        times.append((time.thread_time() - start) / CALLS * 1e6)
    return statistics.median(times)


def _commits() -> Result:
    """Transactions of a record each, in memory, in a store that checks rights and in one that does not."""
    stores = {}
    for name in ("without", "with"):
        stores[name] = txnstore.create(f"memory://benchmark-rights-{name}", principal=OWNER)
        stores[name].create_topic("t")
    stores["with"].acls.create([*OTHERS, *OWN])
    stores["with"].acls.enable([])
    times = interleaved({name: partial(_commit, store) for name, store in stores.items()}, ROUNDS)
    with_rules, without = (median_ms(times[name]) / COMMITS for name in ("with", "without"))
    for store in stores.values():
        store.close()
    detail = f"{with_rules:.2f} and {without:.2f} ms"
    return Result(
        "rights: commits with / without authorization", with_rules / without, 1.1, at_most=True, detail=detail
    )


def _commit(store: Store) -> None:
    with store.producer("id") as producer:
        for _ in range(COMMITS):
            with producer.transaction():
                producer.send("t", b"x")
