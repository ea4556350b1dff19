"""The callers that wait for an entry of a chain, and the entry that carries their commands."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from txnstore.chain.codec import Entry
from txnstore.core.commands import Command
from txnstore.core.state import State
from txnstore.errors import StorageError, TxnStoreError, UnknownOutcomeError
from txnstore.storage.base import Claim


@dataclass(slots=True)
class Waiter:
    """A caller that waits for the commit of its command, and the answer to it."""

    command: Command
    result: Any = None
    error: BaseException | None = None
    done: bool = False

    def answer(self) -> Any:
        """Return the result, or raise the error that refused the command."""
        if not self.done:
            # The thread that took the command from the queue was interrupted before it set an answer.
            msg = "the thread that was committing this command was interrupted; repeat the call to find the outcome"
            raise UnknownOutcomeError(msg)
        if self.error is not None:
            raise self.error
        return self.result


@dataclass(slots=True)
class Attempt:
    """An entry that claims a slot, with the state after it."""

    entry: Entry
    claim: Claim
    state: State
    commands: tuple[Command, ...]


def take(queue: deque[Waiter], waiters: list[Waiter]) -> None:
    """Move the callers that wait by now to ``waiters``: their commands share the next entry."""
    while queue:
        waiters.append(queue.popleft())


def is_unwritten(attempt: Attempt | None, waiter: Waiter) -> bool:
    """Whether it is certain that the command is in no entry: the chain waits for an entry without it.

    ``attempt``: the entry whose outcome is unknown; None if there is none.
    """
    return attempt is not None and waiter.command not in attempt.commands


def error_of(attempt: Attempt | None, waiter: Waiter, error: BaseException) -> Exception:
    """What the caller of a command gets when the commit raises: an unknown outcome only if it was offered.

    A command that equals an offered one counts as offered: it is most likely the same call again.

    ``attempt``: the entry whose outcome is unknown; None if there is none.
    """
    if attempt is not None and waiter.command in attempt.commands:
        if isinstance(error, UnknownOutcomeError):
            return error
        return UnknownOutcomeError(f"{attempt.claim.key} may exist: its creation was interrupted by {error!r}")
    if attempt is not None:
        msg = f"the command was not written: it waits for {attempt.claim.key}, which the storage has not decided"
        return StorageError(f"{msg}: {error!r}")
    if isinstance(error, TxnStoreError):
        return error
    return UnknownOutcomeError(f"the thread that was committing this command was interrupted by {error!r}")
