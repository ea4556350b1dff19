"""Routing of commands: their chains, their topics, and their parts for each chain.

Every class of command has a route here, so one function routes all of them. A chain that does not know a topic of a
command gets a copy of the topic first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from txnstore.core.authorization.model import ChangeAcls, ChangeAuthorization, FollowAuthorization
from txnstore.core.catalog.model import AlterTopic, CatalogTopic, CloseTopic, CopyTopic, CreateTopic, DeleteTopic
from txnstore.core.commands import Command
from txnstore.core.expiration import Expire
from txnstore.core.groups.commands import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    ExpiredMembers,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ResetOffsets,
    StoreGeneration,
    TxnOffsets,
)
from txnstore.core.log.commands import Append, Appended, DeleteRecords
from txnstore.core.log.model import NewBatch
from txnstore.core.maintenance import DropObjects, ForgetEntries, ForgetObjects, ReplaceRuns, ReplaceSegments
from txnstore.core.model import TopicPartition
from txnstore.core.routing import (
    CATALOG,
    chain_of_group,
    chain_of_partition,
    chain_of_producer,
    chain_of_transactional_id,
)
from txnstore.core.transactions.commands import (
    AbortTxn,
    CompleteTxn,
    DecidedTransaction,
    EndTxn,
    FenceProducer,
    InitProducer,
    KeptTransaction,
    PrepareTxn,
    WriteMarkers,
)
from txnstore.core.transactions.model import Transaction


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a command for one chain; ``places`` are the indexes of its batches in the whole command."""

    batches: tuple[NewBatch, ...] = ()
    offsets: tuple[TxnOffsets, ...] = ()
    places: tuple[int, ...] = ()

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions of its batches, without duplicates."""
        return tuple(dict.fromkeys(batch.tp for batch in self.batches))

    @property
    def topic_ids(self) -> tuple[tuple[str, str], ...]:
        """Pairs of (topic, topic id) of its batches that have a topic id, without duplicates."""
        named = ((batch.topic, batch.topic_id) for batch in self.batches)
        return tuple(dict.fromkeys((name, topic_id) for name, topic_id in named if topic_id is not None))

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups whose offsets it commits, without duplicates."""
        return tuple(dict.fromkeys(offsets.group for offsets in self.offsets))


def parts_of(command: Append | EndTxn, chains: int) -> dict[int, Part]:
    """The parts of a command by chain; each keeps the order of the command."""
    batches: dict[int, list[int]] = {}
    offsets: dict[int, list[TxnOffsets]] = {}
    for place, batch in enumerate(command.batches):
        batches.setdefault(chain_of_partition(batch.tp, chains), []).append(place)
    for item in command.offsets:
        if item.offsets:
            offsets.setdefault(chain_of_group(item.group, chains), []).append(item)
    return {
        chain: Part(
            tuple(command.batches[place] for place in batches.get(chain, ())),
            tuple(offsets.get(chain, ())),
            tuple(batches.get(chain, ())),
        )
        for chain in sorted({*batches, *offsets})
    }


def joined(parts: dict[int, Part], answers: dict[int, tuple[Appended, ...]]) -> tuple[Appended, ...]:
    """The answers to all parts, in the order of the whole command."""
    by_place = {
        place: answer
        for chain, part in parts.items()
        for place, answer in zip(part.places, answers.get(chain, ()), strict=True)
    }
    return tuple(by_place[place] for place in sorted(by_place))


def chains_of_command(command: Command, chains: int) -> tuple[int, ...]:
    """The chains that decide a command, in order: several if each gets a part of it, or all of it."""
    return tuple(sorted(_ROUTES[type(command)](command, chains)))


def sole_chain_of(command: Command, chains: int) -> int | None:
    """The chain that decides a command alone, with no step of the coordinator before or after it; None: not known.

    With several chains only batches outside of transactions are so simple.
    """
    if chains == 1:
        return CATALOG
    if not isinstance(command, Append) or command.producer.transactional_id is not None or command.offsets:
        return None
    leaders = {chain_of_partition(batch.tp, chains) for batch in command.batches}
    return leaders.pop() if len(leaders) == 1 else None


def topics_of(command: Command, chain: int, chains: int) -> set[str]:
    """The topics that a chain must know to decide a command: those of which it leads a partition in the command."""
    return {tp.topic for tp in _partitions_of(command) if chain_of_partition(tp, chains) == chain}


def leaders_of(topic: CatalogTopic, chains: int) -> set[int]:
    """The chains that lead a partition of a topic."""
    return {chain_of_partition(TopicPartition(topic.name, number), chains) for number in range(topic.partitions)}


def _partitions_of(command: Command) -> Iterator[TopicPartition]:
    """The partitions that a command names."""
    match command:
        case Append() | EndTxn():
            yield from (batch.tp for batch in command.batches)
            yield from command.partitions if isinstance(command, Append) else ()
            yield from (item.tp for offsets in command.offsets for item in offsets.offsets)
        case CommitOffsets() | ResetOffsets():
            yield from (item.tp for item in command.offsets.offsets)
        case WriteMarkers():
            yield from command.decided.partitions
        case FenceProducer():
            yield from command.partitions
        case ReplaceSegments():
            yield command.tp
        case ReplaceRuns():
            yield from (run.tp for run in command.runs)
        case DeleteRecords():
            yield from (deletion.tp for deletion in command.deletions)
        case _:
            return


