"""A plan of a compaction whose topic was altered since: it has no effect, and is made again."""

from __future__ import annotations

from txnstore.chain.chains import Chains
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.routing import CATALOG
from txnstore.errors import CompactionConflictError, CorruptionError, TopicChangedError


def refusal(chains: Chains, topic: CatalogTopic, error: TopicChangedError) -> CompactionConflictError | CorruptionError:
    """The error for a source with a column, or a type, that its topic does not have. Costs a GET for the catalog.

    Who wrote the source has read the catalog before: if the topic still has this version, the segment is damaged.

    Args:
        chains: The chains of the store.
        topic: The topic that the plan was made with.
        error: Why a source was refused.
    """
    now = chains[CATALOG].refresh().topics.get(topic.name)
    if now is None or (now.topic_id, now.version) != (topic.topic_id, topic.version):
        return CompactionConflictError(f"{error}: it was altered since, plan it again")
    return CorruptionError(f"{error}, and no later version was written")
