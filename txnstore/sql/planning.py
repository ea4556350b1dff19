"""Plans the views of a snapshot: the SELECT of each topic, and the files that it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import pyarrow as pa

from txnstore.chain.keys import Keys
from txnstore.core.catalog.model import Topic
from txnstore.core.log.model import Segment
from txnstore.core.model import Isolation, TopicPartition
from txnstore.core.view import View
from txnstore.errors import CorruptionError, TxnStoreError, UnsupportedFormatError
from txnstore.sql import history, inspection
from txnstore.sql.access import PROTOCOL
from txnstore.sql.filesystem import TableFile, VirtualFile, segment_path
from txnstore.sql.history import History
from txnstore.sql.views import read_parquet, topic_select, visible_slices
from txnstore.storage.base import ObjectStore


@dataclass(frozen=True, slots=True)
class Plan:
    """The view of a topic.

    Attributes:
        select: The SELECT of the view.
        refused: The path below ``txnseg://`` that the view reads instead of its segments, and why the topic cannot be
            shown; None if it can.
        paths: The paths below ``txnseg://`` of its segments.
    """

    select: str
    refused: tuple[str, TxnStoreError] | None = None
    paths: tuple[str, ...] = ()


def plan_topic(topic: Topic, view: View, isolation: Isolation) -> Plan:
    """Plans the view of a topic: lists the visible segments and writes the SELECT over them. Reads no object.

    A topic that DuckDB cannot show gets a view that raises the reason, so that it does not hide the others.

    Args:
        topic: The topic, as it is in ``view``.
        view: The view to show.
        isolation: Which records are visible.

    Returns:
        The plan. Equal visible segments give the same text.
    """
    paths: list[str] = []

    def locate(_: TopicPartition, segment: Segment) -> str:
        paths.append(segment_path(segment))
        return f"{PROTOCOL}://{paths[-1]}"

    try:
        select = topic_select(topic, visible_slices(topic, view, isolation), locate)
    except TxnStoreError as error:
        path = f"refused/{topic.topic_id}-{topic.version}"
        kind = CorruptionError if isinstance(error, CorruptionError) else UnsupportedFormatError
        reason = kind(f"topic {topic.name!r} cannot be shown in SQL: {error}")
        columns = pa.schema([("reason", pa.string())])
        return Plan(f"SELECT reason FROM {read_parquet([f'{PROTOCOL}://{path}'], columns)}", (path, reason))
    return Plan(select, None, tuple(paths))


def inspection_schemas() -> dict[str, pa.Schema]:
    """Return the columns of each table of the schema ``txn``, except for ``txn.snapshot``."""
    return inspection.SCHEMAS | history.SCHEMAS


def inspection_files(
    objects: ObjectStore,
    keys: Keys,
    pool: Callable[[], Executor],
    view: View,
    firsts: Callable[[], Sequence[int]],
) -> dict[str, VirtualFile]:
    """Return the tables of the schema ``txn`` for a view, by name; each is computed when it is first read.

    Args:
        objects: The object store.
        keys: The keys of the store.
        pool: Returns the executor of requests for entries.
        view: The view to show.
        firsts: Returns the last entry of each chain that may be deleted.
    """
    past = History(objects, keys, pool, [chain.sequence for chain in view.states], firsts)
    files: dict[str, VirtualFile] = {name: _state_table(name, view) for name in inspection.SCHEMAS}
    return files | {name: _past_table(name, past) for name in history.SCHEMAS}


def _state_table(name: str, view: View) -> TableFile:
    return TableFile(lambda: inspection.table(name, view))


def _past_table(name: str, past: History) -> TableFile:
    return TableFile(lambda: past.table(name))
