"""Clients of transactions v1: their one epoch, and the identities of their transactions.

Such a client keeps its producer id and epoch for many transactions, and the chain gives each transaction its own
(docs/internals/design/fences.md). The gateway looks the identity up when a request arrives, so a request that waits
here cannot get into the next transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txnstore.core.model import Command, Outcome, ProducerIdentity
from txnstore.core.transactions.commands import Ended, EndTxn
from txnstore.core.transactions.sessions import identity_in, identity_to_end
from txnstore.core.view import View
from txnstore.errors import InvalidPidMappingError, InvalidTxnStateError, ProducerFencedError
from txnstore.gateway.commits import Commits
from txnstore.gateway.errors import EndedMeanwhileError, NotAddedError
from txnstore.gateway.freshness import Freshness

#: The refusals of a command whose identity may be that of an earlier transaction of the session.
OUTDATED = (ProducerFencedError, InvalidPidMappingError, InvalidTxnStateError)


class Sessions:
    """Looks up the identities of clients of transactions v1, and commits with them.

    Args:
        freshness: The newest view, and looks at the heads.
        commits: Commits commands.
    """

    def __init__(self, freshness: Freshness, commits: Commits) -> None:
        self._freshness = freshness
        self._commits = commits

    async def identity(self, client: ProducerIdentity) -> ProducerIdentity:
        """Return the identity of the transaction of the request under way, as it was known when the request arrived.

        While this gateway looks at the heads for a client that it does not know, the client may give up the request,
        and begin the next transaction. So of what the look finds, only the first transaction of the session counts,
        which has the epoch of the client; none comes before it.

        Raises:
            EndedMeanwhileError: The look has found a later one: the client repeats the request, if it still waits for
                it.
            ProducerFencedError: The epoch is not the client's any more.
            InvalidPidMappingError: The transactional id never had this producer id.
        """
        known_identity = _identity_or_none(identity_in, self._freshness.view_at_arrival, client)
        if known_identity is not None:
            return known_identity
        newest_identity = await self._identity_at_heads(client)
        if newest_identity != client:
            raise EndedMeanwhileError(f"{newest_identity} was not known when this request arrived")
        return newest_identity

    async def _identity_at_heads(self, client: ProducerIdentity) -> ProducerIdentity:
        """Return the identity of a client's open or next transaction at the heads; raises as :func:`identity_in`."""
        return identity_in(await self._freshness.head(), client)

    async def commit(
        self, client: ProducerIdentity, command_with: Callable[[ProducerIdentity], Command], principal: str | None
    ) -> Any:
        """Commit a command of a client; returns its answer.

        Raises:
            EndedMeanwhileError: The transaction is another one than was known when the request arrived, or has ended
                since, and the client continues: it repeats the request, if it still waits for it.
            TxnStoreError: The command is refused.
        """
        identity = await self.identity(client)
        try:
            return await self._commits.submit(command_with(identity), principal)
        except OUTDATED as error:
            await self.check_current(client, identity)
            if isinstance(error, InvalidTxnStateError):
                raise NotAddedError(str(error)) from error
            raise

    async def check_current(self, client: ProducerIdentity, identity: ProducerIdentity) -> None:
        """Check that the identity of a refused command is still that of the client's transaction.

        The command is not committed again with another identity: its client may have given up the request, which would
        get into the next transaction.

        Raises:
            EndedMeanwhileError: It is that of an earlier transaction.
            ProducerFencedError: The epoch is not the client's any more.
        """
        if await self._identity_at_heads(client) != identity:
            raise EndedMeanwhileError(f"the transaction of {identity} has ended since this request arrived")

    async def end(self, client: ProducerIdentity, outcome: Outcome, principal: str | None) -> Ended:
        """End the transaction of a client, which keeps its epoch; a repeated end has the answer of the first one.

        With an outdated identity, the end of the open transaction would be taken for the repetition of an earlier one,
        so the identity is looked up at the heads. Meanwhile the client may repeat the request at another gateway, and
        begin the next transaction, which it must not end.

        Raises:
            EndedMeanwhileError: The transaction is another one than was known when the request arrived: the client
                repeats the request, if it still waits for it.
            TxnStoreError: The end is refused.
        """
        expected_identity = _identity_or_none(identity_to_end, self._freshness.view_at_arrival, client)
        await self._check_to_end(client, expected_identity)
        assert expected_identity is not None
        try:
            ended: Ended = await self._commits.submit(EndTxn(expected_identity, outcome, session=True), principal)
        except OUTDATED:
            await self._check_to_end(client, expected_identity)
            raise
        return ended

    async def _check_to_end(self, client: ProducerIdentity, expected_identity: ProducerIdentity | None) -> None:
        newest_identity = identity_to_end(await self._freshness.head(), client)
        if newest_identity != expected_identity:
            raise EndedMeanwhileError(
                f"{newest_identity} has a transaction that was not known when this request arrived"
            )


def _identity_or_none(
    look_up: Callable[[View, ProducerIdentity], ProducerIdentity], view: View, client: ProducerIdentity
) -> ProducerIdentity | None:
    """The identity in a view; None if the view lacks the client, or has another epoch of it."""
    try:
        return look_up(view, client)
    except OUTDATED:
        return None
