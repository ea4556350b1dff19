"""Faults that the readers' histories must find: ``python -m tests.harness.readers --faults``.

Each reverts a fix, or takes one away that a reader has always had.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tests.harness.readers.run import Failure, drawn, run
from tests.mutants.mutant import Mutant
from txnstore.compactor import retention as maintenance_retention
from txnstore.compactor.compact import clean
from txnstore.compactor.compact.compaction import _Compaction
from txnstore.compactor.compact.replacements import Replacements
from txnstore.coordinator import copies
from txnstore.core import maintenance
from txnstore.core.log import appending, retention, visibility
from txnstore.core.log.model import Partition
from txnstore.core.log.slices import Slice
from txnstore.read import rows
from txnstore.read.reader import OpenSlice
from txnstore.read.rows import Columns, File, RowPlan
from txnstore.scan import Scan, _prune_slices
from txnstore.segment import parquet
from txnstore.sql import shared, views
from txnstore.tables import plan


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        name: Describes it.
        changes: The changes of the code that make it, all together: a function, a part of its source, what replaces it.
        seed: The history that finds it.
        readers: Those that take part; None: all that are quick.
        quick: Whether the tests run that history.
        given: Changes without which it cannot show, and with which no reader is wrong: what writers of an earlier
            release have done, for example.
    """

    name: str
    changes: tuple[tuple[Any, str, str], ...]
    seed: int = 0
    readers: tuple[str, ...] | None = ("scan", "consume")
    quick: bool = False
    given: tuple[tuple[Any, str, str], ...] = ()

    def failure(self, seed: int) -> str | None:
        """How a history fails with the fault, and not without it; None if it does not."""
        failure = self._run(seed, *self.given, *self.changes)
        return failure.error if failure is not None and self._run(seed, *self.given) is None else None

    def _run(self, seed: int, *changes: tuple[Any, str, str]) -> Failure | None:
        with ExitStack() as stack:
            for change in changes:
                stack.enter_context(Mutant(self.name, *change).alive())
            failure, _ = run(seed, drawn(seed, readers=self.readers))
        return failure

    def found_by(self, seeds: int) -> tuple[int, str] | None:
        """The first seed that finds it, the recorded one before all others, and what differs only with the fault."""
        for seed in (self.seed, *range(seeds)):
            error = self.failure(seed)
            if error is not None:
                return seed, error
        return None


_TOPIC_VERSION = (
    maintenance.check_version,
    "if is_outdated($state, $tp.topic, $topic_id, $planned):",
    "if False:",
)
#: Plans of topics that are compacted still have an effect: their records may go, but no column may.
_VERSION_OF_COLUMNS = (
    *_TOPIC_VERSION[:2],
    (
        'if is_outdated($state, $tp.topic, $topic_id, $planned) and "compact" not in '
        '$state.topics[$tp.topic].config.get("cleanup.policy", ""):'
    ),
)
_COLUMNS = (Columns.check, "if not self._known.issuperset($found):", "if False:")
_SUMS = (rows._check_sums, "if $read != $converted:", "if False:")
_OLD_TOPICS = (
    _Compaction._compact_partitions,
    "scope = self._scope(self._connection.view(refresh=False), name)",
    "scope = type(scope)(self._connection.view(), scope.topics, scope.targets)",
)

#: No chain gets a new version of a topic, nor refuses the rows of another one: as writers of earlier releases did.
_LOOSE_COPIES = (
    (
        copies.copy_everywhere,
        "for $number in leaders_of($topic, len($chains)) - {CATALOG}",
        "for $number in set()",
    ),
    (
        appending._check_topic,
        "is_outdated($state, $batch.topic, $batch.topic_id, $batch.topic_version)",
        "pass",
    ),
)

