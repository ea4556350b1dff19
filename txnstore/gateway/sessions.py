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
        """The identity of the transaction that the request under way is for, as far as was known when it arrived.

        While this gateway looks at the heads for a client that it does not know, the client may give up the request,
        and begin the next transaction. So of what the look finds, only the first transaction of the session counts,
        which has the epoch of the client; none comes before it.

        Raises:
            EndedMeanwhileError: The look has found a later one: the client repeats the request, if it still waits for
                it.
            ProducerFencedError: The epoch is not the client's any more.
            InvalidPidMappingError: The transactional id never had this producer id.
        """
        known = _known(identity_in, self._freshness.view_at_arrival, client)
        if known is not None:
            return known
        newest = await self._newest(client)
        if newest != client:
            raise EndedMeanwhileError(f"{newest} was not known when this request arrived")
        return newest

    async def _newest(self, client: ProducerIdentity) -> ProducerIdentity:
        """The identity of the open or next transaction of a client, at the heads of the chains; raises as that."""
        return identity_in(await self._freshness.head(), client)

    async def commit(
        self, client: ProducerIdentity, make: Callable[[ProducerIdentity], Command], principal: str | None
    ) -> Any:
        """Commit a command of a client; returns its answer.

        Raises:
            EndedMeanwhileError: The transaction is another one than was known when the request arrived, or has ended
                since, and the client continues: it repeats the request, if it still waits for it.
            TxnStoreError: The command is refused.
        """
        identity = await self.identity(client)
        try:
            return await self._commits.submit(make(identity), principal)
        except OUTDATED as error:
            await self.check_current(client, identity)
            if isinstance(error, InvalidTxnStateError):
                raise NotAddedError(str(error)) from error
            raise

    async def check_current(self, client: ProducerIdentity, identity: ProducerIdentity) -> None:
        """Check that the identity with which a command was refused is still that of the client's transaction.

        It is not committed again with another identity: the request may be one that its client has given up, and would
        get into the next transaction.

        Raises:
            EndedMeanwhileError: It is that of an earlier transaction.
            ProducerFencedError: The epoch is not the client's any more.
        """
        if await self._newest(client) != identity:
            raise EndedMeanwhileError(f"the transaction of {identity} has ended since this request arrived")

    async def end(self, client: ProducerIdentity, outcome: Outcome, principal: str | None) -> Ended:
        """End the transaction of a client, which keeps its epoch; a repeated end is answered as the first one was.

        With an outdated identity, the end of the open transaction would be taken for the repetition of an earlier one:
        so it is looked up at the heads. Meanwhile the client may repeat the request at another gateway, and begin the
        next transaction, which it must not end.

        Raises:
            EndedMeanwhileError: The transaction is another one than was known when the request arrived: the client
                repeats the request, if it still waits for it.
            TxnStoreError: The end is refused.
        """
        arrived = _known(identity_to_end, self._freshness.view_at_arrival, client)
        await self._check_to_end(client, arrived)
        assert arrived is not None
        try:
            ended: Ended = await self._commits.submit(EndTxn(arrived, outcome, session=True), principal)
        except OUTDATED:
            await self._check_to_end(client, arrived)
            raise
        return ended

    async def _check_to_end(self, client: ProducerIdentity, arrived: ProducerIdentity | None) -> None:
        newest = identity_to_end(await self._freshness.head(), client)
        if newest != arrived:
            raise EndedMeanwhileError(f"{newest} has a transaction that was not known when this request arrived")


def _known(
    look_up: Callable[[View, ProducerIdentity], ProducerIdentity], view: View, client: ProducerIdentity
) -> ProducerIdentity | None:
    """The identity in a view; None if the view does not have the client, or has it with another epoch."""
    try:
        return look_up(view, client)
    except OUTDATED:
        return None
