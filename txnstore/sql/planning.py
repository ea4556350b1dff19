"""Plans the views of a snapshot: the SELECT of each topic, and the files that it reads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

import pyarrow as pa

from txnstore.core.catalog.model import Topic
from txnstore.core.log.model import Segment
from txnstore.core.model import Isolation, TopicPartition
from txnstore.core.view import View
from txnstore.sql import history, inspection
from txnstore.sql.filesystem import PROTOCOL, SegmentObject, TableFile, VirtualFile
from txnstore.sql.history import History
from txnstore.sql.views import topic_select, visible_slices
from txnstore.storage.base import ObjectStore


@dataclass(slots=True)
class Plan:
    """The view of a topic.

    Attributes:
        select: The SELECT of the view.
        files: The files below ``txnseg://`` that it reads, by path.
        in_place: The segments that DuckDB reads directly from a local folder.
    """

    select: str = ""
    files: dict[str, VirtualFile] = field(default_factory=dict)
    in_place: list[SegmentObject] = field(default_factory=list)


def plan_topic(objects: ObjectStore, topic: Topic, view: View, isolation: Isolation, root: str | None) -> Plan:
    """Plans the view of a topic: lists the visible segments and writes the SELECT over them. Reads no object.

    Args:
        objects: The object store.
        topic: The topic, as it is in ``view``.
        view: The view to show.
        isolation: Which records are visible.
        root: The local folder in which DuckDB reads Parquet segments directly; None to read them through txnstore.

    Returns:
        The plan. Equal visible segments give the same text.
    """
    plan = Plan()

    def locate(tp: TopicPartition, segment: Segment) -> str:
        file = SegmentObject(objects, tp, segment)
        if root is not None and segment.format == "parquet":
            plan.in_place.append(file)
            return f"{root}/{segment.key}"
        plan.files[segment.key] = file
        return f"{PROTOCOL}://{segment.key}"

    plan.select = topic_select(topic, visible_slices(topic, view, isolation), locate)
    return plan


def inspection_schemas() -> dict[str, pa.Schema]:
    """Return the columns of each table of the schema ``txn``, except for ``txn.snapshot``."""
    return inspection.SCHEMAS | history.SCHEMAS


def inspection_files(objects: ObjectStore, pool: Callable[[], Executor], view: View) -> dict[str, VirtualFile]:
    """Return the tables of the schema ``txn`` for a view, by name; each is computed when it is first read.

    Args:
        objects: The object store.
        pool: Returns the executor of requests for entries.
        view: The view to show.
    """
    past = History(objects, pool, [chain.sequence for chain in view.states])
    files: dict[str, VirtualFile] = {name: _state_table(name, view) for name in inspection.SCHEMAS}
    return files | {name: _past_table(name, past) for name in history.SCHEMAS}


def _state_table(name: str, view: View) -> TableFile:
    return TableFile(lambda: inspection.table(name, view))


def _past_table(name: str, past: History) -> TableFile:
    return TableFile(lambda: past.table(name))
