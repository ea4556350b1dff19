"""Routing of commands: their chains, and their parts for each chain."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from txnstore.core.authorization.rights import HasGroup
from txnstore.core.catalog.model import CatalogTopic
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
from txnstore.core.log.commands import Append, Appended
from txnstore.core.log.model import NewBatch
from txnstore.core.model import Command, TopicPartition, value_class
from txnstore.core.routing import CATALOG, chain_of_group, chain_of_partition
from txnstore.core.transactions.commands import DecidedTransaction, EndTxn, FenceProducer, KeptTransaction
from txnstore.core.transactions.model import Transaction


@value_class()
class Part:
    """The part of a command for one chain; ``places`` are the indexes of its batches in the whole command."""

    batches: tuple[NewBatch, ...] = ()
    offsets: tuple[TxnOffsets, ...] = ()
    places: tuple[int, ...] = ()

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions of the batches, without duplicates."""
        return tuple(dict.fromkeys(batch.tp for batch in self.batches))

    @property
    def topic_ids(self) -> tuple[tuple[str, str], ...]:
        """Pairs of (topic, topic id) of the batches that have a topic id, without duplicates."""
        pairs = ((batch.topic, batch.topic_id) for batch in self.batches)
        return tuple(dict.fromkeys((name, topic_id) for name, topic_id in pairs if topic_id is not None))

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups whose offsets the part commits, without duplicates."""
        return tuple(dict.fromkeys(offsets.group for offsets in self.offsets))


def parts_of(command: Append | EndTxn, chains: int) -> dict[int, Part]:
    """Split a command into its parts by chain; each keeps the order of the command."""
    batches: dict[int, list[int]] = {}
    offsets: dict[int, list[TxnOffsets]] = {}
    for index, batch in enumerate(command.batches):
        batches.setdefault(chain_of_partition(batch.tp, chains), []).append(index)
    for group_offsets in command.offsets:
        if group_offsets.offsets:
            offsets.setdefault(chain_of_group(group_offsets.group, chains), []).append(group_offsets)
    return {
        chain: Part(
            tuple(command.batches[index] for index in batches.get(chain, ())),
            tuple(offsets.get(chain, ())),
            tuple(batches.get(chain, ())),
        )
        for chain in sorted({*batches, *offsets})
    }


def join_answers(parts: dict[int, Part], answers: dict[int, tuple[Appended, ...]]) -> tuple[Appended, ...]:
    """Join the answers to all parts, in the order of the whole command."""
    answers_by_index = {
        index: answer
        for chain, part in parts.items()
        for index, answer in zip(part.places, answers.get(chain, ()), strict=True)
    }
    return tuple(answers_by_index[index] for index in sorted(answers_by_index))


def sole_chain_of(command: Command, chain_count: int) -> int | None:
    """Return the chain that can decide a command alone; None if the coordinator must decide or split it.

    With several chains, only an Append outside of a transaction, without offsets, whose partitions are all on one
    chain, has one.
    """
    if chain_count == 1:
        return CATALOG
    if not isinstance(command, Append) or command.producer.transactional_id is not None or command.offsets:
        return None
    chains_of_batches = {chain_of_partition(batch.tp, chain_count) for batch in command.batches}
    return chains_of_batches.pop() if len(chains_of_batches) == 1 else None


def leaders_of(topic: CatalogTopic, chains: int) -> set[int]:
    """Return the chains that lead a partition of a topic."""
    return {chain_of_partition(TopicPartition(topic.name, number), chains) for number in range(topic.partitions)}


def to_group(command: HasGroup, chains: int) -> int:
    """Return the chain of the group."""
    return chain_of_group(command.group, chains)


def chains_of(taking_part: DecidedTransaction | Transaction | KeptTransaction | FenceProducer, chains: int) -> set[int]:
    """Return the chains of the partitions and groups of a transaction."""
    return {chain_of_partition(tp, chains) for tp in taking_part.partitions} | {
        chain_of_group(group, chains) for group in taking_part.groups
    }


def keys_by_chain(keys: Iterable[str], chains: int) -> dict[int, tuple[str, ...]]:
    """Group keys of objects by the chain that leads their partition; other keys belong to the catalog's chain."""
    by_chain: dict[int, list[str]] = {}
    for key in keys:
        by_chain.setdefault(_chain_of_key(key, chains), []).append(key)
    return {chain: tuple(by_chain[chain]) for chain in sorted(by_chain)}


def _chain_of_key(key: str, chains: int) -> int:
    parts = key.split("/")  # topics/<topic>/<partition>/<name>
    if len(parts) == 4 and parts[2].isdigit():
        return chain_of_partition(TopicPartition(parts[1], int(parts[2])), chains)
    return CATALOG


def with_expired(command: Command, expired_members: Callable[[str], ExpiredMembers]) -> Command:
    """Return the command with the members whose leases have expired, if it depends on them.

    Args:
        expired_members: Returns the members of a group whose leases have expired, as the caller has measured.
    """
    match command:
        case JoinGroup() | Heartbeat() | LeaveGroup() | DeleteGroup() | StoreGeneration() | DeleteOffsets():
            members = expired_members(command.group)
            return replace(command, expired=members) if members else command
        case CommitOffsets() | ResetOffsets():
            return replace(command, offsets=_with_expired_members(command.offsets, expired_members))
        case Append() | EndTxn():
            # Without a membership, or with a generation, offsets in a transaction do not depend on who else is alive.
            if all(
                group_offsets.generation >= 0 or not (group_offsets.member_id or group_offsets.instance_id)
                for group_offsets in command.offsets
            ):
                return command
            return replace(
                command,
                offsets=tuple(
                    _with_expired_members(group_offsets, expired_members) for group_offsets in command.offsets
                ),
            )
    return command


def _with_expired_members(offsets: TxnOffsets, expired_members: Callable[[str], ExpiredMembers]) -> TxnOffsets:
    members = expired_members(offsets.group)
    return replace(offsets, expired=members) if members else offsets
