"""Why an epoch is too old: only this transaction was aborted, or a newer instance has taken over."""

from __future__ import annotations

from txnstore.connection import Connection
from txnstore.core.model import Outcome, ProducerIdentity
from txnstore.core.routing import chain_of_transactional_id
from txnstore.core.transactions.table import outcome_of
from txnstore.errors import InvalidPidMappingError, InvalidProducerEpochError, ProducerFencedError


def refusal(connection: Connection, identity: ProducerIdentity, error: Exception) -> Exception:
    """The error to raise for a refused command: abortable if only this transaction was aborted, else ``error``.

    Kafka's broker tells INVALID_PRODUCER_EPOCH and PRODUCER_FENCED apart (KIP-588). Here the coordinator's chain does:
    it remembers the last identity of a transactional id and how its transaction ended, until an instance is
    initialized anew. One request, and none for another error.

    Raises:
        StorageError: The chain could not be read.
    """
    name = identity.transactional_id
    if name is None or not isinstance(error, ProducerFencedError | InvalidPidMappingError):
        return error
    home = chain_of_transactional_id(name, len(connection.chains))
    txn = connection.view(refresh=(home,)).transactions.get(name)
    if txn is None or outcome_of(txn, identity) is not Outcome.ABORT:
        return error
    timeout = f"{txn.timeout_ms / 1000:g} s"
    return InvalidProducerEpochError(
        f"the transaction of {identity} was aborted by somebody else, as after its timeout of {timeout}"
    )
