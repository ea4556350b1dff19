"""The tuple of all commands. The modules of the rules must not import it, because it imports them."""

from __future__ import annotations

from collections.abc import Mapping

from txnstore.core import expiration, maintenance
from txnstore.core.authorization import changes
from txnstore.core.catalog import rules as catalog
from txnstore.core.declaration import DECLARED, Declaration
from txnstore.core.groups import classic, membership, offsets
from txnstore.core.log import retention
from txnstore.core.model import Command
from txnstore.core.routing import chain_of_partition
from txnstore.core.transactions import init
from txnstore.core.transactions import rules as transactions

_MODULES = (catalog, init, transactions, retention, membership, classic, offsets, maintenance, expiration, changes)
#: The declaration of each class of commands.
COMMANDS: Mapping[type[Command], Declaration] = DECLARED


def chain_of(command: Command, chains: int) -> int:
    """Return the chain that decides a command alone."""
    route = COMMANDS[type(command)].route
    if route is None:
        msg = f"{type(command).__name__} is no command of one chain"
        raise TypeError(msg)
    return route(command, chains)


def topics_of(command: Command, chain: int, chains: int) -> set[str]:
    """Return the topics that a chain must know to decide a command: those whose partitions it leads there."""
    partitions = COMMANDS[type(command)].partitions(command)
    return {tp.topic for tp in partitions if chain_of_partition(tp, chains) == chain}
