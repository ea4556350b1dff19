"""Plans what DuckDB needs to show a snapshot: a SELECT for each topic, and the files that it reads."""

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
        in_place: The segments that DuckDB reads from a local folder itself.
    """

    select: str = ""
    files: dict[str, VirtualFile] = field(default_factory=dict)
    in_place: list[SegmentObject] = field(default_factory=list)


def plan_topic(objects: ObjectStore, topic: Topic, view: View, isolation: Isolation, root: str | None) -> Plan:
    """Lists the segments that a reader of the topic sees, and writes the SELECT over them. Reads no object.

    Args:
        objects: Where the segments are.
        topic: The topic, as it is in ``view``.
        view: The view to show.
        isolation: Which records are visible.
        root: The local folder of the store if DuckDB may read Parquet segments there itself, or None.

    Returns:
        The plan; the same text for the same visible segments.
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
    """The columns of each table of the schema ``txn``; ``txn.snapshot`` is not among them."""
    return inspection.SCHEMAS | history.SCHEMAS


def inspection_files(objects: ObjectStore, pool: Callable[[], Executor], view: View) -> dict[str, VirtualFile]:
    """The tables of the schema ``txn`` for a state, by name; each is made when it is first read.

    Args:
        objects: Where the entries of the chains are.
        pool: Gives the threads that read the entries.
        view: The view to show.
    """
    past = History(objects, pool, [chain.sequence for chain in view.states])
    files: dict[str, VirtualFile] = {name: _state_table(name, view) for name in inspection.SCHEMAS}
    return files | {name: _past_table(name, past) for name in history.SCHEMAS}


def _state_table(name: str, view: View) -> TableFile:
    return TableFile(lambda: inspection.table(name, view))


def _past_table(name: str, past: History) -> TableFile:
    return TableFile(lambda: past.table(name))
