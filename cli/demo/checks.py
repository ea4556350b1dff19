"""The checks of the demo: each claim with the expected and the actual value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txnstore.cli.demo.data import FLIGHTS, GROUP

if TYPE_CHECKING:
    import pyarrow as pa

    from txnstore.read.plan import IsolationLevel
    from txnstore.snapshot import Snapshot
    from txnstore.store import Store


@dataclass(frozen=True, slots=True)
class Check:
    """A claim; it holds if the actual value equals the expected one."""

    claim: str
    actual: Any
    expected: Any

    @property
    def ok(self) -> bool:
        """Whether the claim holds."""
        return bool(self.actual == self.expected)


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected results, computed from the input without txnstore."""

    flights: int
    by_month: dict[int, int]
    delay_sum: int

    @classmethod
    def of(cls, table: pa.Table) -> Expected:
        """Compute the expected results."""
        import pyarrow.compute as pc

        counts = pc.value_counts(table["month"]).to_pylist()
        by_month = {row["values"]: row["counts"] for row in counts}
        return cls(table.num_rows, dict(sorted(by_month.items())), pc.sum(table["arr_delay"]).as_py())


def scalar(
    store: Store, query: str, isolation: IsolationLevel = "read_committed", snapshot: Snapshot | None = None
) -> Any:
    """The single value of a query."""
    with store.duckdb(isolation, snapshot) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def count(store: Store, isolation: IsolationLevel = "read_committed", snapshot: Snapshot | None = None) -> int:
    """The number of delays that a reader sees."""
    return int(scalar(store, "SELECT count(*) FROM delays", isolation, snapshot))


def count_aborted(store: Store) -> int:
    """The number of aborted delays in the log below the last stable offsets."""
    return int(scalar(store, _ABORTED))


def group_lag(store: Store) -> int:
    """The lag of the job's group in the topic of flights."""
    with store.consumer([FLIGHTS], group=GROUP) as consumer:
        return sum(consumer.lag().values())


_BY_MONTH = "SELECT month, count(*) FROM flights GROUP BY month ORDER BY month"
_FLIGHTS_TWICE = "SELECT count(*) - count(DISTINCT (time_hour, carrier, flight)) FROM flights"
_DELAYS_TWICE = "SELECT count(*) - count(DISTINCT (flights_partition, flights_offset)) FROM delays"
_MISSING = """
    SELECT count(*) FROM flights f ANTI JOIN delays d
    ON d.flights_partition = f._partition AND d.flights_offset = f._offset
       AND d.carrier = f.carrier AND d.flight = f.flight AND d.delay IS NOT DISTINCT FROM f.arr_delay
"""
_SUM = "SELECT sum(delay) FROM delays"
_ABORTED = """
    SELECT coalesce(sum(batches.records), 0) FROM txn.batches JOIN txn.partitions USING (topic, partition)
    WHERE topic = 'delays' AND status = 'aborted' AND limit_offset <= last_stable
"""


def exactness(store: Store, expected: Expected, when: str) -> list[Check]:
    """Compare the committed state, in one snapshot, with the input: complete and without duplicates."""
    with store.duckdb() as connection:

        def query_value(query: str) -> Any:
            row = connection.execute(query).fetchone()
            assert row is not None
            return row[0]

        by_month = dict(connection.execute(_BY_MONTH).fetchall())
        differing_months = sum(by_month.get(month) != flights for month, flights in expected.by_month.items())
        return [
            Check(f"flights {when}", sum(by_month.values()), expected.flights),
            Check(f"months with a different count {when}", differing_months, 0),
            Check(f"duplicate flights {when}", query_value(_FLIGHTS_TWICE), 0),
            Check(f"delays {when}", query_value("SELECT count(*) FROM delays"), expected.flights),
            Check(f"duplicate delays {when}", query_value(_DELAYS_TWICE), 0),
            Check(f"flights without a delay {when}", query_value(_MISSING), 0),
            Check(f"sum of all delays in minutes {when}", query_value(_SUM), expected.delay_sum),
        ]
