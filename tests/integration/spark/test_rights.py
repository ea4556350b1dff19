"""Spark reads and writes as the principal of the option, of the environment, or without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txnstore
import txnstore.spark
from tests.helpers.connections import connection_of
from tests.helpers.spark import append, drain, load, load_stream, records, stream_to, values
from txnstore.chain.payload import decode_entry
from txnstore.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ADMIN, ALICE = "User:admin", "User:alice"
AS_ALICE = {"principal": ALICE}


@pytest.fixture
def store(local_store_url: str) -> Iterator[Store]:
    """A store in which Alice may copy ``in`` to ``out`` with Spark, and nothing else."""
    with txnstore.create(local_store_url, principal=ADMIN) as created:
        for name in ("in", "out", "secret"):
            created.create_topic(name, partitions=2)
        created.acls.enable(ADMIN)
        created.acls.create(
            [
                txnstore.Acl(ALICE, "ALLOW", "READ", "TOPIC", "in"),
                txnstore.Acl(ALICE, "ALLOW", "WRITE", "TOPIC", "out"),
                txnstore.Acl(ALICE, "ALLOW", "WRITE", "TRANSACTIONAL_ID", "spark-", "PREFIXED"),
                txnstore.Acl(ALICE, "ALLOW", "READ", "GROUP", "etl"),
            ]
        )
        yield created


def test_a_job_writes_and_reads_as_the_principal_of_its_option(spark: SparkSession, store: Store) -> None:
    append(records(spark, 20), store.url, "out", **AS_ALICE)
    append(records(spark, 20), store.url, "in", principal=ADMIN)
    assert values(store, "out") == list(range(20))
    assert load(spark, store.url, "in", **AS_ALICE).count() == 20
    assert txnstore.spark.read(spark, store.url, "in", principal=ALICE).count() == 20
    assert {name for line in _principals(store) for name, _ in line} == {ADMIN, ALICE}


def test_what_is_refused_is_refused_before_any_task_runs(spark: SparkSession, store: Store) -> None:
    connection = connection_of(store)
    before, segments = connection.view().sequence, len(connection.objects.list("topics/"))
    for refused in (
        lambda: append(records(spark, 20), store.url, "secret", **AS_ALICE),
        lambda: append(records(spark, 20), store.url, "out"),
        lambda: append(records(spark, 20), store.url, "out", transactionalId="other", **AS_ALICE),
        lambda: load(spark, store.url, "secret", **AS_ALICE).count(),
        lambda: txnstore.spark.read(spark, store.url, "secret", principal=ALICE).count(),
    ):
        with pytest.raises(Exception, match="has no right to"):
            refused()
    assert connection.view().sequence == before
    assert len(connection.objects.list("topics/")) <= segments + 2  # Of the job whose id was refused at its commit.
    assert values(store, "secret") == []


def test_a_stream_copies_with_the_rights_of_its_principal(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    append(records(spark, 50), store.url, "in", principal=ADMIN)
    frame = load_stream(spark, store.url, "in", group="etl", **AS_ALICE).select("key", "value")
    drain(stream_to(frame, store.url, tmp_path / "checkpoint", topic="out", group="etl", **AS_ALICE))
    assert values(store, "out") == list(range(50))
    with pytest.raises(Exception, match="has no right to"):
        drain(stream_to(frame, store.url, tmp_path / "other", topic="secret", group="etl", **AS_ALICE))
    assert values(store, "secret") == []


def test_a_wrong_principal_is_an_error_of_the_option(spark: SparkSession, store: Store) -> None:
    with pytest.raises(Exception, match="a principal is 'User:' and a name"):
        load(spark, store.url, "in", principal="alice").count()


def _principals(store: Store) -> Iterator[list[tuple[str, int]]]:
    connection = connection_of(store)
    for number in range(1, connection.view().sequence + 1):
        key = connection.keys.entry(0, number)
        yield decode_entry(key, connection.objects.get(key)).principals or []
