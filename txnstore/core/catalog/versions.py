"""Comparison of the version of a topic that rows or plans were made with, and the one that a chain has.

A plan that replaces or deletes records rests on the columns and settings of its topic, and rows have the columns of
theirs. See docs/internals/design/engines.md.
"""

from __future__ import annotations

from txnstore.core.state import State
from txnstore.errors import UnknownTopicOrPartitionError


def is_outdated(state: State, name: str, topic_id: str | None, version: int | None) -> bool:
    """Whether a chain has a newer version of a topic than this one; None is never outdated.

    Args:
        name: The topic.
        topic_id: Its id; a topic with another one is not compared.
        version: The version that is compared with that of the chain.

    Raises:
        UnknownTopicOrPartitionError: The chain has an older copy of the topic. The coordinator updates it, and repeats
            the command: so its entry follows from the entry of the catalog that has the version.
    """
    copy = state.topics.get(name)
    if version is None or copy is None or copy.topic_id != topic_id:
        return False
    if copy.version < version:
        msg = f"chain {state.chain} has version {copy.version} of topic {name!r} and does not know version {version}"
        raise UnknownTopicOrPartitionError(msg)
    return copy.version > version
