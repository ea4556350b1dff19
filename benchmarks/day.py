"""A day of a store, replayed in virtual time: what does not grow, and what it costs at S3's prices.

1,000,000 small transactions of 10,000 transactional ids that come and go, in 24 *rounds*. A round takes 24 hours by
the clock of the clients and of the storage, with a compaction every hour and a vacuum at its end, at their default
settings. So all limits are those that the documentation names, and none is scaled: entries and ids are kept for 7 days,
replaced segments and producers for one. After :data:`FILLED` rounds each of them has passed, and from then on nothing
may grow. The transactions of an hour follow each other every 2 seconds; if there are fewer
(``python -m benchmarks.day 20000``), the rest of the hour is quiet.

The clients are in this process. Each compaction and vacuum opens the store, as a timer would have it do, in another
process, and the open is measured in a third one.
"""

from __future__ import annotations

import gc
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

import txnstore
from benchmarks import day_upkeep as upkeep
from benchmarks.day_clients import DAY_MS, Clients, create_topics
from benchmarks.day_storage import GB_MONTH, VirtualFolder, dollars, memory_mb
from benchmarks.day_upkeep import Objects, Work
from benchmarks.measure import Result
from txnstore.chain.checkpoints.checkpoint import interval
from txnstore.chain.context import CHECKPOINT_EVERY
from txnstore.core.log.model import Batch
from txnstore.core.model import items_of
from txnstore.runtime import Runtime
from txnstore.store import Store, create_on
from txnstore.testing import ManualClock

TRANSACTIONS = 1_000_000
#: The transactions of an id; those for each id that lives at a time: it lives for two hours or more, never for days.
EACH, FOR_ONE = 100, 25_000
ROUNDS, HOURS = 24, 24
#: The number of rounds after which every limit has passed: a history of 7 days is deleted up to two days later.
FILLED = 12
_HOUR_MS = DAY_MS // HOURS
#: So many rounds are compared: those after the first retention period, and the last ones. Some work comes once a week.
_COMPARED = 7
#: What grows by less than this is flat: a round differs from the next one.
_FLAT = 1.1
#: The GETs of an open besides the entries after the checkpoint.
_LOOKS = 16


@dataclass(frozen=True, slots=True)
class Round:
    """What a round was like, and what its end is."""

    transactions: int
    clients: Work
    compactions: Work
    vacuum: Work
    opening: Work
    objects: dict[str, Objects]
    state: dict[str, int]

    def count(self, kind: str = "") -> int:
        """The number of the objects of a kind, or of all."""
        return sum(objects.count for name, objects in self.objects.items() if kind in {"", name})

    def megabytes(self, kind: str = "") -> float:
        """Their size."""
        return sum(objects.bytes for name, objects in self.objects.items() if kind in {"", name}) / 1e6

    @property
    def written(self) -> Counter[str]:
        """The bytes that all processes have written, by the kind of their objects."""
        return self.clients.written + self.compactions.written + self.vacuum.written

    def each(self, work: Work, name: str = "") -> float:
        """The requests of a name, or of all, for each transaction."""
        return sum(count for kind, count in work.requests.items() if name in {"", kind}) / self.transactions


#: The columns of the table: the heading, and the figure of a round.
COLUMNS: dict[str, Callable[[Round], float]] = {
    "files": Round.count,
    "entries": lambda latest: latest.count("entries"),
    "checkp.": lambda latest: latest.count("checkpoints"),
    "segm.": lambda latest: latest.count("segments"),
    "MB": Round.megabytes,
    "MB entries": lambda latest: latest.megabytes("entries"),
    "MB checkp.": lambda latest: latest.megabytes("checkpoints"),
    "MB segm.": lambda latest: latest.megabytes("segments"),
    "MB written": lambda latest: latest.written.total() / 1e6,
    "- checkp.": lambda latest: latest.written["checkpoints"] / 1e6,
    "ids": lambda latest: latest.state["ids"],
    "producers": lambda latest: latest.state["producers"],
    "groups": lambda latest: latest.state["groups"],
    "dropped": lambda latest: latest.state["dropped"],
    "batches": lambda latest: latest.state["batches"],
    "- decoded": lambda latest: latest.state["decoded"],
    "RSS MB": lambda latest: latest.clients.memory,
    "ms/txn": lambda latest: latest.clients.cpu * 1000 / latest.transactions,
    "PUT/txn": lambda latest: latest.each(latest.clients, "PUT"),
    "GET/txn": lambda latest: latest.each(latest.clients, "GET"),
    "LIST/txn": lambda latest: latest.each(latest.clients, "LIST"),
    "open GET": lambda latest: latest.opening.requests["GET"],
    "open ms": lambda latest: latest.opening.cpu * 1000,
    "open MB": lambda latest: latest.opening.memory,
    "compact PUT": lambda latest: latest.compactions.requests["PUT"],
    "compact GET": lambda latest: latest.compactions.requests["GET"],
    "compact LIST": lambda latest: latest.compactions.requests["LIST"],
    "compact s": lambda latest: latest.compactions.cpu,
    "compact MB": lambda latest: latest.compactions.memory,
    "vacuum PUT": lambda latest: latest.vacuum.requests["PUT"],
    "vacuum GET": lambda latest: latest.vacuum.requests["GET"] - latest.opening.requests["GET"],  # Both read the tail.
    "vacuum LIST": lambda latest: latest.vacuum.requests["LIST"],
    "vacuum s": lambda latest: latest.vacuum.cpu,
    "vacuum MB": lambda latest: latest.vacuum.memory,
}
#: The columns that must be flat.
FLAT = ("files", "MB", "MB written", "RSS MB", "ms/txn", "PUT/txn", "GET/txn", "open ms", "open MB", "compact PUT",
        "compact GET", "compact s", "vacuum PUT", "vacuum GET", "vacuum LIST", "vacuum s")  # fmt: skip


