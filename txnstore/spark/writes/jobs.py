"""The transaction of a Spark job: begins and commits it, and recognizes a job that is already committed.

Every job is one transaction, for any number of topics and partitions; in a store with one chain it is one entry.
Nothing is registered before the commit, so a failed job has no transaction to abort and blocks no reader. (With several
chains, a driver that crashes during its commit leaves a transaction open until its timeout.)

A job without a ``transactionalId`` gets a unique one. (An idempotent append without a transaction would leave no
transactional id behind, but a repeated commit could not be recognized and would append twice.)
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from txnstore.core.authorization.rights import write_id
from txnstore.core.log.model import NewBatch, next_sequence
from txnstore.core.model import Command, Outcome, ProducerIdentity, TopicPartition
from txnstore.core.transactions.commands import Ended, EndTxn, InitProducer
from txnstore.core.transactions.lookups import knows_version
from txnstore.core.view import View
from txnstore.errors import ProducerFencedError, StorageError, UnknownTopicOrPartitionError

if TYPE_CHECKING:
    from txnstore.connection import Connection

_LOG = logging.getLogger(__name__)

#: The maximum number of attempts of a commit while the storage fails: giving up would lose the uploads of the job.
_ATTEMPTS = 6
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Job:
    """A job as its driver began it.

    Attributes:
        transactional_id: The transactional id, given or generated.
        identity: The producer id and epoch; None for a job without a ``transactionalId``, which gets them at commit.
        versions: The (scope, version) pairs that the commit records; a second commit of the same has no effect.
        topic_ids: The ids of the topics that the job may write, so that it does not write to a topic that was deleted
            and created again meanwhile.
        repeated: Whether this version was already committed when the job began.
        begun_at: The chain's time at the beginning, in milliseconds: the lower bound of the upload times, because the
            clocks of the workers may be behind.
    """

    transactional_id: str
    identity: ProducerIdentity | None
    versions: tuple[tuple[str, int], ...] = ()
    topic_ids: dict[str, str] = field(default_factory=dict)
    repeated: bool = False
    begun_at: int = 0


def begin(
    connection: Connection,
    transactional_id: str | None,
    versions: tuple[tuple[str, int], ...],
    topic_ids: dict[str, str],
) -> Job:
    """Begin a job: a named one fences its predecessor, unless its version is committed already."""
    view = connection.view(refresh=False)
    if transactional_id is None:
        name = f"spark-{connection.runtime.new_id()}"
        connection.check_rights(write_id(name))  # Before the tasks upload anything.
        return Job(name, None, (("job", 0),), topic_ids, begun_at=view.timestamp)
    job = Job(transactional_id, None, versions, topic_ids, begun_at=view.timestamp)
    if _is_committed(connection, view, job):
        _LOG.info("this version of the job is already committed; nothing to do", extra=_log_fields(job))
        return replace(job, repeated=True)
    return replace(job, identity=submit(connection, InitProducer(transactional_id)))


def _is_committed(connection: Connection, view: View, job: Job) -> bool:
    """Whether one of the job's versions, or a later one, is already committed under its transactional id, for good."""
    txn = view.transactions.get(job.transactional_id)
    if txn is None or not knows_version(txn, job.versions):
        return False
    connection.chains.make_durable(view)
    return True


def commit(connection: Connection, job: Job, batches: Iterable[NewBatch]) -> Ended | None:
    """Commit the batches, in their order, as one transaction; None if there was nothing to do.

    Returns:
        The end of the transaction, or None if there was nothing to commit.

    Raises:
        ProducerFencedError: A newer job uses the transactional id.
        UnknownTopicOrPartitionError: A topic was deleted while the job ran.
    """
    numbered_batches = number_batches(
        replace(batch, uploaded_at=max(batch.uploaded_at or 0, job.begun_at)) for batch in batches
    )
    if job.repeated or _is_committed(connection, connection.view(refresh=False), job):
        _LOG.info("this job is committed; its batches are left to the vacuum", extra=_log_fields(job))
        return None
    if not numbered_batches and (job.identity is None or not job.versions):
        return None
    _check_topics(connection.view(refresh=False), job, numbered_batches)
    identity = job.identity or submit(connection, InitProducer(job.transactional_id))
    try:
        ended: Ended = submit(connection, EndTxn(identity, Outcome.COMMIT, numbered_batches, versions=job.versions))
    except ProducerFencedError as error:
        msg = (
            f"a newer job with the transactionalId {job.transactional_id!r}, or an administrator, has fenced this one, "
            f"and nothing of it was written: run it again, or give jobs that run concurrently different ids ({error})"
        )
        raise ProducerFencedError(msg) from error
    _LOG.info("committed", extra={**_log_fields(job), "batches": len(numbered_batches), "repeated": ended.repeated})
    return ended


def number_batches(batches: Iterable[NewBatch]) -> tuple[NewBatch, ...]:
    """Number the batches: from 0 without gaps in each partition (SEQ-01)."""
    next_sequences: dict[TopicPartition, int] = {}
    result = []
    for batch in batches:
        sequence = next_sequences.get(batch.tp, 0)
        result.append(replace(batch, base_sequence=sequence))
        next_sequences[batch.tp] = next_sequence(sequence, batch.records)
    return tuple(result)


def _check_topics(view: View, job: Job, batches: Sequence[NewBatch]) -> None:
    for name in sorted({batch.topic for batch in batches}):
        topic = view.topics.get(name)
        if topic is None or topic.topic_id != job.topic_ids.get(name):
            msg = f"topic {name!r} was deleted while the job ran; nothing was written"
            raise UnknownTopicOrPartitionError(msg)


def submit(connection: Connection, command: Command) -> Any:
    """Commit a command; repeat it after a storage error, because the chain finds out what became of it."""
    for attempt in range(_ATTEMPTS - 1):
        try:
            return connection.submit(command)
        except StorageError as error:
            if not error.retriable:
                raise
            _LOG.warning("commit failed, retrying: %s", error, extra={"error": str(error)})
            connection.runtime.sleep(_PAUSE_S * 2**attempt)
    return connection.submit(command)


def _log_fields(job: Job) -> dict[str, object]:
    return {"transactional_id": job.transactional_id, "versions": job.versions}
