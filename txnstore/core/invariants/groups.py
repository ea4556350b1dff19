"""Invariants of consumer groups: in every state, and of a step."""

from __future__ import annotations

from collections.abc import Iterator

from txnstore.core.groups.assignors import Subscriptions
from txnstore.core.groups.model import Group, Member
from txnstore.core.invariants.common import by_name, by_partition, own_producers, owner_of
from txnstore.core.model import TopicPartition
from txnstore.core.state import State, leads_partition
from txnstore.core.transactions.model import TxnState


def pending_offsets_have_a_transaction(state: State) -> Iterator[str]:
    """Pending offsets belong to an open transaction with this group (OBJ-19 I6): else they would block it for ever."""
    for name, group in sorted(state.groups.items(), key=by_name):
        for producer_id in own_producers(state, group.pending):
            txn = owner_of(state, producer_id)
            if txn is None or txn.state is not TxnState.ONGOING or name not in txn.groups:
                yield f"group {name!r}: producer id {producer_id} has pending offsets, but no open transaction with it"


def group_offsets_sound(state: State) -> Iterator[str]:
    """Positions are in partitions that exist (OFF-18), and each has a place of its own in the order (OFF-11)."""
    for name, group in sorted(state.groups.items(), key=by_name):
        for offsets in (group.offsets, *group.pending.values()):
            for tp, offset in sorted(offsets.items(), key=by_partition):
                if leads_partition(state, tp) and tp not in state.partitions:
                    yield f"group {name!r}: it has an offset of {tp}, which does not exist"
                if offset.value.offset < 0 or not 0 <= offset.position < state.next_offset_position:
                    yield f"group {name!r}: offset {offset.value.offset} of {tp} at position {offset.position} is wrong"


def partitions_have_one_holder(state: State) -> Iterator[str]:
    """No two members of a group may read the same partition: else its records would be processed twice."""
    for name, members in _groups(state):
        holders: dict[TopicPartition, str] = {}
        for member in members:
            for tp in member.held:
                other = holders.setdefault(tp, member.member_id)
                if other != member.member_id:
                    yield f"group {name!r}: {tp} is held by {other!r} and by {member.member_id!r}"


def targets_cover_what_is_read(state: State) -> Iterator[str]:
    """Every partition that a group reads is to be read by exactly one member, which reads its topic."""
    for name, members in _groups(state):
        targets: dict[TopicPartition, str] = {}
        for member in members:
            for tp in member.target:
                other = targets.setdefault(tp, member.member_id)
                if other != member.member_id:
                    yield f"group {name!r}: {tp} is meant for {other!r} and for {member.member_id!r}"
                if tp.topic not in member.topics:
                    yield f"group {name!r}: {tp} is meant for {member.member_id!r}, which does not read its topic"
        for tp in Subscriptions.of(members).all_partitions():
            if tp not in targets:
                yield f"group {name!r}: {tp} is meant for nobody"


def free_partitions_are_given(state: State) -> Iterator[str]:
    """A member holds its partitions unless another one still has to give them back: else nobody would read them."""
    for name, members in _groups(state):
        held = {tp for member in members for tp in member.held}
        for member in members:
            for tp in sorted(set(member.target) - held):
                yield f"group {name!r}: nobody holds {tp}, not even {member.member_id!r}, for which it is meant"


def instance_names_unique(state: State) -> Iterator[str]:
    """A static name belongs to one member (KIP-345), and a group with members has a generation."""
    for name, members in _groups(state):
        names = [member.instance_id for member in members if member.instance_id is not None]
        for instance_id in sorted({instance_id for instance_id in names if names.count(instance_id) > 1}):
            yield f"group {name!r}: two members have the group.instance.id {instance_id!r}"
        if members and state.groups[name].generation < 1:
            yield f"group {name!r} has members, but generation {state.groups[name].generation}"


def generations_never_go_back(before: State, after: State) -> Iterator[str]:
    """The generation of a group only grows (CON-17), and does so when its members change: it fences the old ones."""
    for name, old in sorted(before.groups.items(), key=by_name):
        new = after.groups.get(name)
        if new is None or not old.members:
            continue  # A group that was deleted and made anew has other members.
        if new.generation < old.generation and set(old.members) & set(new.members):
            yield f"group {name!r}: the generation went back from {old.generation} to {new.generation}"
        if new.generation == old.generation and _slots(old) != _slots(new):
            yield f"group {name!r}: the members changed in generation {new.generation}"


def _slots(group: Group) -> set[str]:
    """The members; a static one by its name, because one process may take the place of another without a rebalance."""
    return {member.instance_id or member.member_id for member in group.members.values()}


def _groups(state: State) -> Iterator[tuple[str, list[Member]]]:
    for name, group in sorted(state.groups.items(), key=by_name):
        if group.members:
            yield name, [group.members[member_id] for member_id in sorted(group.members)]


#: In every state.
GROUP_INVARIANTS = (
    partitions_have_one_holder,
    targets_cover_what_is_read,
    free_partitions_are_given,
    instance_names_unique,
)

#: Between two states.
GROUP_STEPS = (generations_never_go_back,)
