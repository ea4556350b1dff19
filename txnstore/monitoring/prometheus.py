"""Metrics as text in the exposition format of Prometheus, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from txnstore.admin.status import store_metrics
from txnstore.connection import Connection
from txnstore.metrics import Histogram, StoreMetrics
from txnstore.monitoring.catalogue import DURATIONS, PROCESS, STATUS, Durations, Metric
from txnstore.storage.redact import redact

PREFIX = "txnstore_"


def prometheus(connection: Connection, *, process: bool = True, status: bool = True) -> str:
    """The metrics as Prometheus text; the arguments are those of :meth:`txnstore.Store.prometheus`."""
    metrics = store_metrics(connection, status=status)
    labels = {"store": redact(connection.url)}
    lines: list[str] = []
    if status:
        lines += _metric_lines(STATUS, metrics, labels)
    if process:
        lines += _metric_lines(PROCESS, metrics, labels)
        for durations in DURATIONS:
            lines += _histogram_lines(durations, metrics, labels)
    return "".join(f"{line}\n" for line in lines)


def families(rows: Iterable[tuple[str, str, str, str | None, int | Mapping[str, int]]], url: str) -> str:
    """Format counters and gauges that are not of a store.

    Args:
        rows: Metrics, each with its name, ``counter`` or ``gauge``, help, the name of its label or None, and its value
            or the values by label value.
        url: The URL of the store, a label of each sample.
    """
    lines: list[str] = []
    for name, kind, text, label, value in rows:
        full_name = f"{PREFIX}{name}{'_total' if kind == 'counter' else ''}"
        store = {"store": redact(url)}
        values = value.items() if isinstance(value, Mapping) else [("", value)]
        labels = [
            ({**store, label: label_value} if label is not None else store, number) for label_value, number in values
        ]
        lines += _family_lines(
            full_name, kind, text, [_sample_line(full_name, sample_labels, number) for sample_labels, number in labels]
        )
    return "".join(f"{line}\n" for line in lines)


def _metric_lines(table: Iterable[Metric], metrics: StoreMetrics, labels: Mapping[str, str]) -> Iterator[str]:
    for metric in table:
        name = f"{PREFIX}{metric.name}{'_total' if metric.kind == 'counter' else ''}"
        samples = [
            _sample_line(name, {**labels, **dict(zip(metric.labels, values, strict=True))}, value)
            for values, value in metric.samples(metrics)
        ]
        yield from _family_lines(name, metric.kind, metric.help, samples)


def _histogram_lines(durations: Durations, metrics: StoreMetrics, labels: Mapping[str, str]) -> list[str]:
    name, samples = f"{PREFIX}{durations.name}_seconds", list[str]()
    for kind, histogram in durations.histograms_of(metrics):
        kind_labels = {**labels, durations.label: kind} if durations.label is not None else labels
        samples += _histogram_samples(name, kind_labels, histogram)
    return _family_lines(name, "histogram", durations.help, samples)


def _histogram_samples(name: str, labels: Mapping[str, str], histogram: Histogram) -> Iterator[str]:
    """The samples of the cumulative buckets up to ``+Inf``, then sum and count."""
    cumulative_count = 0
    bounds = [*(_number_text(bound / 1000) for bound in histogram.bounds_ms), "+Inf"]
    for bound, count in zip(bounds, histogram.counts, strict=True):
        cumulative_count += count
        yield _sample_line(f"{name}_bucket", {**labels, "le": bound}, cumulative_count)
    yield _sample_line(f"{name}_sum", labels, histogram.total_ms / 1000)
    yield _sample_line(f"{name}_count", labels, cumulative_count)


def _family_lines(name: str, kind: str, text: str, samples: list[str]) -> list[str]:
    """The lines of a metric with its samples; none without samples."""
    return [f"# HELP {name} {_escape(text)}", f"# TYPE {name} {kind}", *samples] if samples else []


def _sample_line(name: str, labels: Mapping[str, str], value: float) -> str:
    label_text = ",".join(f'{label}="{_escape(text, quotes=True)}"' for label, text in labels.items())
    return f"{name}{{{label_text}}} {_number_text(value)}"


def _escape(text: str, *, quotes: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _number_text(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value)).removesuffix(".0")
