"""The rows of each kind of segment, however much of it is visible, as Spark's own reader shows them."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import SparkRuntimeException

import txnstore
from tests.helpers.rows import CASES, DAMAGES, Case, Damage, Row, made
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.slices import Slice
from txnstore.read.rows import Columns, RowPlan
from txnstore.spark import types
from txnstore.spark.options import Location
from txnstore.spark.reads.native import _FILES, _file_frames
from txnstore.storage.local import LocalStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def objects(tmp_path: Path) -> LocalStore:
    txnstore.create(tmp_path / "store").close()
    return LocalStore(tmp_path / "store")


def frame(spark: SparkSession, objects: LocalStore, topic: CatalogTopic, slices: tuple[Slice, ...]) -> DataFrame | None:
    """The rows; None if Spark's reader cannot read these files."""
    plan, rest = RowPlan(Columns(topic), slices).split(_FILES)
    if rest.slices:
        return None
    frames = _file_frames(spark, Location(objects.url, {}), plan, types.spark_schema(plan.columns.schema))
    return None if frames is None else reduce(lambda one, other: one.union(other), frames)


def rows(shown: DataFrame) -> list[Row]:
    found = shown.selectExpr("_partition", "_offset", "unix_millis(_timestamp)", "n", "s").orderBy("n").collect()
    return [tuple(row) for row in found]


def is_readable(case: Case) -> bool:
    """Whether a file has the rows of one batch, or all of its rows are visible."""
    return case.layout in ("own", "merged") or (case.layout == "merged_parts" and not case.cut)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_spark_shows_the_rows(spark: SparkSession, objects: LocalStore, case: Case) -> None:
    made_of = made(case)
    shown = frame(spark, objects, made_of.topic, made_of.put(objects))
    assert (shown is not None) == is_readable(case)
    assert shown is None or rows(shown) == list(made_of.rows)


@pytest.mark.parametrize("damage", [damage for damage in DAMAGES if damage.engines], ids=str)
def test_spark_refuses_what_is_damaged(spark: SparkSession, objects: LocalStore, damage: Damage) -> None:
    made_of = made(Case(damage.layout))
    shown = frame(spark, objects, made_of.topic, made_of.put(objects, damage.table(made_of.table)))
    assert shown is not None
    with pytest.raises(SparkRuntimeException, match=f"a merged segment has no {damage.name}"):
        shown.collect()
