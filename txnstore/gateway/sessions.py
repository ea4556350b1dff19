"""Clients of transactions v1: their one epoch, and the identities of their transactions.

Such a client keeps its producer id and epoch for many transactions, and the chain gives each transaction its own
(docs/design/0035-sessions.md). The gateway looks the identity up when a request arrives, so a request that waits
here cannot get into the next transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txnstore.core.commands import Command
from txnstore.core.model import ProducerIdentity
from txnstore.core.transactions.sessions import identity_in
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
        """The identity of the open or next transaction of a client, as far as is known; a refusal counts at the head.

        Raises:
            ProducerFencedError: The epoch is not the client's any more.
            InvalidPidMappingError: The transactional id never had this producer id.
        """
        try:
            return identity_in(self._freshness.view, client)
        except OUTDATED:
            return await self.newest(client)

    async def newest(self, client: ProducerIdentity) -> ProducerIdentity:
        """The identity of the open or next transaction of a client, at the heads of the chains; raises as that."""
        return identity_in(await self._freshness.head(), client)

    async def to_end(self, client: ProducerIdentity) -> ProducerIdentity:
        """The identity of the transaction that a client ends, at the heads of the chains; raises as :meth:`newest`.

        While this look is under way, the client may repeat the request at another gateway, and begin the next
        transaction: the look would find that one, and end it.

        Raises:
            EndedMeanwhileError: It is not the transaction that was known when the request arrived.
        """
        try:
            arrived = identity_in(self._freshness.view, client)
        except OUTDATED:
            arrived = None  # This gateway does not know the client yet.
        newest = await self.newest(client)
        if arrived not in (None, newest):
            raise EndedMeanwhileError(f"the transaction of {arrived} has ended since this request arrived, or before")
        return newest

    async def commit(
        self, client: ProducerIdentity, make: Callable[[ProducerIdentity], Command], principal: str | None
    ) -> Any:
        """Commit a command of a client; returns its answer.

        Raises:
            EndedMeanwhileError: The transaction has ended since its identity was read, and the client goes on: it
                repeats the request, if it still waits for it.
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
        if await self.newest(client) != identity:
            raise EndedMeanwhileError(f"the transaction of {identity} has ended since this request arrived")
