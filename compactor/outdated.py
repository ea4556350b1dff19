"""A plan of a compaction whose topic was altered since: it has no effect, and is made again."""

from __future__ import annotations

from txnstore.chain.chains import Chains
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.routing import CATALOG
from txnstore.errors import CompactionConflictError, CorruptionError


def refusal(chains: Chains, topic: CatalogTopic, error: CorruptionError) -> CompactionConflictError | CorruptionError:
    """The error for a source that has what its topic does not know (:func:`~txnstore.read.reader.is_newer`).

    Who wrote the source has read the catalog before: if the topic still has this version, the segment is damaged. Costs
    a GET for the catalog.

    Args:
        topic: The topic that the plan was made with.
        error: Why a source was refused.
    """
    now = chains[CATALOG].refresh().topics.get(topic.name)
    if now is None or (now.topic_id, now.version) != (topic.topic_id, topic.version):
        return CompactionConflictError(f"topic {topic.name!r} was altered since the plan was made: {error}")
    return error
