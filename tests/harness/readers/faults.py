"""Faults that the readers' histories must find: ``python -m tests.harness.readers --faults``.

Each reverts a cure, or takes one away that a reader has always had.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from tests.harness.readers.run import drawn, run
from tests.mutants.mutant import Mutant
from txnstore.compactor import retention as maintenance_retention
from txnstore.compactor.compact import clean
from txnstore.compactor.compact.replacements import Replacements
from txnstore.core import maintenance
from txnstore.core.log import appending, retention, visibility
from txnstore.core.log.model import Partition
from txnstore.producer import upload
from txnstore.read.reader import Projection
from txnstore.scan import Scan
from txnstore.sql import views
from txnstore.tables import plan

_UNCHECKED_VERSION = Mutant(
    "a plan has an effect though its topic was altered since",
    maintenance.check_version,
    "if is_outdated($state, $tp.topic, $topic_id, $planned):",
    "if False:",
)
_UNCHECKED_COLUMNS = Mutant(
    "rows are read without columns that the reader does not know",
    Projection.check_columns,
    "if not self._known.issuperset($names):",
    "if False:",
)
_UNCHECKED_DELETION = Mutant(
    "the retention deletes records by settings that were changed since",
    retention.delete_records,
    "if is_outdated($state, $tp.topic, $topic.topic_id, $deletion.topic_version):",
    "if False:",
)


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        changes: The changes of the code that make it, all together.
        seed: The history that finds it.
        readers: Those that take part.
    """

    changes: tuple[Mutant, ...]
    seed: int = 0
    readers: tuple[str, ...] = ("scan", "consume")

    @property
    def name(self) -> str:
        return self.changes[0].name

    def found_by(self, seeds: int) -> tuple[int, str] | None:
        """The first seed that finds it, the recorded one before all others, and what differs only with the fault."""
        for seed in (self.seed, *range(seeds)):
            steps = drawn(seed, readers=self.readers)
            with ExitStack() as stack:
                for change in self.changes:
                    stack.enter_context(change.alive())
                failure, _ = run(seed, steps)
            if failure is not None and run(seed, steps)[0] is None:
                return seed, failure.error
        return None


FAULTS = (
    Fault((_UNCHECKED_VERSION, _UNCHECKED_COLUMNS)),
    Fault((_UNCHECKED_VERSION,)),
    Fault((_UNCHECKED_DELETION,)),
    Fault(
        (
            Mutant(
                "a chain takes rows of a version of their topic that it does not know",
                appending._check_topic,
                "is_outdated($state, $batch.topic, $batch.topic_id, $batch.topic_version)",
                "pass",
            ),
        )
    ),
    Fault(
        (
            Mutant(
                "aborted data is read",
                visibility.each_visible,
                "if $is_aborted is None or not $is_aborted($batch)",
                "if True",
            ),
        ),
        seed=3,
    ),
    Fault(
        (
            Mutant(
                "readers read past the last stable offset",
                Partition.read_limit,
                "self.last_stable_offset if $isolation is Isolation.READ_COMMITTED else self.high_watermark",
                "self.high_watermark",
            ),
        )
    ),
    Fault(
        (
            Mutant(
                "a clean keeps a record too few",
                clean._Survivors.mask,
                "return np.isin($offsets, $stay[:$split], assume_unique=True)",
                "return np.isin($offsets, $stay[1:$split], assume_unique=True)",
            ),
        )
    ),
    Fault(
        (
            Mutant(
                "a query reads a settled segment as if all of its rows were visible",
                views._settled_selects,
                "if $rows == $first.batch.segment.rows:",
                "if True:",
            ),
        ),
        readers=("sql", "past"),
    ),
    Fault(
        (
            Mutant(
                "a query counts offsets from the beginning of the segment",
                views._Branch._offset,
                "$part.batch.base_offset - $part.batch.first_row",
                "$part.batch.base_offset",
            ),
        ),
        readers=("sql", "past"),
    ),
    Fault(
        (
            Mutant(
                "a table loses what was deleted of its files",
                plan.steps,
                "trim(delete, [$each.file for $each in $plan.trims if $each.file.path in $before.data])",
                "pass",
            ),
        ),
        readers=("table",),
    ),
    Fault(
        (
            Mutant(
                "a replacement does not say which version of its topic it was planned with",
                Replacements._submit,
                "topic_version=$topic.version",
                "topic_version=None",
            ),
        )
    ),
    Fault(
        (
            Mutant(
                "a deletion by the retention does not say which version of its topic it was planned with",
                maintenance_retention.apply_retention,
                "$topic.topic_id, $topic.version)",
                "$topic.topic_id)",
            ),
        )
    ),
    Fault(
        (
            Mutant(
                "a scan does not begin at its start",
                Scan._visible,
                "self._start.get($tp)",
                "None",
            ),
        ),
        seed=5,
    ),
    Fault(
        (
            Mutant(
                "a batch does not say which version of its topic it has",
                upload.encode_rows,
                "topic_version=$writer.topic.version",
                "topic_version=None",
            ),
        )
    ),
)
