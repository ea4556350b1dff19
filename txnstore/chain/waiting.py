"""The callers that wait for an entry of a chain, and the entry that carries their commands."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from txnstore.chain.codec import Entry
from txnstore.core.commands import Command
from txnstore.core.state import State
from txnstore.errors import StorageError, TxnStoreError, UnknownOutcomeError
from txnstore.storage.base import Claim

#: The callers of an entry with at least so many commands let the next leader go first.
CROWD = 16
#: The maximum number of seconds that they wait for it.
HEAD_START = 0.01


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


class Leader:
    """The thread that commits an entry, or that waits until it is its turn.

    Many callers that have their answers would compete with the next leader for the interpreter: it would decide its
    entry when the last of them has prepared another command. So they let it go first, and prepare those commands while
    its request is under way.
    """

    __slots__ = ("_commands", "_offered")

    def __init__(self) -> None:
        self._commands = 0
        self._offered: SimpleQueue[None] = SimpleQueue()

    def offers(self, commands: int) -> None:
        """Note that the entry is decided, and its number of commands; 0: this leader writes no entry, or no other."""
        self._commands = commands or self._commands
        self._offered.put(None)

    def let_go_first(self, following: Leader) -> None:
        """Wait until the next leader has decided its entry, if the entry of this one had many callers.

        The next leader may need requests before it decides: the wait ends after :data:`HEAD_START`.
        """
        if following is not self and self._commands >= CROWD:
            with suppress(Empty):
                following._offered.get(timeout=HEAD_START)


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
