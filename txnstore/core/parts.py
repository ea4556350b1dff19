"""Which chain a command belongs to, and its parts where it belongs to several."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from txnstore.core.commands import (
    AbortTxn,
    Append,
    Appended,
    Command,
    CommitOffsets,
    DeleteGroup,
    EndTxn,
    Heartbeat,
    HoldTxn,
    JoinGroup,
    Kept,
    LeaveGroup,
    ReplaceSegments,
    ResetOffsets,
    TxnOffsets,
    Unfinished,
)
from txnstore.core.model import NewBatch, TopicPartition, Transaction
from txnstore.core.routing import (
    CATALOG,
    chain_of_group,
    chain_of_partition,
    chain_of_producer,
    chain_of_transactional_id,
)


@dataclass(frozen=True, slots=True)
class Part:
    """What one chain gets of a command; ``places``: where its batches stand in the whole command."""

    batches: tuple[NewBatch, ...] = ()
    offsets: tuple[TxnOffsets, ...] = ()
    places: tuple[int, ...] = ()

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions that it appends to, each once."""
        return tuple(dict.fromkeys(batch.tp for batch in self.batches))

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups whose offsets it commits, each once."""
        return tuple(dict.fromkeys(offsets.group for offsets in self.offsets))


def parts_of(command: Append | EndTxn, chains: int) -> dict[int, Part]:
    """What each chain gets of a command, in the order of the command."""
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
    """The answers to the parts in the order of the whole command."""
    found = {
        place: answer
        for chain, part in parts.items()
        for place, answer in zip(part.places, answers.get(chain, ()), strict=True)
    }
    return tuple(found[place] for place in sorted(found))


def chain_of_command(command: Command, chains: int) -> int:
    """The chain that decides a command that belongs to one: the catalog's, if nothing else is said."""
    match command:
        case AbortTxn():
            return chain_of_transactional_id(command.transactional_id, chains)
        case JoinGroup() | Heartbeat() | LeaveGroup() | DeleteGroup():
            return chain_of_group(command.group, chains)
        case CommitOffsets() | ResetOffsets():
            return chain_of_group(command.offsets.group, chains)
        case HoldTxn():
            return chain_of_producer(command.producer.producer_id)
        case ReplaceSegments():
            return chain_of_partition(command.tp, chains)
        case _:
            return CATALOG


def chains_of(taking_part: Unfinished | Transaction | Kept, chains: int) -> set[int]:
    """The chains that take part in a transaction."""
    return {chain_of_partition(tp, chains) for tp in taking_part.partitions} | {
        chain_of_group(group, chains) for group in taking_part.groups
    }


def keys_by_chain(keys: Iterable[str], chains: int) -> dict[int, tuple[str, ...]]:
    """Segments by the chain that leads their partition; what is named in another way goes to the catalog's."""
    found: dict[int, list[str]] = {}
    for key in keys:
        found.setdefault(_chain_of_key(key, chains), []).append(key)
    return {chain: tuple(found[chain]) for chain in sorted(found)}


def _chain_of_key(key: str, chains: int) -> int:
    parts = key.split("/")
    if len(parts) == 4 and parts[2].isdigit():
        return chain_of_partition(TopicPartition(parts[1], int(parts[2])), chains)
    return CATALOG
