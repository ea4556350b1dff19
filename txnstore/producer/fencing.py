"""Tells whether an epoch is too old because the transaction was aborted, or because a newer instance fenced it."""

from __future__ import annotations

import logging

from txnstore.connection import Connection
from txnstore.core.model import Outcome, ProducerIdentity
from txnstore.core.routing import chain_of_transactional_id
from txnstore.core.transactions.table import outcome_of
from txnstore.errors import InvalidPidMappingError, InvalidProducerEpochError, ProducerFencedError

_LOG = logging.getLogger(__name__)


def refusal(connection: Connection, identity: ProducerIdentity, error: Exception) -> Exception:
    """The error to raise for a refused command: an abortable one if only this transaction was aborted, else ``error``.

    Kafka distinguishes INVALID_PRODUCER_EPOCH from PRODUCER_FENCED (KIP-588). The coordinator's chain keeps the last
    identity of a transactional id and the outcome of its transaction until the next init, which is enough to decide.
    One request for an error of fencing, none for any other.

    Returns:
        An :class:`InvalidProducerEpochError` if another process aborted the transaction, else ``error`` itself.

    Raises:
        StorageError: The chain could not be read.
    """
    name = identity.transactional_id
    if name is None or not isinstance(error, ProducerFencedError | InvalidPidMappingError):
        return error
    home = chain_of_transactional_id(name, len(connection.chains))
    txn = connection.view(refresh=(home,)).transactions.get(name)
    extra = {"transactional_id": name, "producer_id": identity.producer_id, "epoch": identity.epoch}
    if txn is None or outcome_of(txn, identity) is not Outcome.ABORT:
        _LOG.warning("producer fenced by a newer instance, or expired: %s", error, extra={**extra, "error": str(error)})
        return error
    _LOG.warning("transaction aborted by another process", extra=extra)
    timeout = f"{txn.timeout_ms / 1000:g} s"
    return InvalidProducerEpochError(
        f"the transaction of {identity} was aborted by another process, as happens after its timeout of {timeout}"
    )
