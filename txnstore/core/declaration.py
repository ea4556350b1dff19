"""The declaration of a command: its rule, with the chain that decides it, its rights, and what it names.

A command is declared once, beside its rule. ``txnstore.core.commands`` has the declarations of all commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from txnstore.core.authorization.rights import Right
from txnstore.core.model import Command, TopicPartition, value_class
from txnstore.core.state import Draft, State

A = TypeVar("A")
C = TypeVar("C", bound=Command)

#: Emits the events of a command into the draft, and returns the answer.
Rule: TypeAlias = Callable[[Draft, C], A]
#: The chain that decides a command, of so many.
Route: TypeAlias = Callable[[C, int], int]
#: The rights that a command needs in a state, in the order in which Kafka's broker checks them.
Rights: TypeAlias = Callable[[C, State], list[Right]]
#: The partitions that a command names.
NamedPartitions: TypeAlias = Callable[[C], Iterable[TopicPartition]]


@value_class()
class Declaration:
    """The declaration of a class of commands; see :func:`command`."""

    rule: Rule[Any, Any]
    route: Route[Any] | None
    right: Rights[Any]
    partitions: NamedPartitions[Any]
    repeats: bool


_DECLARED: dict[type[Command], Declaration] = {}
#: The commands that are declared so far; the modules with their rules may not be imported yet.
DECLARED: Mapping[type[Command], Declaration] = MappingProxyType(_DECLARED)


def no_partitions(_: Command) -> tuple[TopicPartition, ...]:
    """Name no partition: the chain of the command need not know a topic."""
    return ()


def command(
    kind: type[C],
    *,
    route: Route[C] | None,
    right: Rights[C],
    partitions: NamedPartitions[C] = no_partitions,
    repeats: bool = False,
) -> Callable[[Rule[C, A]], Rule[C, A]]:
    """Declare a class of commands, at its rule, which is returned unchanged.

    Args:
        kind: The class.
        route: The chain that decides such a command alone; None: the coordinator takes it through its chains, or it is
            a step that the coordinator submits to chains that it names.
        right: The rights that it needs. What a command leads to by itself needs none: markers, completions, fences,
            copies of topics, the abort of a transaction past its timeout. Any process may do it, and no process can
            decide otherwise.
        partitions: Those whose topics a chain must know that leads them; it gets a copy of the topic first.
        repeats: A producer that has lost its right is answered what an earlier attempt has committed.

    Raises:
        TypeError: The class is declared already.
    """

    def declare(rule: Rule[C, A]) -> Rule[C, A]:
        if kind in _DECLARED:
            msg = f"{kind.__name__} is declared twice: by {_DECLARED[kind].rule.__name__} and {rule.__name__}"
            raise TypeError(msg)
        _DECLARED[kind] = Declaration(rule, route, right, partitions, repeats)
        return rule

    return declare
