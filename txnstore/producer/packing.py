"""Which batches of a flush are uploaded together in one object, a pack. See docs/design/0024-packs.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from txnstore.chain import keys
from txnstore.core.log.model import NewBatch
from txnstore.core.routing import chain_of_partition
from txnstore.producer.batches import Upload

#: The largest sum of the sizes of batches in a pack: larger ones are uploaded concurrently instead.
MAX_PACK_BYTES = 4 << 20


def pack_together(uploads: Iterable[Upload], chains: int) -> list[Upload]:
    """Choose packs: the small batches of one topic whose partitions one chain leads, so that it orders their deletion.

    Args:
        uploads: Uploads that have not started. Those that go into a pack get its ``members``.
        chains: The number of chains of the store.

    Returns:
        What remains to be started: the uploads of large batches, and the first upload of each pack.
    """
    groups: list[list[Upload]] = []
    open_packs: dict[tuple[str, int], tuple[list[Upload], int]] = {}
    for upload in uploads:
        writer, tp = upload.batch.writer, upload.batch.tp
        if upload.members or upload.size >= writer.config.pack_bytes:
            groups.append([upload])
            continue
        place = tp.topic, chain_of_partition(tp, chains)
        members, size = open_packs.get(place, ([], MAX_PACK_BYTES))
        if size + upload.size > MAX_PACK_BYTES:
            members, size = [], 0
            groups.append(members)
        members.append(upload)
        open_packs[place] = members, size + upload.size
    for members in groups:
        if len(members) > 1:
            for upload in members:
                upload.members = tuple(members)
    return [members[0] for members in groups]


def joined(batches: Sequence[tuple[bytes, NewBatch]]) -> tuple[str, bytes, list[NewBatch]]:
    """Put encoded segments into one object, one after the other; a single one stays as it is.

    Returns:
        The key of the object, its bytes, and the batches with the keys of their segments in it.
    """
    (first, described), *others = batches
    if not others:
        return described.segment.key, first, [described]
    key, start, placed = keys.pack_beside(described.segment.key), 0, []
    for data, batch in batches:
        segment = batch.segment
        name = keys.packed(key, batch.topic, batch.partition, start, segment.format)
        placed.append(replace(batch, segment=replace(segment, key=name, footer_size=None, footer_sha256=None)))
        start += len(data)
    return key, b"".join(data for data, _ in batches), placed
