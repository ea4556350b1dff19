"""Groups a flush's batches into segments: small ones of a topic share one. See docs/internals/design/segments.md."""

from __future__ import annotations

from collections.abc import Iterable

from txnstore.core.routing import chain_of_partition
from txnstore.producer.batches import ProducerBatch

#: The largest sum of the sizes of batches that share an object: larger ones are uploaded concurrently instead.
MAX_SHARED_BYTES = 4 << 20


def group_for_segments(
    batches: Iterable[ProducerBatch], chains: int, max_bytes: int = MAX_SHARED_BYTES
) -> list[list[ProducerBatch]]:
    """Group the batches that share a segment; each batch is in one group, alone or with others.

    A group has batches of one version of one topic, whose partitions one chain leads: so that chain orders the deletion
    of the object. They are in the order of partitions, so that a reader of some finds their rows together.

    Args:
        batches: Sealed batches.
        chains: The number of chains of the store.
        max_bytes: The largest sum of the sizes of a group, in bytes of the producer's buffer.
    """
    groups: list[list[ProducerBatch]] = []
    open_groups: dict[tuple[str, str, int, int], tuple[list[ProducerBatch], int]] = {}
    for batch in batches:
        writer, tp = batch.writer, batch.tp
        if batch.bytes >= writer.config.segment_own_bytes:
            groups.append([batch])
            continue
        sharing_key = tp.topic, writer.topic.topic_id, writer.topic.version, chain_of_partition(tp, chains)
        members, size = open_groups.get(sharing_key, ([], 0))
        if not members or size + batch.bytes > max_bytes:
            members, size = [], 0
            groups.append(members)
        members.append(batch)
        open_groups[sharing_key] = members, size + batch.bytes
    for members in groups:
        members.sort(key=lambda batch: batch.tp.partition)
    return groups
