"""The views of a snapshot as SQL for a DuckDB without txnstore."""

from __future__ import annotations

import re

from txnstore.connection import Connection
from txnstore.core.authorization.rights import read_topics
from txnstore.core.log.model import Segment
from txnstore.core.model import Isolation
from txnstore.errors import InvalidConfigError, TxnStoreError
from txnstore.read.rows import Ability
from txnstore.snapshot import Snapshot
from txnstore.sql.local import local_root
from txnstore.sql.types import comment, quote
from txnstore.sql.views import shown_plan, topic_select, view_names
from txnstore.storage.base import ObjectStore

#: What a DuckDB without txnstore reads.
_FILES = Ability(several=True)


def emit(connection: Connection, snapshot: Snapshot, isolation: Isolation) -> str:
    """Write one ``CREATE OR REPLACE VIEW`` per topic. See :func:`txnstore.sql.emit_views`."""
    root = _key_prefix(connection.objects)
    view = snapshot.view
    names = view_names(view)
    heads = [chain.sequence for chain in view.states]
    moment = f"entry {heads[0]}" if len(heads) == 1 else f"the entries {', '.join(map(str, heads))} of its chains"
    parts = [comment(f"The topics of {root} as of {moment}, {isolation}.")]
    for topic in view.sorted_topics():
        refusal = connection.refusal(read_topics([topic.name]))
        if refusal is not None:
            parts.append(comment(f"{quote(topic.name)} is left out: {refusal}"))
            continue
        try:
            plan, rest = shown_plan(topic.name, view, isolation).split(_FILES)
            select = topic_select(plan, lambda segment: f"{root}/{segment.key}")
        except TxnStoreError as error:
            parts.append(comment(f"{quote(topic.name)} is left out, because DuckDB cannot show it: {error}"))
            continue
        if rest.slices:
            parts.append(
                comment(f"{quote(topic.name)} is left out: {_unreadable_reason(rest.slices[0].batch.segment)}")
            )
            continue
        parts.append(f"CREATE OR REPLACE VIEW {quote(names[topic.name])} AS\n{select};")
    return "\n\n".join(parts) + "\n"


def _key_prefix(objects: ObjectStore) -> str:
    """The prefix of keys in a DuckDB without txnstore: the absolute folder or the ``s3://`` URL."""
    url, folder = objects.url, local_root(objects)
    if folder is not None:
        # DuckDB reads a path as a pattern; a character in brackets stands for itself.
        return re.sub(r"[*?[]", r"[\g<0>]", folder)
    if url.startswith("s3://"):
        return url.rstrip("/")
    msg = f"the store {url} cannot be read by another DuckDB: views can be emitted for local folders and s3:// only"
    raise InvalidConfigError(msg)


def _unreadable_reason(segment: Segment) -> str:
    """Say why DuckDB alone cannot read a segment, and what to change."""
    if segment.is_range:
        return (
            f"DuckDB cannot read a part of {segment.object}. "
            "Set inline.bytes=0 and compact the topic: later snapshots then show it."
        )
    return f"DuckDB cannot read the Arrow format of {segment.key}. Set segment.format=parquet and compact the topic."