def run(transactions: int = TRANSACTIONS) -> Iterator[Result]:
    """Replay the day, print the table, and compare its end with the time after the first retention period."""
    print(" ".join(["round", *COLUMNS]))
    rounds = []
    with tempfile.TemporaryDirectory() as root:
        for number, latest in enumerate(replay(root, transactions), 1):
            rounds.append(latest)
            print(f"{number:5}", *(_figure(of(latest)).rjust(len(name)) for name, of in COLUMNS.items()), flush=True)
    for line in prices(rounds):
        print(line)
    for name in FLAT:
        early, late = (mean(map(COLUMNS[name], some)) for some in (rounds[FILLED:][:_COMPARED], rounds[-_COMPARED:]))
        detail = f"{_figure(early)}, then {_figure(late)}"
        yield Result(f"{name}: last rounds / first full ones", late / early, _FLAT, at_most=True, detail=detail)
    # How many entries there are after the newest checkpoint is chance. They are read in windows, each twice as long as
    # the one before, so there may be as many names without an entry in the last one.
    gets = max(latest.opening.requests["GET"] for latest in rounds)
    most = 2 * max(latest.state["interval"] for latest in rounds) + _LOOKS
    yield Result("open: GETs, the most", gets, most, at_most=True, detail="")


def replay(root: str, transactions: int) -> Iterator[Round]:
    """The rounds of a day, in a store in this folder."""
    clock = ManualClock()
    folder = VirtualFolder(root, clock)
    with create_on(folder, runtime=Runtime(clock, clock.sleep)) as store, warnings.catch_warnings():
        warnings.simplefilter("ignore", txnstore.BlockedReadWarning)
        create_topics(store, max(32 << 10, transactions // 2))
        clients = Clients(store, clock, random.Random(1), EACH, max(4, transactions // FOR_ONE))
        begin = clock()
        for number in range(ROUNDS):
            yield _round(folder, store, clients, clock, begin + number * DAY_MS, _share(transactions, number, ROUNDS))
        clients.close()


def _share(whole: int, number: int, parts: int) -> int:
    """The size of a part, so that all of them are the whole."""
    return whole * (number + 1) // parts - whole * number // parts


def _round(
    folder: VirtualFolder, store: Store, clients: Clients, clock: ManualClock, begin: int, transactions: int
) -> Round:
    folder.requests.clear()
    folder.written.clear()
    cpu, compactions, rarest = 0.0, [], 0
    with upkeep.other_process() as elsewhere:
        for hour in range(HOURS):
            began = time.process_time()
            for _ in range(_share(transactions, hour, HOURS)):
                clients.step()
            cpu += time.process_time() - began
            (state,) = store.snapshot().view.states
            rarest = max(
                rarest, interval(state, CHECKPOINT_EVERY)
            )  # Names come during the day, and go with its vacuum.
            clock.set(max(clock(), begin + (hour + 1) * _HOUR_MS - 1))
            compactions.append(elsewhere(upkeep.compaction, folder.root, clock()))
            clock.set(max(clock(), compactions[-1].now_ms))
        done = Work(folder.requests.copy(), cpu, memory_mb(), folder.written.copy(), clock())
    with upkeep.other_process() as elsewhere:
        vacuum = elsewhere(upkeep.vacuum, folder.root, clock())
        clock.set(max(clock(), vacuum.now_ms))
    with upkeep.other_process() as elsewhere:
        opening = elsewhere(upkeep.opening, folder.root, clock())
        objects = elsewhere(upkeep.survey, folder.root, clock())
    return Round(
        transactions,
        done,
        upkeep.together(compactions),
        vacuum,
        opening,
        objects,
        {**_state(store), "interval": rarest},
    )


def _state(store: Store) -> dict[str, int]:
    """What this process knows of the store."""
    (state,) = store.snapshot().view.states
    logs = [log for _, log in items_of(state.partitions)]
    return {
        "ids": len(state.transactions),
        "producers": sum(len(log.producers) for log in logs),
        "groups": len(state.groups),
        "dropped": len(state.dropped),
        "batches": sum(len(log.batches) for log in logs),
        "decoded": sum(isinstance(item, Batch) for item in gc.get_objects()),
    }


def prices(rounds: Sequence[Round]) -> Iterator[str]:
    """The requests of the last rounds for 1,000,000 transactions, and their price; that of what is stored."""
    some = rounds[-_COMPARED:]
    million = 1_000_000 / sum(each.transactions for each in some)
    parts = {
        "clients": [each.clients for each in some],
        "compact": [each.compactions for each in some],
        "vacuum": [each.vacuum for each in some],
    }
    yield "for 1,000,000 transactions:"
    for name, work in parts.items():
        sums = upkeep.together(work).requests
        counts = ", ".join(f"{round(count * million):,} {kind}" for kind, count in sorted(sums.items()))
        yield f"  {name:8} ${dollars(sums) * million:.2f}  {counts}"
    megabytes = mean(each.megabytes() for each in some)
    yield f"stored: {megabytes:,.0f} MB, ${megabytes / 1000 * GB_MONTH:.4f} a month"


def _figure(value: float) -> str:
    return f"{value:.2f}" if value < 20 and value != int(value) else f"{value:.0f}"


if __name__ == "__main__":
    for result in run(int(sys.argv[1]) if len(sys.argv) > 1 else TRANSACTIONS):
        print(result.line())
