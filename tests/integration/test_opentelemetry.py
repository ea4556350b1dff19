"""The metrics through OpenTelemetry, read by its SDK."""

from __future__ import annotations

import gc
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint

from tests.helpers.shell import runtime
from txnstore.metrics import BOUNDS_MS
from txnstore.monitoring.catalogue import DURATIONS, PROCESS, STATUS
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on
from txnstore.testing import ManualClock

Points = dict[str, list[Any]]


def collected(reader: InMemoryMetricReader) -> Points:
    data = reader.get_metrics_data()
    points: Points = {}
    for resource in data.resource_metrics if data is not None else ():
        for scope in resource.scope_metrics:
            assert scope.scope.name == "txnstore"
            for metric in scope.metrics:
                points[metric.name] = list(metric.data.data_points)
    return points


def values(points: Points, name: str) -> dict[str, float]:
    """The values of a metric by the URL of the store."""
    return {
        str((point.attributes or {})["store"]): point.value
        for point in points[name]
        if isinstance(point, NumberDataPoint)
    }


def test_all_metrics_of_all_stores_are_reported_until_a_store_is_collected() -> None:
    clock, reader = ManualClock(), InMemoryMetricReader()
    provider = MeterProvider([reader])
    stores = [create_on(MemoryStore.named(name), runtime=runtime(clock)) for name in ("otel-1", "otel-2")]
    for store in stores:
        store.instrument(provider, status=True)
        store.create_topic("t")
        with store.producer("p") as producer:
            producer.begin_transaction()
            producer.send("t", b"v")
            producer.flush()
            with store.consumer(["t"], group="g") as consumer:
                consumer.poll()
                points = collected(reader)
    assert set(points) <= {f"txnstore.{metric.name.removesuffix('_seconds')}" for metric in (*PROCESS, *STATUS)} | {
        f"txnstore.{durations.name}" for durations in DURATIONS
    }
    of_tables = sum(metric.name.startswith("table_") for metric in STATUS)  # There are none,
    # no group has an offset, and no topic a retention.
    assert len(points) == len(PROCESS) + len(STATUS) + len(DURATIONS) - of_tables - 2
    clock.advance(1_000)
    points = collected(reader)
    commits = values(points, "txnstore.commits")
    assert commits == {store.url: store.metrics().commits for store in stores}

    del store, consumer, producer, stores[1]
    gc.collect()
    clock.advance(1_000)
    assert set(values(collected(reader), "txnstore.commits")) == {stores[0].url}


def test_durations_are_histograms_with_our_bounds() -> None:
    clock, reader = ManualClock(), InMemoryMetricReader()
    with create_on(MemoryStore(), runtime=runtime(clock)) as store:
        store.instrument(MeterProvider([reader]))
        store.create_topic("t")
        (point,) = collected(reader)["txnstore.commit_duration"]
        assert isinstance(point, HistogramDataPoint)
        assert (point.count, list(point.explicit_bounds)) == (1, [bound / 1000 for bound in BOUNDS_MS])
        kinds = {(item.attributes or {}).get("kind") for item in collected(reader)["txnstore.request_duration"]}
        assert "put_if_absent" in kinds


def test_one_collection_reads_the_state_once() -> None:
    clock, reader = ManualClock(), InMemoryMetricReader()
    with create_on(MemoryStore(), runtime=runtime(clock)) as store:
        store.create_topic("t")
        store.instrument(MeterProvider([reader]), status=True)
        before = store.metrics().gets
        collected(reader)
        assert store.metrics().gets == before + 3  # Two for the head, one for the record of maintenance.
