"""The transaction of a Spark job: who commits, and how a job that was committed is recognised.

Every job is one transaction, whatever the number of topics and partitions: one entry where the store has one chain.
Nothing is registered before the commit, so a job that fails has no transaction to abort and blocks no reader. (With
several chains a driver that dies in the middle of its commit leaves one open; it ends with its time-out.)

Without a ``transactionalId`` the job gets one of its own. (A plain idempotent append would be one entry, too, and would
leave no transactional id behind; but it could not be told from an abandoned one, and a repeated commit would append
twice.)
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from txnstore.core.commands import Command, Ended, EndTxn, InitProducer, ProducerIdentity
from txnstore.core.model import (
    NewBatch,
    Outcome,
    TopicPartition,
    next_sequence,
)
from txnstore.core.transactions import knows_version
from txnstore.core.view import View
from txnstore.errors import StorageError, UnknownTopicOrPartitionError

if TYPE_CHECKING:
    from txnstore.store import Store

_LOG = logging.getLogger(__name__)

#: How often a commit is offered while the storage refuses or does not tell: the uploads of a whole job hang on it.
_ATTEMPTS = 6
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Job:
    """A job as its driver began it.

    ``identity`` None: a job without a ``transactionalId`` takes its identity when it commits. ``versions``: (scope,
    version) that the commit records, and that make a second commit of the same do nothing. ``topic_ids``: of the
    topics it may write, so that it does not write into one that was deleted and made anew meanwhile. ``begun_at``: the
    chain's time at its beginning, by which its uploads are at least as young, whatever the workers' clocks say.
    """

    transactional_id: str
    identity: ProducerIdentity | None
    versions: tuple[tuple[str, int], ...] = ()
    topic_ids: dict[str, str] = field(default_factory=dict)
    repeated: bool = False
    begun_at: int = 0


def begin(
    store: Store,
    transactional_id: str | None,
    versions: tuple[tuple[str, int], ...],
    topic_ids: dict[str, str],
) -> Job:
    """Begin a job: a named one fences its predecessor, unless its version is committed already."""
    state = store.state(refresh=False)
    if transactional_id is None:
        return Job(f"spark-{store.runtime.new_id()}", None, (("job", 0),), topic_ids, begun_at=state.timestamp)
    job = Job(transactional_id, None, versions, topic_ids, begun_at=state.timestamp)
    if is_committed(state, job):
        _LOG.info("this version of the job is committed; it does nothing", extra=_told(job))
        return replace(job, repeated=True)
    return replace(job, identity=_submit(store, InitProducer(transactional_id)))


def is_committed(state: View, job: Job) -> bool:
    """Whether one of the job's versions, or a later one, is committed under its transactional id."""
    txn = state.transactions.get(job.transactional_id)
    return txn is not None and knows_version(txn, job.versions)


def commit(store: Store, job: Job, batches: Iterable[NewBatch]) -> Ended | None:
    """Commit the batches, in their order, as one transaction; None if there was nothing to do.

    A second call for the same job does nothing. Raises :class:`ProducerFencedError` if a newer job took over the
    transactional id.
    """
    numbered = number(replace(batch, uploaded_at=max(batch.uploaded_at or 0, job.begun_at)) for batch in batches)
    if job.repeated or is_committed(store.state(refresh=False), job):
        _LOG.info("this job is committed; its batches are left to the vacuum", extra=_told(job))
        return None
    if not numbered and (job.identity is None or not job.versions):
        return None
    _check_topics(store.state(refresh=False), job, numbered)
    identity = job.identity or _submit(store, InitProducer(job.transactional_id))
    ended: Ended = _submit(store, EndTxn(identity, Outcome.COMMIT, numbered, versions=job.versions))
    _LOG.info("committed", extra={**_told(job), "batches": len(numbered), "repeated": ended.repeated})
    return ended


def number(batches: Iterable[NewBatch]) -> tuple[NewBatch, ...]:
    """The batches with their sequence numbers: in each partition from 0 without a gap (SEQ-01)."""
    following: dict[TopicPartition, int] = {}
    result = []
    for batch in batches:
        sequence = following.get(batch.tp, 0)
        result.append(replace(batch, base_sequence=sequence))
        following[batch.tp] = next_sequence(sequence, batch.records)
    return tuple(result)


def _check_topics(state: View, job: Job, batches: Sequence[NewBatch]) -> None:
    for name in sorted({batch.topic for batch in batches}):
        topic = state.topics.get(name)
        if topic is None or topic.topic_id != job.topic_ids.get(name):
            msg = f"topic {name!r} was deleted while the job ran; nothing was written"
            raise UnknownTopicOrPartitionError(msg)


def _submit(store: Store, command: Command) -> Any:
    """Commit a command; where the storage refuses or cannot tell, again: the chain finds out what became of it."""
    for attempt in range(_ATTEMPTS - 1):
        try:
            return store.submit(command)
        except StorageError as error:
            if not error.retriable:
                raise
            _LOG.warning("the commit is tried again", extra={"error": str(error)})
            store.runtime.sleep(_PAUSE_S * 2**attempt)
    return store.submit(command)


def _told(job: Job) -> dict[str, object]:
    return {"transactional_id": job.transactional_id, "versions": job.versions}
