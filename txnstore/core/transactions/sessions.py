"""Sessions: one epoch of a client for many transactions, as clients of transactions v1 have it.

Before KIP-890 a client keeps its epoch from one transaction to the next, and numbers its records on. Here each
transaction has an epoch of its own, which distinguishes late requests from new ones. The coordinator's record of such a
client has both: ``epoch``, of the open or next transaction, and ``session_epoch``, which the client has. An end with
``session`` moves only the first one on; every other end and every init make an end of the session, and fence the client
(``docs/internals/design/fences.md``).

Commands have the identity of the transaction. :func:`identity_in` looks it up when the request of a client arrives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from txnstore.core.model import Features, ProducerIdentity
from txnstore.core.transactions.lookups import fenced_error, next_id_and_epoch
from txnstore.core.transactions.model import COMPLETED, DECIDED, Transaction
from txnstore.errors import InvalidPidMappingError

#: The feature of the format that a store with sessions requires of its writers, who would take late batches for new
#: ones, and new ones for gaps.
SESSIONS = Features(write=("sessions",))


class HasTransactions(Protocol):
    """A source of transactions: the state of the coordinator's chain, or a view of all chains."""

    @property
    def transactions(self) -> Mapping[str, Transaction]: ...

    @property
    def transactional_ids(self) -> Mapping[int, str]: ...


def client_identity(txn: Transaction) -> tuple[int, int]:
    """Return the (producer id, epoch) that the client of a transactional id has."""
    return txn.producer_id, txn.session_epoch if txn.in_session else txn.epoch


def identity_in(state: HasTransactions, client: ProducerIdentity) -> ProducerIdentity:
    """Return the identity of the open or next transaction of a client of transactions v1.

    It is to be looked up when the request arrives. A command with it is refused if that transaction has ended by then;
    it never gets into the next one. In an outdated state it may be that of an ended transaction, or be refused: such a
    refusal counts at the head of the coordinator's chain only.

    Args:
        state: The state of the coordinator's chain, or a view.
        client: The identity that the client sends, with its transactional id.

    Returns:
        The identity for the commands of the request. After the decision of a transaction whose session continues, that
        is the next one already: its commands are refused with ``ConcurrentTransactionsError`` until the completion.

    Raises:
        InvalidPidMappingError: The transactional id does not exist, or never had this producer id.
        ProducerFencedError: The epoch is not the client's any more: its transaction was aborted by another process, or
            an init has granted another one.
    """
    name = client.transactional_id or ""
    txn = state.transactions.get(name)
    if txn is None or state.transactional_ids.get(client.producer_id) != name:
        msg = f"transactional id {client.transactional_id!r} does not have producer id {client.producer_id}"
        raise InvalidPidMappingError(msg)
    if (client.producer_id, client.epoch) != client_identity(txn):
        raise fenced_error(txn, client)
    producer_id, epoch = txn.producer_id, txn.epoch
    if txn.state in DECIDED:
        if not txn.in_session:  # Another process has aborted it; its epoch changes with the completion only.
            raise fenced_error(txn, client)
        producer_id, epoch = next_id_and_epoch(txn)
    return ProducerIdentity(producer_id, epoch, name)


def identity_to_end(state: HasTransactions, client: ProducerIdentity) -> ProducerIdentity:
    """Return the identity that an end of a client of transactions v1 is for: the open transaction's, else the last.

    The end of one that has ended is answered as the first one was, or refused; it ends no transaction that begins
    meanwhile.

    Args:
        state: As for :func:`identity_in`, which tells what is raised.
        client: The identity that the client sends, with its transactional id.
    """
    identity = identity_in(state, client)
    txn = state.transactions[identity.transactional_id or ""]
    epoch = txn.last_epoch if txn.in_session and txn.state in COMPLETED else txn.epoch
    return ProducerIdentity(txn.producer_id, epoch, txn.transactional_id)
