"""Metrics through OpenTelemetry's API, which the application configures with an SDK and an exporter."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from txnstore._version import __version__
from txnstore.admin.status import store_metrics
from txnstore.connection import Connection
from txnstore.errors import InvalidConfigError
from txnstore.metrics import BOUNDS_MS, StoreMetrics
from txnstore.monitoring.catalogue import DURATIONS, PROCESS, STATUS, Durations, Metric
from txnstore.storage.redact import redact
from txnstore.threads import load

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, Observation

#: Milliseconds for which metrics of a store are reused: one collection calls back for each instrument.
_MAX_AGE_MS = 1_000


def instrument(connection: Connection, meter_provider: MeterProvider | None = None, *, status: bool = True) -> None:
    """Report the metrics of a store; the arguments are those of :meth:`txnstore.Store.instrument`."""
    load("opentelemetry.metrics")
    try:
        from opentelemetry.metrics import get_meter_provider
    except ImportError as error:
        msg = "opentelemetry-api is not installed: pip install 'txnstore[otel]'"
        raise InvalidConfigError(msg) from error
    provider = meter_provider if meter_provider is not None else get_meter_provider()
    reporter = _REPORTERS.get(provider)
    if reporter is None:
        reporter = _REPORTERS[provider] = _Reporter(provider.get_meter("txnstore", __version__))
    reporter.add(connection, status=status)


class _Reporter:
    """The instruments of one provider, created once for all stores."""

    def __init__(self, meter: Meter) -> None:
        self._stores: weakref.WeakKeyDictionary[Connection, _CachedMetrics] = weakref.WeakKeyDictionary()
        for metric in (*PROCESS, *STATUS):
            create = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
            name = metric.name.removesuffix("_seconds")
            create(f"txnstore.{name}", [self._callback(metric)], unit=metric.unit, description=metric.help)
        self._histograms = [(durations, _histogram(meter, durations)) for durations in DURATIONS]

    def add(self, connection: Connection, *, status: bool) -> None:
        """Report another store."""
        self._stores[connection] = _CachedMetrics(connection, status=status)
        connection.measurements.listener = self._listener(redact(connection.url))

    def _callback(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        """Return the function by which OpenTelemetry reads a metric of all stores."""
        from opentelemetry.metrics import Observation

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            for connection, cached_metrics in list(self._stores.items()):
                attributes = {"store": redact(connection.url)}
                for labels, value in metric.samples(cached_metrics.current(connection)):
                    yield Observation(value, {**attributes, **dict(zip(metric.labels, labels, strict=True))})

        return observe

    def _listener(self, url: str) -> Callable[[str, int], None]:
        """Return a listener that records each duration in the histogram of its kind."""
        targets = {}
        for durations, histogram in self._histograms:
            for kind in durations.kinds:
                attributes = {"store": url}
                if durations.label is not None:
                    attributes[durations.label] = kind
                targets[kind] = (histogram, attributes)

        def listen(kind: str, took_ms: int) -> None:
            histogram, attributes = targets[kind]
            histogram.record(took_ms / 1000, attributes)

        return listen


class _CachedMetrics:
    """The last metrics of a store, without a reference to its connection, which can therefore be collected."""

    def __init__(self, connection: Connection, *, status: bool) -> None:
        self._status = status
        self._read_at = connection.runtime.monotonic()
        self._metrics: StoreMetrics | None = None

    def current(self, connection: Connection) -> StoreMetrics:
        """The metrics of the store, read again if they are too old."""
        now = connection.runtime.monotonic()
        if self._metrics is None or now - self._read_at >= _MAX_AGE_MS:
            self._metrics, self._read_at = store_metrics(connection, status=self._status), now
        return self._metrics


def _histogram(meter: Meter, durations: Durations) -> Histogram:
    return meter.create_histogram(
        f"txnstore.{durations.name}",
        unit="s",
        description=durations.help,
        explicit_bucket_boundaries_advisory=[bound / 1000 for bound in BOUNDS_MS],
    )


#: One reporter per provider.
_REPORTERS: dict[MeterProvider, _Reporter] = {}
