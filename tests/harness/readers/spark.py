"""Spark as a reader: both of its ways to read a topic, with filters that it may push down."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow.types as pt
import pytest

from tests.harness.readers import filters
from tests.harness.readers.answers import canonical, compare, raw, row_of
from tests.harness.readers.history import READS, ROOT, History
from tests.harness.readers.model import Shown
from tests.helpers.spark_home import environment, link_spark_home, local_session
from txnstore.segment.schema import stored_schema
from txnstore.store import Store

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


@contextmanager
def reading_with_spark() -> Iterator[Callable[[History, Store, random.Random], None]]:
    """Add Spark to the readers, with one session for all histories."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for name, value in environment(link_spark_home(Path(folder))).items():
            patch.setenv(name, value)
        settings = {"spark.sql.session.timeZone": "UTC", "spark.sql.warehouse.dir": f"{folder}/warehouse"}
        session = local_session("txnstore-readers", settings)
        session.sparkContext.setLogLevel("OFF")

        def spark(history: History, _store: Store, rng: random.Random) -> None:
            """A frame of a topic: by Spark's own reader, or by ``format("txnstore")``."""
            _read(session, history, rng)

        READS["spark"] = spark
        try:
            yield spark
        finally:
            del READS["spark"]
            session.stop()


def _read(session: SparkSession, history: History, rng: random.Random) -> None:
    import txnstore.spark

    assert history.reading is not None
    moment = history.reading.moments[-1]
    if not moment:
        return
    shown, isolation, native = moment[rng.choice(sorted(moment))], history.isolation(rng), rng.random() < 0.6
    with TemporaryDirectory() as folder:
        for each in history.objects.list(""):
            path = Path(folder, each.key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(history.objects.get(each.key))
        if native:
            frame = txnstore.spark.read(session, folder, shown.name, isolation=isolation, principal=ROOT)
        else:
            options = {"topic": shown.name, "isolation": isolation, "principal": ROOT}
            frame = session.read.format("txnstore").options(**options).load(folder)
        chosen = _condition(rng, shown, isolation)
        if chosen is not None:
            frame = frame.where(chosen[1])
        found = canonical(frame.toArrow().to_pylist())
    expected = [
        row_of(shown, placed)
        for placed in shown.rows[isolation]
        if chosen is None or chosen[2](raw(placed[2], chosen[0]))
    ]
    what = f"{shown.name} ({isolation}), {'read' if native else 'format'} {'' if chosen is None else chosen[1]}"
    compare(history, "spark", what, [expected], found)


def _condition(
    rng: random.Random, shown: Shown, isolation: str
) -> tuple[str, Column, Callable[[Any], bool | None]] | None:
    """A column, a condition on it for Spark, and what it means."""
    from pyspark.sql import functions

    simple = [
        field
        for field in stored_schema(shown.schema)
        if pt.is_integer(field.type) or pt.is_floating(field.type) or pt.is_string(field.type)
    ]
    if not simple or rng.random() < 0.2:
        return None
    field = rng.choice(simple)
    column = functions.col("`" + field.name.replace("`", "``") + "`")
    there = [value for _, _, rec in shown.rows[isolation] if (value := raw(rec, field.name)) is not None]
    kind = rng.choice(["null", "isnan", "compare", "compare", "compare"])
    if kind == "null" or not there:
        return (field.name, column.isNull(), lambda value: value is None)
    if kind == "isnan" and pt.is_floating(field.type):
        return (field.name, functions.isnan(column), lambda value: value is not None and value != value)  # noqa: PLR0124
    wanted = rng.choice(there)
    key = filters.order(wanted)
    literal = functions.lit(wanted).cast("float") if pt.is_float32(field.type) else functions.lit(wanted)
    signs: tuple[tuple[Callable[[Column, Any], Column], Callable[[Any, Any], bool]], ...] = (
        (lambda a, b: a == b, lambda a, b: bool(a == b)),
        (lambda a, b: a > b, lambda a, b: bool(a > b)),
        (lambda a, b: a >= b, lambda a, b: bool(a >= b)),
        (lambda a, b: a < b, lambda a, b: bool(a < b)),
    )
    theirs, mine = rng.choice(signs)
    return (
        field.name,
        theirs(column, literal),
        lambda value: None if value is None else mine(filters.order(value), key),
    )
