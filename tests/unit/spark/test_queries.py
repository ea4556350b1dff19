"""Starts of streaming queries that Spark gives up, without Spark: no test can make it wait for ten seconds."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark.errors import StreamingQueryException

from txnstore.spark.streams.queries import start_and_wait

SLOW = "[STREAM_FAILED] Python worker failed to connect back."


class Query:
    """A query that ends with an error, or has committed a micro-batch."""

    def __init__(self, error: str | None) -> None:
        self.error = error
        self.lastProgress = {"batchId": 0}

    def awaitTermination(self, _seconds: float) -> bool:  # noqa: N802 - Spark's name
        if self.error is not None:
            raise StreamingQueryException(self.error)
        return False


class Writer:
    """Starts queries with these errors, one after another."""

    def __init__(self, *errors: str | None) -> None:
        self.errors = list(errors)

    def start(self) -> Query:
        return Query(self.errors.pop(0))


def start(*errors: str | None) -> tuple[Query, int]:
    """The started query, and how many were not started."""
    writer = Writer(*errors)
    return cast("Query", start_and_wait(cast("Any", writer), 1)), len(writer.errors)


def test_a_query_whose_process_was_too_slow_is_started_again() -> None:
    query, left = start(SLOW, SLOW, SLOW, SLOW, None, None)
    assert (query.error, left) == (None, 1)


@pytest.mark.parametrize("errors", [(SLOW,) * 6, ("offsets outside the log",) * 2])
def test_the_fifth_failure_and_any_other_error_are_raised(errors: tuple[str, ...]) -> None:
    writer = Writer(*errors)
    with pytest.raises(StreamingQueryException):
        start_and_wait(cast("Any", writer), 1)
    assert len(writer.errors) == 1


def test_a_query_that_starts_is_started_once() -> None:
    assert start(None, None)[1] == 1
