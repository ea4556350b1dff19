"""Checkpoints: saved states of a chain, so that opening a store does not read its whole history.

A checkpoint consists of two objects: ``batches.parquet`` (the list of batches, which grows) and ``head.json`` (the rest
of the state), which is written last and contains the hash of the former. A hint names the newest one.
See docs/format.md.
"""

from __future__ import annotations

import io
import logging
from concurrent.futures import Executor, Future
from dataclasses import fields
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from txnstore.chain.codec import LatestDocument, content_hash, decode, encode
from txnstore.chain.keys import STORE, Keys, checkpoint_sequence, latest
from txnstore.chain.state_document import HeadDocument, from_document, to_document
from txnstore.core.invariants.logs import topics_own_their_partitions
from txnstore.core.log.model import Batch, BatchList, Segment
from txnstore.core.model import TopicPartition, sorted_items
from txnstore.core.state import State
from txnstore.errors import CorruptionError, ObjectNotFoundError
from txnstore.storage.base import ObjectStore
from txnstore.threads import load

if TYPE_CHECKING:
    import pyarrow as pa

_LOG = logging.getLogger(__name__)

_BATCH_FIELDS = [field.name for field in fields(Batch) if field.name != "segment"]
_SEGMENT_FIELDS = [field.name for field in fields(Segment)]
_TEXTS = {"topic", "key", "format", "sha256", "footer_sha256"}
_BOOLEANS = {"explicit_offsets", "transactional"}
_COLUMNS = ["topic", "partition", *_BATCH_FIELDS, *_SEGMENT_FIELDS]
#: Columns that checkpoints of the first stores lack.
_OPTIONAL = {"delete_horizon", "footer_size", "footer_sha256"}


def _arrow() -> tuple[ModuleType, ModuleType]:
    """Arrow, imported when it is needed: opening a store that has no checkpoint yet does without, in half the time."""
    load("pyarrow.parquet")
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pa, pq


@cache
def _schema() -> pa.Schema:
    """The schema of the list of batches."""
    pa, _ = _arrow()
    kinds = {**dict.fromkeys(_TEXTS, pa.string()), **dict.fromkeys(_BOOLEANS, pa.bool_())}
    return pa.schema([(name, kinds.get(name, pa.int64())) for name in _COLUMNS])


def write(objects: ObjectStore, keys: Keys, chain: int, state: State) -> None:
    """Save the state: batches, head, hint, in this order. Deterministic: equal states give equal bytes."""
    for key, data in [*encoded(keys, chain, state), hint_to(chain, state.sequence)]:
        objects.put(key, data)


def encoded(keys: Keys, chain: int, state: State) -> list[tuple[str, bytes]]:
    """The objects of a checkpoint, in the order in which they are written; each a key with its bytes."""
    batches = _encode_batches(state)
    head = encode(to_document(state, content_hash(batches)))
    return [
        (keys.checkpoint_batches(chain, state.sequence), batches),
        (keys.checkpoint_head(chain, state.sequence), head),
    ]


def hint_to(chain: int, sequence: int) -> tuple[str, bytes]:
    """The hint to a checkpoint: its key and its bytes."""
    return latest(chain), encode(LatestDocument(sequence=sequence))


def hinted(chain: int, hint: bytes | None) -> int:
    """The sequence number in the hint; 0 without a readable hint."""
    if hint is None:
        return 0
    try:
        return decode(LatestDocument, latest(chain), hint).sequence
    except CorruptionError as error:
        _LOG.warning("checkpoint hint ignored: %s", error, extra={"error": str(error)})
        return 0


#: The pending requests for the head and the batches of a checkpoint.
Requested = tuple[Future[bytes], Future[bytes]]


def request(objects: ObjectStore, pool: Executor, keys: Keys, chain: int, sequence: int) -> Requested | None:
    """Request both objects of a checkpoint concurrently; None if ``sequence`` is 0 (no checkpoint)."""
    if sequence < 1:
        return None
    head = pool.submit(objects.get, keys.checkpoint_head(chain, sequence))
    return head, pool.submit(objects.get, keys.checkpoint_batches(chain, sequence))