FAULTS = (
    Fault(
        "a plan has an effect though its topic was altered since",
        (_TOPIC_VERSION,),
        seed=1,
        readers=None,
        quick=True,
    ),
    Fault(
        "a compaction destroys a column that was added since its catalog was read",
        (
            _OLD_TOPICS,
            _VERSION_OF_COLUMNS,
            _COLUMNS,
            _SUMS,
        ),
        seed=130,
    ),
    Fault(
        "a replacement does not say which version of its topic it was planned with",
        (
            (
                Replacements.submit,
                "topic_version=$topic.version",
                "topic_version=None",
            ),
        ),
        seed=1,
        readers=None,
    ),
    Fault(
        "the retention deletes records by settings that were changed since",
        (
            (
                retention.delete_records,
                "if is_outdated($state, $tp.topic, $topic.topic_id, $deletion.topic_version):",
                "if False:",
            ),
        ),
        seed=5,
        quick=True,
    ),
    Fault(
        "a deletion by the retention does not say which version of its topic it was planned with",
        (
            (
                maintenance_retention.apply_retention,
                "$topic.topic_id, $topic.version)",
                "$topic.topic_id)",
            ),
        ),
        seed=5,
    ),
    Fault(
        "a chain keeps its copy of a topic when the topic is altered, and takes plans and rows of others",
        (*_LOOSE_COPIES, _VERSION_OF_COLUMNS),
        seed=5,
    ),
    Fault(
        "aborted data is read",
        (
            (
                visibility.iterate_visible_slices,
                "if $is_aborted is None or not $is_aborted($batch)",
                "if True",
            ),
        ),
        seed=2,
        quick=True,
    ),
    Fault(
        "readers read past the last stable offset",
        (
            (
                Partition.read_limit,
                "self.last_stable_offset if $isolation is Isolation.READ_COMMITTED else self.high_watermark",
                "self.high_watermark",
            ),
        ),
        seed=29,
    ),
    Fault(
        "a clean keeps a record too few",
        (
            (
                clean._Survivors.mask,
                "return np.isin($offsets, $stay[:$split], assume_unique=True)",
                "return np.isin($offsets, $stay[1:$split], assume_unique=True)",
            ),
        ),
        seed=1,
        quick=True,
    ),
    Fault(
        "a query reads a merged segment below the log start",
        (
            (
                RowPlan.groups,
                "not ($part.whole and $part.batch.alone)",
                "not $part.batch.alone",
            ),
        ),
        seed=1,
        readers=None,
    ),
    Fault(
        "a scan reads a segment of several batches from its beginning",
        (
            (
                OpenSlice._decode,
                "$table.slice($piece.start, $piece.rows)",
                "$table.slice(0, $piece.rows)",
            ),
        ),
        seed=24,
    ),
    Fault(
        "a scan reads a merged segment below the log start",
        (
            (
                OpenSlice._decode,
                "if self.part.origin is None:",
                "if False:",
            ),
        ),
        seed=1,
        readers=None,
    ),
    Fault(
        "a scan does not begin at its start",
        (
            (
                Scan._visible_slices,
                "self._start.get($tp)",
                "None",
            ),
        ),
        seed=2,
        quick=True,
    ),
    Fault(
        "rows have the time of the append of another batch",
        (
            (
                rows._number_per_row,
                "np.array($values, np.int64)",
                "np.array([$values[0]] * len($values), np.int64)",
            ),
        ),
        seed=24,
    ),
    Fault(
        "a query reads a merged segment as if all of its rows were visible",
        (
            (
                File.whole,
                "sum($part.batch.records for $part in self.slices if $part.whole) == self.segment.rows",
                "True",
            ),
        ),
        seed=30,
        readers=None,
    ),
    Fault(
        "readers count offsets from the beginning of the segment",
        (
            (
                Slice.origin,
                "$batch.base_offset - $batch.first_row",
                "$batch.base_offset",
            ),
        ),
        seed=25,
        readers=None,
    ),
    Fault(
        "a table loses what was deleted of its files",
        (
            (
                plan.plan_steps,
                "trim(delete, [$each.file for $each in $plan.trims if $each.file.path in $before.data])",
                "pass",
            ),
        ),
        seed=41,
        readers=None,
    ),
    Fault(
        "a scan leaves out slices that a filter of times may match",
        (
            (
                _prune_slices,
                "& (timestamp <= last)",
                "& (timestamp <= first)",
            ),
        ),
        seed=8,
        readers=("scan",),
        quick=True,
    ),
    Fault(
        "segments have statistics of floats, and filters rely on them",
        (
            (
                parquet._has_statistics,
                "if pt.is_floating($data_type):",
                "if False:",
            ),
            (
                views.read_parquet_from,
                ", can_have_nan = true)",
                ")",
            ),
        ),
        seed=22,
        readers=("sql", "duckdb"),
    ),
    Fault(
        "queries use the rights of an earlier moment",
        (
            (
                shared.SharedDatabase.cursor,
                "$database.rules is not $rules or ",
                "",
            ),
        ),
        seed=10,
        readers=("rights",),
    ),
    Fault(
        "a tombstone is removed at its second clean, whatever its horizon is",
        (
            (
                clean.Clean._without_old_tombstones,
                "pc.less_equal($horizon, self._now)",
                "horizon.is_valid()",
            ),
        ),
        seed=1,
    ),
)

#: Faults that show in an answer, and that no history of those tried has found yet.
SOUGHT = (
    Fault(
        "rows are read without columns that the reader does not know",
        (_COLUMNS,),
        readers=None,
        given=_LOOSE_COPIES,
    ),
    Fault(
        "rows of a wider type are read as the narrower one",
        (
            (
                Columns.conform,
                "if $known != $field.type and is_wider($known, $field.type):",
                "if False:",
            ),
        ),
        readers=None,
        given=_LOOSE_COPIES,
    ),
    Fault(
        "a chain that lacks a version of a topic does not get it",
        (
            (
                copies.copy_topics,
                "return _update_copies($chains, $catalog, $number, $topics)",
                "return False",
            ),
        ),
    ),
    Fault(
        "tables have statistics of floats",
        (
            (
                parquet._has_statistics,
                "if pt.is_floating($data_type):",
                "if False:",
            ),
        ),
        readers=("table",),
    ),
    Fault(
        "a table keeps copies of rows that a clean has removed",
        (
            (
                plan.plan_partition,
                "$file.first >= max($cleaned, $log_start)",
                "$file.first >= $log_start",
            ),
        ),
        readers=("table",),
    ),
    Fault(
        "a table shows rows below the log start of a file that is new in it",
        (
            (
                plan.plan_partition,
                "($log_start != $before.log_start or $file.path not in $known)",
                "$log_start != $before.log_start",
            ),
        ),
        readers=("table",),
    ),
)
