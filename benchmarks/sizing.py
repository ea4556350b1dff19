"""What a store needs for N producers of M MB/s: the estimate of docs/howto/sizing.md, and what real clients request.

``python -m benchmarks.sizing --producers 50 --mb 1 --every 10`` prints the estimate of a load, with the prices of S3 or
others; ``python -m benchmarks sizing`` compares it with clients. They commit a transaction every few seconds, beside a
group that reads them, on a store that is 25 ms away. The time is virtual: each client has a clock of its own, which its
requests and pauses move, so the figures do not depend on the machine.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass

from benchmarks.measure import Result
from txnstore.consumer import Consumer
from txnstore.producer import Producer
from txnstore.runtime import Runtime
from txnstore.storage.base import ObjectInfo
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import ManualClock
from txnstore.threads import Workers

# The estimate ---------------------------------------------------------------------------------------------------------

#: Transactions a second that a chain takes from several processes with room to spare: half of what it does at most.
CHAIN_RATE = 12
#: Of the defaults of a topic: what an entry contains, and from which size on a batch has a segment of its own. And the
#: size of a producer's batch.
INLINE, OWN, BATCH = 64 * 1024, 256 * 1024, 8_000_000
#: The default ``buffer_bytes`` of a producer, in MB.
BUFFER_MB = 32
#: PUTs of checkpoints for each entry: a checkpoint and its hint every 64 entries.
CHECKPOINT = 0.05
#: A consumer that finds nothing looks again after the first pause, which doubles up to the longest one.
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.5
#: PUTs a second of a member of a group, which renews its lease three times in a session of 45 s.
LEASE_PUTS = 3 / 45
#: Seconds of a request, and the pause after which a process looks at the identity of the store again.
LATENCY, PAUSE = 0.025, 5.0
#: Seconds of a month of 30 days.
MONTH = 30 * 86_400


@dataclass(frozen=True, slots=True)
class Load:
    """What producers and consumers do.

    Attributes:
        producers: Processes that write.
        mb: Megabytes a second of each of them, as stored: compressed.
        every: Seconds between two transactions of a producer.
        partitions: Partitions of one topic that a transaction writes.
        consumers: Members of one group that reads all of it.
        days: How long records are kept.
    """

    producers: int
    mb: float
    every: float
    partitions: int = 4
    consumers: int = 2
    days: int = 30


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars: of 1,000 PUTs, of 1,000 GETs, and of a GB stored for a month."""

    put: float = 0.005
    get: float = 0.0004
    gb: float = 0.023


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a load needs; requests are those of a second.

    Attributes:
        rate: Transactions.
        chains: Chains that take them.
        puts: PUT requests.
        gets: GET requests, those of consumers and of a compaction included.
        memory: MB of the process of a producer.
        gb: Gigabytes that are stored in the end.
        requests_cost: Dollars a month for requests.
        storage_cost: Dollars a month for what is stored.
    """

    rate: float
    chains: int
    puts: float
    gets: float
    memory: float
    gb: float
    requests_cost: float
    storage_cost: float


def segment_puts(size: float, partitions: int) -> int:
    """The PUTs of the segments of a transaction of this many bytes, in equal parts in these partitions of a topic."""
    each = size / partitions
    if size <= INLINE:
        return 0
    return 1 if each < OWN else partitions * math.ceil(each / BATCH)


def segment_gets(size: float, partitions: int) -> int:
    """The GETs of a group that reads these segments, each once."""
    return 0 if size <= INLINE else partitions * math.ceil(size / partitions / BATCH)


def entry_puts(producers: float, every: float) -> int:
    """The PUTs of an entry: the first is refused if others have written since, unless a pause made it look."""
    return 1 if producers <= 1 or every > PAUSE else 2


def producer_gets(producers: float) -> float:
    """The GETs of a transaction: the entries that others have written since, and as many names that do not exist."""
    return 2 * producers + 1 if producers > 1 else 1.5


def consumer_gets(gap: float) -> int:
    """The GETs of a consumer from one entry to the next, which comes after that number of seconds."""
    looks, pause, waited = 1, FIRST_PAUSE, 0.0
    while waited < gap:
        waited += pause + LATENCY
        pause = min(2 * pause, LONGEST_PAUSE)
        looks += 1
    return looks


def estimate(load: Load, prices: Prices | None = None) -> Estimate:
    """What the load needs.

    With several chains, each producer has its id, its partitions and its group in one of them.
    """
    price = prices or Prices()
    rate = load.producers / load.every
    chains = max(1, math.ceil(rate / CHAIN_RATE))
    size = load.mb * 1e6 * load.every
    segments = segment_puts(size, load.partitions)
    puts = rate * (entry_puts(load.producers / chains, load.every) + segments + CHECKPOINT)
    puts += load.consumers * 2 * LEASE_PUTS  # The next entry of a producer is refused once then.
    gets = rate * (producer_gets(load.producers / chains) + segment_gets(size, load.partitions))
    gets += load.consumers * rate * consumer_gets(chains / rate)
    gets += rate * segments  # A compaction reads each segment once.
    gb = load.producers * load.mb * 86_400 * load.days / 1000
    cost = MONTH / 1000 * (puts * price.put + gets * price.get)
    return Estimate(rate, chains, puts, gets, _memory(load), gb, cost, gb * price.gb)


def _memory(load: Load) -> float:
    """MB of a producer: its process, and six times what it buffers."""
    return 150 + 6 * min(BUFFER_MB, load.mb * load.every)


# The measurement ------------------------------------------------------------------------------------------------------

#: Virtual seconds, and the loads.
SECONDS = 60.0
LOADS = (Load(1, 0.02, 1), Load(2, 0.1, 1), Load(4, 0.25, 1), Load(10, 0.1, 5), Load(16, 0.02, 2), Load(20, 0.5, 10))
#: Bytes of a record.
RECORD = 100_000


class Away:
    """A store in memory, a while away for one client: each request moves its clock, parallel ones too."""

    url = "memory://away"

    def __init__(self, inner: MemoryStore, clock: ManualClock) -> None:
        self._inner, self._clock = inner, clock
        self.puts = self.gets = 0

    def _go(self) -> MemoryStore:
        self._clock.sleep(LATENCY)
        return self._inner

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        self.gets += 1
        return self._go().get(key, start, end)

    def put(self, key: str, data: bytes) -> None:
        self.puts += 1
        self._go().put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.puts += 1
        return self._go().put_if_absent(key, data)

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        return self._go().list(prefix, start_after, limit)

    def delete(self, keys: Sequence[str]) -> None:
        self._go().delete(keys)

    def stat(self, key: str) -> ObjectInfo:
        self.gets += 1
        return self._go().stat(key)

    def now_ms(self) -> int:
        return self._go().now_ms()

    def close(self) -> None:
        """Nothing to release."""


class Client:
    """A producer or a consumer in a process of its own."""

    def __init__(self, objects: MemoryStore, number: int, load: Load) -> None:
        self.clock = ManualClock()
        self.away = Away(objects, self.clock)
        rng = random.Random(number)
        self.store: Store = open_on(self.away, runtime=Runtime(self.clock, self.clock.sleep, rng, one_worker))
        self._load, self._rng = load, rng
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._pause = FIRST_PAUSE
        if number < load.producers:
            self._producer = self.store.producer(f"producer-{number}", linger=None)
        else:
            self._consumer = self.store.consumer("t", group="group")
            self._consumer.poll(timeout=0)

    def act(self) -> None:
        """Commit the next transaction, or look for new records; then pause."""
        if self._producer is not None:
            due = self.clock() + round(self._load.every * 1000)
            size = int(self._load.mb * 1e6 * self._load.every / self._load.partitions)
            with self._producer.transaction() as txn:
                for partition in range(self._load.partitions):
                    for remaining in range(size, 0, -RECORD):
                        txn.send("t", self._rng.randbytes(min(remaining, RECORD)), partition=partition)
            self.clock.set(max(due, self.clock()))
        elif self._consumer is not None and self._consumer.poll(timeout=0):
            self._pause = FIRST_PAUSE
        else:
            self.clock.sleep(self._pause)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def close(self) -> None:
        """Close the store and what is open in it."""
        for one in (self._producer, self._consumer):
            if one is not None:
                one.close()
        self.store.close()


def one_worker() -> Executor:
    """Requests that real clients send at the same time, one after the other: so a run can be repeated."""
    return Workers(1)


def measure(load: Load, seconds: float = SECONDS) -> tuple[float, float]:
    """The PUTs and the GETs of a second of all clients, after a second in which they find each other."""
    objects = MemoryStore()
    create_on(objects).create_topic("t", partitions=load.partitions)
    clients = [Client(objects, number, load) for number in range(load.producers + load.consumers)]
    begin = max(client.clock() for client in clients)
    for number, client in enumerate(clients):  # The producers take turns.
        client.clock.set(begin + round(1000 * load.every * number / load.producers) % round(1000 * load.every))
    begin += round(2000 * load.every)
    before: tuple[int, int] | None = None
    while (client := min(clients, key=lambda client: client.clock())).clock() < begin + 1000 * seconds:
        if before is None and client.clock() >= begin:
            before = _requests(clients)
        client.act()
    after, first = _requests(clients), before or (0, 0)
    for client in clients:
        client.close()
    return (after[0] - first[0]) / seconds, (after[1] - first[1]) / seconds


def _requests(clients: list[Client]) -> tuple[int, int]:
    return sum(client.away.puts for client in clients), sum(client.away.gets for client in clients)


def run() -> Iterator[Result]:
    """The requests of real clients over those of the estimate."""
    for load in LOADS:
        puts, gets = measure(load)
        expected = estimate(load)
        compaction = expected.rate * segment_puts(load.mb * 1e6 * load.every, load.partitions)
        name = f"{load.producers} producers of {load.mb} MB/s every {load.every:g} s"
        for kind, counted, estimated in (("PUT", puts, expected.puts), ("GET", gets, expected.gets - compaction)):
            yield Result(
                f"{name}: {kind}s over the estimate", counted / estimated, 1.25, True, f"{counted:.2f} a second"
            )


TITLES = (
    "producers",
    "a transaction every",
    "transactions/s",
    "chains",
    "memory of each",
    "PUT/s",
    "GET/s",
    "requests a month",
    "stored",
    "storage a month",
)


def row(load: Load, estimated: Estimate) -> list[str]:
    """The cells of a load in the table of the page."""
    return [
        f"{load.producers} \N{MULTIPLICATION SIGN} {load.mb:g} MB/s",
        f"{load.every:g} s",
        f"{estimated.rate:.3g}",
        f"{estimated.chains}",
        f"{estimated.memory:,.0f} MB",
        f"{estimated.puts:,.1f}",
        f"{estimated.gets:,.0f}",
        f"${estimated.requests_cost:,.0f}",
        f"{estimated.gb:,.0f} GB",
        f"${estimated.storage_cost:,.0f}",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the estimate of a load."""
    parser = argparse.ArgumentParser(description="What a store needs for N producers of M MB/s.")
    for name, default in {**asdict(Load(10, 1.0, 5.0)), **asdict(Prices())}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"default {default}")
    options = vars(parser.parse_args(arguments))
    for name, number in options.items():
        least = "more than 0" if name in ("producers", "mb", "every", "partitions") else "0 or more"
        if not math.isfinite(number) or number < 0 or (number == 0 and least != "0 or more"):
            parser.error(f"argument --{name}: must be {least}, not {number:g}")
    prices = Prices(options.pop("put"), options.pop("get"), options.pop("gb"))
    load = Load(**options)
    for title, cell in zip(TITLES, row(load, estimate(load, prices)), strict=True):
        print(f"{title:<20} {cell}")


if __name__ == "__main__":
    main()
