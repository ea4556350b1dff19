"""Reads whole records, to write them again in another segment: nothing of a record may be lost on the way.

A read returns the columns that it is asked for. What is written in the place of its sources must have all that they
have, so a source with a column or a type that the topic of the plan does not have is refused: the topic was altered
since the plan was made. See docs/design/0040-plans.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from txnstore.catalog.schemas import is_wider
from txnstore.catalog.writing import topic_writer
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Segment
from txnstore.errors import CorruptionError, TopicChangedError
from txnstore.read.reader import Projection, Run
from txnstore.segment.sums import sums_of


class RewritingProjection(Projection):
    """Reserved columns, then all columns of a topic, of segments that have no others.

    Args:
        topic: The topic.
        reserved: The names of the reserved columns.
    """

    def __init__(self, topic: CatalogTopic, reserved: Sequence[pa.Field]) -> None:
        names = topic_writer(topic).stored.names
        super().__init__(topic, [*(field.name for field in reserved), *names])

    def check_columns(self, segment: Segment, names: Collection[str]) -> None:
        """Refuse a segment with a column that the topic does not have.

        Raises:
            TopicChangedError: It has one.
        """
        unknown = sorted(set(names) - self._known)
        if unknown:
            msg = (
                f"segment {segment.key} has the column {', '.join(map(repr, unknown))}, which version "
                f"{self.topic.version} of topic {self.topic.name!r} does not have"
            )
            raise TopicChangedError(msg)

    def fit(self, table: pa.Table, runs: Sequence[Run]) -> pa.Table:
        """Convert decoded rows to the columns of the topic, and check that no value was lost.

        Raises:
            TopicChangedError: A column has a wider type than that of the topic.
            CorruptionError: The conversion has changed a record.
        """
        held = [field for field in self._target if field.name in table.column_names]
        other = [field for field in held if table.schema.field(field.name).type != field.type]
        self._check_types(table.schema, other, runs)
        fitted = super().fit(table, runs)
        if other or len(held) < len(self._target):
            self._check_sums(table.select([field.name for field in held]), fitted, runs)
        return fitted

    def _check_types(self, found: pa.Schema, expected: Sequence[pa.Field], runs: Sequence[Run]) -> None:
        """Refuse rows with a column of a wider type than the topic has."""
        for field in expected:
            wider = found.field(field.name).type
            if is_wider(field.type, wider):
                msg = (
                    f"segment {runs[0].part.batch.segment.key}, or one read with it, has the column {field.name!r} of "
                    f"type {wider}, which is {field.type} in version {self.topic.version} of topic {self.topic.name!r}"
                )
                raise TopicChangedError(msg)

    def _check_sums(self, before: pa.Table, after: pa.Table, runs: Sequence[Run]) -> None:
        """Compare the sums of rows before their conversion with those after it: columns of nulls add nothing."""
        read, converted = sums_of(before), sums_of(after.select(self._target.names))
        if read != converted:
            segment = runs[0].part.batch.segment
            msg = f"the conversion of segment {segment.key} has changed records: {read} became {converted}"
            raise CorruptionError(msg)
