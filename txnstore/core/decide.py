"""Dispatch of commands: ``decide(state, command) -> Decision``.

A refused command raises a class of :mod:`txnstore.errors` and changes nothing. An accepted command becomes events. Each
event is folded as soon as it is emitted, so that the second batch of a command is checked against the first.
"""

from __future__ import annotations

from typing import Any

from txnstore.core.authorization.model import ANONYMOUS
from txnstore.core.authorization.rights import check_rights
from txnstore.core.authorization.rules import Authorization
from txnstore.core.commands import COMMANDS
from txnstore.core.events import Event
from txnstore.core.evolve import FOLDS
from txnstore.core.model import Command, value_class
from txnstore.core.state import Draft, State
from txnstore.errors import AuthorizationError, TxnStoreError


@value_class()
class Decision:
    """An accepted command.

    Attributes:
        events: The events to store; empty if the command changes nothing.
        state: The state after the events.
        result: The answer to the command; each command documents its type.
    """

    events: tuple[Event, ...]
    state: State
    result: Any


def decide(
    state: State, command: Command, principal: str = ANONYMOUS, authorization: Authorization | None = None
) -> Decision:
    """Decide ``command``.

    Args:
        state: The state inside a new entry, from :func:`~txnstore.core.state.begin_entry`.
        principal: Who asks for it.
        authorization: The authorization of the store, as far as it is known; None: that in the state, which is that of
            chain 0.

    Returns:
        The events, the state after them, and the answer.

    Raises:
        TxnStoreError: A subclass of it: the command is refused.
    """
    authorization = state.authorization if authorization is None else authorization
    if authorization.mode != "off":
        try:
            check_rights(authorization, principal, COMMANDS[type(command)].right(command, state))
        except AuthorizationError:
            repetition = _repeated_decision(state, command, principal)
            if repetition is None:
                raise
            return repetition
    return _apply_rule(state, command, principal)


def _apply_rule(state: State, command: Command, principal: str) -> Decision:
    draft = Draft(state, FOLDS, principal)
    result = COMMANDS[type(command)].rule(draft, command)
    return Decision(tuple(draft.events), draft.state, result)


def _repeated_decision(state: State, command: Command, principal: str) -> Decision | None:
    """Return the decision of a producer's command that an earlier attempt has committed; None if none has.

    The answer to that attempt was lost, and the producer has lost its right since. A refusal would mean that nothing
    was written.
    """
    if not COMMANDS[type(command)].repeats:
        return None
    try:
        decision = _apply_rule(state, command, principal)
    except TxnStoreError:
        return None
    return None if decision.events else decision