def _of_append(command: Append | EndTxn, chains: int) -> set[int]:
    """The chains of its parts, and the coordinator's chain, which adds their partitions and groups first."""
    producer, parts = command.producer, set(parts_of(command, chains))
    if producer.transactional_id is None or (isinstance(command, Append) and command.added is not None):
        return parts
    return parts | {chain_of_producer(producer.producer_id)}


_Route = Callable[[Any, int], Collection[int]]

_ROUTES: dict[type, _Route] = {
    CreateTopic: lambda _, __: (CATALOG,),
    AlterTopic: lambda _, __: (CATALOG,),
    DeleteTopic: lambda _, __: (CATALOG,),
    # Any chain may grant a producer id without a transactional id.
    InitProducer: lambda command, chains: (
        range(chains)
        if command.transactional_id is None
        else (chain_of_transactional_id(command.transactional_id, chains),)
    ),
    Append: _of_append,
    EndTxn: _of_append,
    PrepareTxn: lambda command, _: (chain_of_producer(command.producer.producer_id),),
    AbortTxn: lambda command, chains: (chain_of_transactional_id(command.transactional_id, chains),),
    FenceProducer: lambda command, chains: (
        chains_of(command, chains) - {chain_of_producer(command.producer.producer_id)}
    ),
    WriteMarkers: lambda command, chains: (
        chains_of(command.decided, chains) - {chain_of_producer(command.decided.producer_id)}
    ),
    CompleteTxn: lambda command, _: (chain_of_producer(command.decided.producer_id),),
    # All other chains: one may lead partitions that the calling process does not know.
    CopyTopic: lambda _, chains: set(range(chains)) - {CATALOG},
    CloseTopic: lambda _, chains: set(range(chains)) - {CATALOG},
    CommitOffsets: lambda command, chains: (chain_of_group(command.offsets.group, chains),),
    ResetOffsets: lambda command, chains: (chain_of_group(command.offsets.group, chains),),
    JoinGroup: lambda command, chains: (chain_of_group(command.group, chains),),
    Heartbeat: lambda command, chains: (chain_of_group(command.group, chains),),
    LeaveGroup: lambda command, chains: (chain_of_group(command.group, chains),),
    DeleteGroup: lambda command, chains: (chain_of_group(command.group, chains),),
    StoreGeneration: lambda command, chains: (chain_of_group(command.group, chains),),
    DeleteOffsets: lambda command, chains: (chain_of_group(command.group, chains),),
    ReplaceSegments: lambda command, chains: (chain_of_partition(command.tp, chains),),
    ReplaceRuns: lambda command, chains: {chain_of_partition(tp, chains) for tp in _partitions_of(command)},
    DeleteRecords: lambda command, chains: {chain_of_partition(tp, chains) for tp in _partitions_of(command)},
    DropObjects: lambda command, chains: keys_by_chain(command.keys, chains),
    ForgetObjects: lambda command, chains: keys_by_chain(command.keys, chains),
    ForgetEntries: lambda command, _: (command.chain,),
    Expire: lambda _, chains: range(chains),
    ChangeAuthorization: lambda _, __: (CATALOG,),
    ChangeAcls: lambda _, __: (CATALOG,),
    FollowAuthorization: lambda _, chains: set(range(chains)) - {CATALOG},
}


def chains_of(taking_part: DecidedTransaction | Transaction | KeptTransaction | FenceProducer, chains: int) -> set[int]:
    """The chains of the partitions and groups of a transaction."""
    return {chain_of_partition(tp, chains) for tp in taking_part.partitions} | {
        chain_of_group(group, chains) for group in taking_part.groups
    }


def keys_by_chain(keys: Iterable[str], chains: int) -> dict[int, tuple[str, ...]]:
    """Keys of objects by the chain that leads the partition in them; other keys belong to the catalog's chain."""
    by_chain: dict[int, list[str]] = {}
    for key in keys:
        by_chain.setdefault(_chain_of_key(key, chains), []).append(key)
    return {chain: tuple(by_chain[chain]) for chain in sorted(by_chain)}


def _chain_of_key(key: str, chains: int) -> int:
    parts = key.split("/")  # topics/<topic>/<partition>/<name>
    if len(parts) == 4 and parts[2].isdigit():
        return chain_of_partition(TopicPartition(parts[1], int(parts[2])), chains)
    return CATALOG


def with_expired(command: Command, expired: Callable[[str], ExpiredMembers]) -> Command:
    """The command with the members whose leases are over, if it depends on them.

    Args:
        command: A command.
        expired: Returns the members of a group whose leases are over, as the caller has measured.
    """
    match command:
        case JoinGroup() | Heartbeat() | LeaveGroup() | DeleteGroup() | StoreGeneration() | DeleteOffsets():
            members = expired(command.group)
            return replace(command, expired=members) if members else command
        case CommitOffsets() | ResetOffsets():
            return replace(command, offsets=_with_expired_members(command.offsets, expired))
        case Append() | EndTxn():
            # Without a membership, or with a generation, offsets in a transaction do not depend on who else is alive.
            if all(item.generation >= 0 or not (item.member_id or item.instance_id) for item in command.offsets):
                return command
            return replace(command, offsets=tuple(_with_expired_members(item, expired) for item in command.offsets))
    return command


def _with_expired_members(offsets: TxnOffsets, expired: Callable[[str], ExpiredMembers]) -> TxnOffsets:
    members = expired(offsets.group)
    return replace(offsets, expired=members) if members else offsets