def receive(keys: Keys, chain: int, sequence: int, requested: Requested | None) -> State | None:
    """The state saved at ``sequence``, or None if the checkpoint is missing or damaged; logs a warning for None."""
    if requested is None:
        return None
    head_key, batches_key = keys.checkpoint_head(chain, sequence), keys.checkpoint_batches(chain, sequence)
    try:
        head, batches = requested[0].result(), requested[1].result()
        document = decode(HeadDocument, head_key, head)
        if document.sequence != sequence:
            msg = f"{head_key} contains the state after entry {document.sequence}; expected {sequence}"
            raise CorruptionError(msg)
        if document.batches_sha256 != content_hash(batches):
            msg = f"{batches_key} was altered: its hash differs from the one in {head_key}"
            raise CorruptionError(msg)
        return _state_of(document, batches, head_key)
    except (ObjectNotFoundError, CorruptionError) as error:
        _LOG.warning("checkpoint ignored: %s", error, extra={"sequence": sequence, "error": str(error)})
        return None


def _state_of(document: HeadDocument, batches: bytes, key: str) -> State:
    """The saved state; whatever cannot be read in intact bytes is damage, which another checkpoint repairs."""
    try:
        state = from_document(document, _decode_batches(batches))
        # Looked up without a check by all readers; everything else that a state must be is checked by a verification.
        missing = next(topics_own_their_partitions(state), None)
    except MemoryError:
        raise
    except Exception as error:
        raise CorruptionError(f"{key} does not hold a state: {error!r}") from error
    if missing is not None:
        raise CorruptionError(f"{key} does not hold a state: {missing}")
    return state


def newest(objects: ObjectStore, pool: Executor, keys: Keys, chain: int, *, until: int | None = None) -> State | None:
    """The newest readable checkpoint, found by listing; for an earlier state, or if the hint is missing or damaged.

    ``until``: the last entry that it may contain.
    """
    found = (checkpoint_sequence(item.key) for item in objects.list(keys.checkpoints(chain)))
    known = (number for number in found if number is not None and (until is None or number <= until))
    for sequence in sorted(known, reverse=True):
        state = receive(keys, chain, sequence, request(objects, pool, keys, chain, sequence))
        if state is not None:
            return state
    return None


def check_chain(keys: Keys, found: State, number: int, chains: int) -> None:
    """Raise :class:`CorruptionError` for a checkpoint that does not belong to chain ``number`` of ``chains``."""
    if (found.chain, found.chains) != (number, chains):
        msg = (
            f"{keys.checkpoint_head(number, found.sequence)} belongs to chain {found.chain} of {found.chains}; "
            f"expected chain {number} of {chains}: {STORE} belongs to another store"
        )
        raise CorruptionError(msg)


def _encode_batches(state: State) -> bytes:
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    for tp, partition in sorted_items(state.partitions):
        for batch in partition.batches:
            columns["topic"].append(tp.topic)
            columns["partition"].append(tp.partition)
            for name in _BATCH_FIELDS:
                columns[name].append(getattr(batch, name))
            for name in _SEGMENT_FIELDS:
                columns[name].append(getattr(batch.segment, name))
    load("pandas")  # pa.table imports it, if it is installed.
    pa, pq = _arrow()
    sink = io.BytesIO()
    pq.write_table(pa.table(columns, schema=_schema()), sink, compression="zstd")
    return sink.getvalue()


def _decode_batches(data: bytes) -> dict[TopicPartition, BatchList[Batch]]:
    pa, pq = _arrow()
    # Without Arrow's threads: a process that exits while Arrow starts one is aborted.
    table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    absent = _OPTIONAL.difference(table.schema.names)
    if table.schema.names != [name for name in _COLUMNS if name not in absent]:
        msg = f"the batches of a checkpoint have the columns {table.schema.names}; expected {_COLUMNS}"
        raise CorruptionError(msg)
    columns = {**table.to_pydict(), **{name: [None] * table.num_rows for name in absent}}
    found: dict[TopicPartition, list[Batch]] = {}
    for row in range(table.num_rows):
        segment = Segment(**{name: columns[name][row] for name in _SEGMENT_FIELDS})
        batch = Batch(segment=segment, **{name: columns[name][row] for name in _BATCH_FIELDS})
        found.setdefault(TopicPartition(columns["topic"][row], columns["partition"][row]), []).append(batch)
    return {tp: BatchList(batches) for tp, batches in found.items()}
