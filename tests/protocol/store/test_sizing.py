"""The estimate of docs/howto/sizing.md is what clients request, and its budgets are those of a transaction."""

from __future__ import annotations

import random

import pytest

from benchmarks import sizing
from benchmarks.sizing import Load, Prices, estimate
from tests.helpers.compaction import new_store
from tests.helpers.connections import connection_of
from txnstore.storage.memory import MemoryStore
from txnstore.testing import ManualClock


@pytest.mark.parametrize(
    ("size", "partitions", "puts"),
    [(20_000, 4, 0), (60_000, 1, 0), (80_000, 1, 1), (250_000, 4, 1), (1_200_000, 4, 4), (600_000, 2, 2)],
)
def test_the_puts_and_gets_of_segments_are_those_of_a_transaction(
    size: int, partitions: int, puts: int, clock: ManualClock
) -> None:
    objects = MemoryStore(clock=clock)
    store, reader = new_store(clock, objects, 1), new_store(clock, objects, 1)
    store.create_topic("t", partitions=partitions)
    rng = random.Random(0)
    with store.producer("p") as producer:
        counts = connection_of(store).counts
        before = counts.snapshot()
        with producer.transaction() as txn:
            for partition in range(partitions):
                txn.send("t", rng.randbytes(size // partitions), partition=partition)
        assert (counts.snapshot() - before).puts == 1 + puts == 1 + sizing.segment_puts(size, partitions)
    reader.snapshot()
    before = connection_of(reader).counts.snapshot()
    assert reader.scan("t").to_table().num_rows == partitions
    taken = connection_of(reader).counts.snapshot() - before
    assert taken.get <= sizing.segment_gets(size, partitions) + 3  # and the look at the chain


@pytest.mark.slow
@pytest.mark.parametrize("load", [Load(1, 0.02, 1), Load(4, 0.25, 1), Load(6, 0.05, 10)], ids=str)
def test_clients_request_what_is_estimated(load: Load) -> None:
    puts, gets = sizing.measure(load, seconds=20)
    expected = estimate(load)
    compaction = expected.rate * sizing.segment_puts(load.mb * 1e6 * load.every, load.partitions)
    assert puts == pytest.approx(expected.puts, rel=0.25)
    assert gets == pytest.approx(expected.gets - compaction, rel=0.25)


def test_the_arithmetic_of_a_row() -> None:
    """10 producers of 0.1 MB/s, each second: 4 partitions of 25 KB are one pack."""
    row = estimate(Load(10, 0.1, 1, partitions=4, consumers=2, days=30))
    assert (row.rate, row.chains) == (10, 1)
    assert row.puts == pytest.approx(10 * (2 + 1 + 0.05) + 2 * 2 * 3 / 45)
    assert row.gets == pytest.approx(10 * (21 + 4) + 2 * 10 * 4 + 10)
    assert row.gb == pytest.approx(10 * 0.1 * 86_400 * 30 / 1000)
    assert row.requests_cost == pytest.approx(2_592 * (row.puts * 0.005 + row.gets * 0.0004))
    assert row.storage_cost == pytest.approx(row.gb * 0.023)
    free = estimate(Load(10, 0.1, 1), Prices(0, 0, 0))
    assert (free.requests_cost, free.storage_cost, free.puts) == (0, 0, row.puts)


@pytest.mark.parametrize("given", ["--producers=0", "--mb=0", "--every=0", "--partitions=-1", "--days=-1", "--gb=nan"])
def test_a_load_that_is_none_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        sizing.main([given])
    assert f"argument {given.partition('=')[0]}: must be " in capsys.readouterr().err
    sizing.main(["--consumers=0"])
    assert "producers" in capsys.readouterr().out
