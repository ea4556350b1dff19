"""The exported metrics: name, kind, unit, meaning, and the source of each value. All exporters use this list."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from txnstore.metrics import Histogram, StoreMetrics, StoreStatus

#: The values of the labels of a sample, in the order of the names, and its value.
Sample = tuple[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class Metric:
    """A counter, which only grows, or a gauge.

    Attributes:
        name: Its name without prefix, as Prometheus has it; a counter has no suffix ``_total`` here.
        help: The meaning, in one line.
        labels: The names of its labels.
        samples: Its values.
        unit: The unit, if the value is not a count: ``s`` or ``By`` (UCUM).
    """

    name: str
    help: str
    labels: tuple[str, ...]
    samples: Callable[[StoreMetrics], Iterable[Sample]]
    kind: Literal["counter", "gauge"] = "counter"
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Durations:
    """A histogram of durations in seconds.

    Attributes:
        name: Its name without prefix.
        help: The meaning, in one line.
        kinds: The kinds of :attr:`~txnstore.metrics.StoreMetrics.durations` that it shows.
        label: The label with the kind; None if it shows only one.
    """

    name: str
    help: str
    kinds: tuple[str, ...]
    label: str | None = None

    def histograms_of(self, metrics: StoreMetrics) -> Iterable[tuple[str, Histogram]]:
        """The kinds with their histograms."""
        return ((kind, metrics.durations[kind]) for kind in self.kinds if kind in metrics.durations)


def _process_count(name: str) -> Callable[[StoreMetrics], Iterable[Sample]]:
    return lambda metrics: [((), getattr(metrics, name))]


def _from_status(rows: Callable[[StoreStatus], Iterable[Sample]]) -> Callable[[StoreMetrics], Iterable[Sample]]:
    return lambda metrics: rows(metrics.status) if metrics.status is not None else ()


def _by_chain(name: str) -> Callable[[StoreMetrics], Iterable[Sample]]:
    return _from_status(lambda status: [((str(row.chain),), getattr(row, name)) for row in status.chains])


def _by_partition(name: str) -> Callable[[StoreMetrics], Iterable[Sample]]:
    return _from_status(
        lambda status: [((row.topic, str(row.partition)), getattr(row, name)) for row in status.partitions]
    )


def _by_transaction(name: str) -> Callable[[StoreMetrics], Iterable[Sample]]:
    return _from_status(
        lambda status: [
            ((row.transactional_id, row.state, "true" if row.prepared else "false"), getattr(row, name))
            for row in status.transactions
        ]
    )


def _by_table(name: str) -> Callable[[StoreMetrics], Iterable[Sample]]:
    return _from_status(lambda status: [((row.topic,), getattr(row, name)) for row in status.tables])


_PARTITION_LABELS = ("topic", "partition")
_TRANSACTION_LABELS = ("transactional_id", "state", "prepared")

#: The counters of this process since it opened the store.
PROCESS: tuple[Metric, ...] = (
    Metric(
        "requests",
        "Requests to the storage, by kind.",
        ("kind",),
        lambda metrics: [((kind,), getattr(metrics, f"{kind}s")) for kind in ("get", "put", "list", "delete")],
    ),
    Metric("request_failures", "Requests that failed after all repetitions.", (), _process_count("failures")),
    Metric("retries", "Repetitions of requests after a failure or an unknown outcome.", (), _process_count("retries")),
    Metric("read_bytes", "Bytes read from the storage.", (), _process_count("bytes_in"), unit="By"),
    Metric("written_bytes", "Bytes written to the storage.", (), _process_count("bytes_out"), unit="By"),
    Metric("commits", "Entries that this process added to the chains.", (), _process_count("commits")),
    Metric(
        "commands",
        "Commands that these entries decided, refused ones included; callers may share an entry.",
        (),
        _process_count("commands"),
    ),
    Metric(
        "carried_commands",
        "Commands of other processes of this machine that these entries carry.",
        (),
        _process_count("carried"),
    ),
    Metric(
        "handed_over_commands",
        "Commands of this process that entries of another process of this machine carry.",
        (),
        _process_count("handed_over"),
    ),
    Metric("conflicts", "Lost races: another process created the entry first.", (), _process_count("conflicts")),
    Metric("unknown_outcomes", "Writes of entries whose outcome was unknown.", (), _process_count("unknown_outcomes")),
    Metric("checkpoints", "Checkpoints that this process wrote.", (), _process_count("checkpoints")),
    Metric(
        "checkpoint_failures",
        "Checkpoints that this process could not write.",
        (),
        _process_count("checkpoint_failures"),
    ),
    Metric(
        "background_merged_batches",
        "Small batches that this process has merged in the background.",
        (),
        _process_count("background_merged_batches"),
    ),
    Metric(
        "background_merge_failures",
        "Times that it could not merge them.",
        (),
        _process_count("background_merge_failures"),
    ),
    Metric("refusals", "Commands and reads that were refused for a missing right.", (), _process_count("refusals")),
)

#: The durations of calls of this process.
DURATIONS: tuple[Durations, ...] = (
    Durations(
        "request_duration",
        "Duration of requests to the storage, with their repetitions, by kind.",
        ("get", "put", "put_if_absent", "list", "delete", "stat", "now_ms"),
        "kind",
    ),
    Durations("commit_duration", "Duration of commands, until their entries are stored.", ("commit",)),
    Durations("poll_duration", "Duration of polls, without pauses for new records.", ("poll",)),
)

#: The state of the store, whichever processes use it.
STATUS: tuple[Metric, ...] = (
    Metric("chain_entries", "Entries of a chain.", ("chain",), _by_chain("entries"), "gauge"),
    Metric(
        "chain_checkpoint_entries",
        "Entries of a chain that its newest checkpoint includes; an open reads all later ones.",
        ("chain",),
        _by_chain("checkpoint"),
        "gauge",
    ),
    Metric(
        "chain_journal_watermark",
        "Entry in which the earliest transaction of a chain began that is not completed, or the next; 0: not known.",
        ("chain",),
        _by_chain("journal_watermark"),
        "gauge",
    ),
    Metric(
        "partition_log_start_offset", "First readable offset.", _PARTITION_LABELS, _by_partition("log_start"), "gauge"
    ),
    Metric(
        "partition_last_stable_offset",
        "Offset where read_committed readers stop.",
        _PARTITION_LABELS,
        _by_partition("last_stable"),
        "gauge",
    ),
    Metric(
        "partition_high_watermark",
        "Offset of the next record.",
        _PARTITION_LABELS,
        _by_partition("high_watermark"),
        "gauge",
    ),
    Metric(
        "partition_lso_distance",
        "High watermark minus last stable offset: how far open transactions hold readers back.",
        _PARTITION_LABELS,
        _by_partition("lso_distance"),
        "gauge",
    ),
    Metric(
        "partition_blocked_records",
        "Committed records that wait for an open transaction.",
        _PARTITION_LABELS,
        _by_partition("blocked"),
        "gauge",
    ),
    Metric(
        "partition_segments",
        "Segments; compactions merge small ones.",
        _PARTITION_LABELS,
        _by_partition("segments"),
        "gauge",
    ),
    Metric("partition_bytes", "Size of the segments.", _PARTITION_LABELS, _by_partition("bytes"), "gauge", "By"),
    Metric(
        "transaction_age_seconds",
        "Time since an open transaction began.",
        _TRANSACTION_LABELS,
        _by_transaction("age"),
        "gauge",
        "s",
    ),
    Metric(
        "transaction_timeout_seconds",
        "Time after which any process may abort an open transaction.",
        _TRANSACTION_LABELS,
        _by_transaction("timeout"),
        "gauge",
        "s",
    ),
    Metric(
        "group_members",
        "Live members of a consumer group.",
        ("group", "state"),
        _from_status(lambda status: [((row.group, row.state), row.members) for row in status.groups]),
        "gauge",
    ),
    Metric(
        "group_generation",
        "Generation of a consumer group, which grows with each change of its members.",
        ("group",),
        _from_status(lambda status: [((row.group,), row.generation) for row in status.groups]),
        "gauge",
    ),
    Metric(
        "group_committed_offset",
        "Next offset that a group reads; absent where nothing is committed.",
        ("group", *_PARTITION_LABELS),
        _from_status(
            lambda status: [
                ((row.group, row.topic, str(row.partition)), row.offset)
                for row in status.lags
                if row.offset is not None
            ]
        ),
        "gauge",
    ),
    Metric(
        "group_lag",
        "Offsets that a group is behind the last stable offset.",
        ("group", *_PARTITION_LABELS),
        _from_status(lambda status: [((row.group, row.topic, str(row.partition)), row.lag) for row in status.lags]),
        "gauge",
    ),
    Metric("table_version", "Version of a table; 0: it is not published.", ("topic",), _by_table("version"), "gauge"),
    Metric("table_rows", "Rows that readers of a table see.", ("topic",), _by_table("rows"), "gauge"),
    Metric(
        "table_copied_bytes",
        "Size of copies of rows, which a compaction makes unnecessary.",
        ("topic",),
        _by_table("copied_bytes"),
        "gauge",
        "By",
    ),
    Metric(
        "table_behind_entries",
        "Entries of the chains after what the table shows.",
        ("topic",),
        _by_table("behind"),
        "gauge",
    ),
    Metric(
        "table_lag_seconds",
        "How much newer the newest entry is than what the table shows.",
        ("topic",),
        _by_table("lag"),
        "gauge",
        "s",
    ),
    Metric(
        "last_maintenance_seconds",
        "Time since a kind of maintenance was last done, or there was nothing to do; before, since the store exists.",
        ("kind",),
        _from_status(lambda status: [((row.kind,), row.age) for row in status.maintenance]),
        "gauge",
        "s",
    ),
    Metric(
        "retention_overdue_seconds",
        "How long the oldest record of a topic is past its retention; 0: none is.",
        ("topic",),
        _from_status(lambda status: [((row.topic,), row.overdue) for row in status.retention]),
        "gauge",
        "s",
    ),
)
