"""Reads whole records, to write them again in another segment: nothing of a record may be lost on the way.

As each read it refuses a segment with a column or a type that its topic does not have; what is written in the place of
its sources must also have all values that they have. See docs/internals/design/engines.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from txnstore.catalog.writing import topic_writer
from txnstore.core.catalog.model import CatalogTopic
from txnstore.errors import CorruptionError
from txnstore.read.reader import Projection, Run
from txnstore.segment.sums import sums_of


class RewritingProjection(Projection):
    """Reserved columns, then all columns of a topic; what is converted to them keeps its sums.

    Args:
        topic: The topic.
        reserved: The names of the reserved columns.
    """

    def __init__(self, topic: CatalogTopic, reserved: Sequence[pa.Field]) -> None:
        names = topic_writer(topic).stored.names
        super().__init__(topic, [*(field.name for field in reserved), *names])

    def fit(self, table: pa.Table, runs: Sequence[Run]) -> pa.Table:
        """Convert decoded rows to the columns of the topic, and check that no value was lost.

        Raises:
            NewerSchemaError: As :meth:`txnstore.read.reader.Projection.fit`.
            CorruptionError: The conversion has changed a record.
        """
        held = [field for field in self._target if field.name in table.column_names]
        fitted = super().fit(table, runs)
        narrower = any(table.schema.field(field.name).type != field.type for field in held)
        if narrower or len(held) < len(self._target):
            self._check_sums(table.select([field.name for field in held]), fitted, runs)
        return fitted

    def _check_sums(self, before: pa.Table, after: pa.Table, runs: Sequence[Run]) -> None:
        """Compare the sums of rows before their conversion with those after it: columns of nulls add nothing."""
        read, converted = sums_of(before), sums_of(after.select(self._target.names))
        if read != converted:
            segment = runs[0].part.batch.segment
            msg = f"the conversion of segment {segment.key} has changed records: {read} became {converted}"
            raise CorruptionError(msg)
