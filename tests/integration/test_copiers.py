"""Processes that copy from topic to topic are ended again and again; every record arrives once, in its order (TST-20).

In the manner of Kafka's system test: copiers with random aborts, ended cleanly (SIGTERM) or not (SIGKILL), whose groups
know them by name or by membership, while another consumer reads. ``python -m tests.harness copies`` copies as many
records as that test does.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

import txnstore
from tests.helpers.copier import PARTITIONS, SOURCE, TARGET

INPUTS = 2
RECORDS = int(os.environ.get("TXNSTORE_COPIES", "1500"))
#: Records a transaction, at most: with the records of ``python -m tests.harness copies`` 750.
SIZE = max(22, RECORDS * 3 // 400)
BOUNCES = 3
#: Looks at the output, each of which waits for 50 ms where there is nothing new.
LOOKS = 10_000
WAIT = 0.05


class Copiers:
    """The two copiers of a store, each in a place of its own: another process takes it over with the same name."""

    def __init__(self, url: str, *, members: bool) -> None:
        self.url, self.members = url, members
        self.ended: list[int] = []
        self._lives = 0
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        for place in range(INPUTS):
            self._start(place)

    def bounce(self, kind: signal.Signals) -> None:
        """End all, one by one, and put others in their places."""
        for place in range(INPUTS):
            self.end(place, kind)
            self._start(place)

    def end(self, place: int, kind: signal.Signals) -> None:
        process = self._running.pop(place)
        process.send_signal(kind)
        self.ended.append(process.wait(240))

    def replace_dead(self) -> None:
        """A copier ends by itself when it is fenced; another one continues."""
        for place, process in list(self._running.items()):
            if process.poll() is not None:
                self.ended.append(self._running.pop(place).returncode)
                self._start(place)

    def end_all(self, kind: signal.Signals) -> None:
        for place in list(self._running):
            self.end(place, kind)

    def _start(self, place: int) -> None:
        self._lives += 1
        partition = "-" if self.members else str(place)
        command = [sys.executable, "-m", "tests.helpers.copier", self.url, f"copier-{place}", partition, str(SIZE)]
        self._running[place] = subprocess.Popen([*command, str(self._lives)], cwd=Path(__file__).parents[2])


@contextmanager
def copiers(url: str, *, members: bool) -> Iterator[Copiers]:
    processes = Copiers(url, members=members)
    try:
        yield processes
    finally:
        processes.end_all(signal.SIGKILL)


def fill(url: str, chains: int) -> None:
    with txnstore.create(url, chains=chains) as store, store.producer() as producer:
        store.create_topic(SOURCE, partitions=INPUTS)
        store.create_topic(TARGET, partitions=PARTITIONS)
        for number in range(RECORDS):
            producer.send(SOURCE, b"%d" % number, key=b"%d" % (number % INPUTS), partition=number % INPUTS)


def copied(store: txnstore.Store) -> int:
    """How far the group has come."""
    positions = store.groups()[0].positions if store.groups() else ()
    return sum(position.offset or 0 for position in positions)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bounce", "chains", "members"),
    [
        pytest.param(signal.SIGKILL, 1, False, id="killed, known by name"),
        pytest.param(signal.SIGTERM, 3, False, id="ended, known by name, chains"),
        pytest.param(signal.SIGKILL, 3, True, id="killed, members, chains"),
        pytest.param(signal.SIGTERM, 1, True, id="ended, members"),
    ],
)
def test_tst_20_copiers_that_are_ended_copy_every_record_once(
    tmp_path: Path, bounce: signal.Signals, chains: int, *, members: bool
) -> None:
    """REC-11, TST-21: no duplicate, no loss, order by partition, and who read along saw what is there in the end."""
    url = str(tmp_path / "store")
    fill(url, chains)
    along: list[tuple[int, int, object]] = []
    rng, looks = random.Random(f"{bounce}/{chains}/{members}"), 0
    with txnstore.open(url) as store, store.consumer([TARGET]) as consumer, copiers(url, members=members) as workers:
        ends = sorted(rng.randrange(1, RECORDS * 9 // 10) for _ in range(BOUNCES))
        while ends or len(along) < RECORDS:
            looks += 1
            assert looks < LOOKS, f"{len(along)} of {RECORDS} were copied; so the copiers ended: {workers.ended}"
            records = consumer.poll(timeout=WAIT, max_records=RECORDS)
            along += [(record.partition, record.offset, record.value) for record in records]
            if ends and copied(store) > ends[0]:
                ends.pop(0)
                workers.bounce(bounce)
            workers.replace_dead()
        workers.end_all(signal.SIGTERM)
        store.recover()
        assert workers.ended.count(0 if bounce is signal.SIGTERM else -bounce) >= BOUNCES * INPUTS
        rows = store.scan(TARGET).to_table()
        table = zip(*(rows[name].to_pylist() for name in ("_partition", "_offset", "value")), strict=True)
        assert sorted(along) == sorted(table)
        assert store.verify(deep=True).ok
    values = list(zip(rows["_partition"].to_pylist(), map(int, rows["value"].to_pylist()), strict=True))
    assert sorted(value for _, value in values) == list(range(RECORDS))
    for target in range(PARTITIONS):
        for source in range(INPUTS):
            here = [value for partition, value in values if partition == target and value % INPUTS == source]
            assert all(before < after for before, after in pairwise(here))
