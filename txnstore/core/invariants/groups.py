"""Invariants of consumer groups: of a state, and of a transition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from txnstore.core.groups.assignors import Subscriptions
from txnstore.core.groups.classic import assignments_by_lasting_name
from txnstore.core.groups.model import Group, Member
from txnstore.core.invariants.common import changed_items, own_producers, owner_of
from txnstore.core.model import TopicPartition, sorted_items
from txnstore.core.state import State, leads_partition
from txnstore.core.transactions.model import TxnState


def pending_offsets_have_a_transaction(state: State) -> Iterator[str]:
    """Pending offsets belong to an open transaction with this group (OBJ-19 I6): otherwise they block it forever."""
    for name, group in sorted_items(state.groups):
        for producer_id in own_producers(state, group.pending):
            txn = owner_of(state, producer_id)
            if txn is None or txn.state is not TxnState.ONGOING or name not in txn.groups:
                yield f"group {name!r}: producer id {producer_id} has pending offsets, but no open transaction with it"


def group_offsets_sound(state: State) -> Iterator[str]:
    """Offsets are of existing partitions (OFF-18), and their commit positions are below the next one (OFF-11)."""
    for name, group in sorted_items(state.groups):
        for offsets in (group.offsets, *group.pending.values()):
            for tp, offset in sorted_items(offsets):
                if leads_partition(state, tp) and tp not in state.partitions:
                    yield f"group {name!r}: it has an offset of {tp}, which does not exist"
                if not 0 <= offset.commit_position < state.next_commit_position:
                    where = f"offset {offset.value.offset} of {tp} at commit position {offset.commit_position}"
                    yield f"group {name!r}: {where} is wrong"


def partitions_have_one_holder(state: State) -> Iterator[str]:
    """No two members of a group hold the same partition: its records would be processed twice."""
    for name, members in _sorted_groups(state):
        for tp, first, second in _shared_partitions(members, lambda member: member.held):
            yield f"group {name!r}: {tp} is held by {first!r} and by {second!r}"


def targets_cover_what_is_read(state: State) -> Iterator[str]:
    """Every partition that a group reads is the target of exactly one member, which reads its topic."""
    for name, members in _sorted_groups(state):
        for tp, first, second in _shared_partitions(members, lambda member: member.target):
            yield f"group {name!r}: {tp} is a target of {first!r} and of {second!r}"
        for member in members:
            for tp in member.target:
                if tp.topic not in member.topics:
                    yield f"group {name!r}: {tp} is a target of {member.member_id!r}, which does not read its topic"
        targets = {tp for member in members for tp in member.target}
        for tp in Subscriptions.of(members).all_partitions():
            if tp not in targets:
                yield f"group {name!r}: {tp} is a target of no member"


def _shared_partitions(
    members: Sequence[Member], partitions: Callable[[Member], Iterable[TopicPartition]]
) -> Iterator[tuple[TopicPartition, str, str]]:
    """Yield the partitions that two members have, with the ids of both."""
    owners: dict[TopicPartition, str] = {}
    for member in members:
        for tp in partitions(member):
            owner = owners.setdefault(tp, member.member_id)
            if owner != member.member_id:
                yield tp, owner, member.member_id


def free_partitions_are_given(state: State) -> Iterator[str]:
    """A target that no other member holds is held by its member: otherwise no member would read it."""
    for name, members in _sorted_groups(state):
        held_tps = {tp for member in members for tp in member.held}
        for member in members:
            for tp in sorted(set(member.target) - held_tps):
                yield f"group {name!r}: no member holds {tp}, a target of {member.member_id!r}"


def instance_names_unique(state: State) -> Iterator[str]:
    """A static name has one member (KIP-345); also, a group with members has a generation of 1 or above."""
    for name, members in _sorted_groups(state):
        names = [member.instance_id for member in members if member.instance_id is not None]
        for instance_id in sorted({instance_id for instance_id in names if names.count(instance_id) > 1}):
            yield f"group {name!r}: two members have the group.instance.id {instance_id!r}"
        if members and state.groups[name].generation < 1:
            yield f"group {name!r} has members, but generation {state.groups[name].generation}"


def classic_generations_sound(state: State) -> Iterator[str]:
    """A group has members of one kind. The ids and static names at a gateway are unique, and one member leads."""
    for name, group in sorted_items(state.groups):
        members = group.classic_members
        if members and group.members:
            yield f"group {name!r}: it has members with leases, and others at a gateway"
        if group.classic is not None and group.generation < 1:
            yield f"group {name!r}: a gateway has stored generation {group.generation}"
        ids = [member.member_id for member in members]
        lasting_names = {member.lasting_name for member in members}
        if len(set(ids)) < len(ids) or len(lasting_names) < len(ids):
            yield f"group {name!r}: two members at a gateway have the same id or group.instance.id"
        leaders = {*ids} if ids else {None}
        if group.classic is not None and group.classic.leader not in leaders:
            yield f"group {name!r}: {group.classic.leader!r} leads it, which is none of its members"


def epochs_sound(state: State) -> Iterator[str]:
    """In a group of the kind ``consumer`` each member has an epoch, which is no later generation (KIP-848)."""
    for name, group in sorted_items(state.groups):
        if group.epochs is None:
            continue
        if group.classic is not None or {*group.epochs} != {*group.members}:
            yield f"group {name!r}: {sorted(group.epochs)} have epochs, and {sorted(group.members)} are its members"
        for member_id, epoch in sorted_items(group.epochs):
            if not 1 <= epoch <= group.generation:
                yield f"group {name!r}: member {member_id!r} is at epoch {epoch} of generation {group.generation}"


def member_epochs_never_go_back(before: State, after: State) -> Iterator[str]:
    """The epoch of a member only grows: a commit of an earlier one stays refused."""
    for name, old, new in changed_items(before.groups, after.groups):
        if new is None or old.epochs is None or new.epochs is None:
            continue
        for member_id, epoch, now in changed_items(old.epochs, new.epochs):
            if now is not None and now < epoch:
                yield f"group {name!r}: the epoch of {member_id!r} went back from {epoch} to {now}"


def assignments_never_change(before: State, after: State) -> Iterator[str]:
    """A generation of a classic group has one assignment: a commit of this generation says who read what."""
    for name, old, new in changed_items(before.groups, after.groups):
        if new is None or old.classic is None or new.classic is None or not old.classic_members:
            continue
        if new.generation < old.generation and not _have_no_common_member(old, new):
            yield f"group {name!r}: the generation went back from {old.generation} to {new.generation}"
        if new.generation == old.generation and assignments_by_lasting_name(old.classic) != assignments_by_lasting_name(
            new.classic
        ):
            yield f"group {name!r}: the members or assignments of generation {new.generation} changed"


def _have_no_common_member(old: Group, new: Group) -> bool:
    """Whether no member is in both: the group was emptied, deleted and created again in one entry."""
    old_ids, new_ids = ({member.member_id for member in group.classic_members} for group in (old, new))
    return not old_ids & new_ids


def generations_never_go_back(before: State, after: State) -> Iterator[str]:
    """The generation of a group only grows (CON-17), and grows when its members change: it fences the earlier ones."""
    for name, old, new in changed_items(before.groups, after.groups):
        if new is None or not old.members:
            continue  # A group that was deleted and created again has other members.
        if new.generation < old.generation and set(old.members) & set(new.members):
            yield f"group {name!r}: the generation went back from {old.generation} to {new.generation}"
        if new.generation == old.generation and _lasting_names(old) != _lasting_names(new):
            yield f"group {name!r}: the members changed in generation {new.generation}"


def _lasting_names(group: Group) -> set[str]:
    """The members, static ones by name: a static member is replaced without a rebalance."""
    return {member.instance_id or member.member_id for member in group.members.values()}


def _sorted_groups(state: State) -> Iterator[tuple[str, list[Member]]]:
    for name, group in sorted_items(state.groups):
        if group.members:
            yield name, [group.members[member_id] for member_id in sorted(group.members)]


#: The invariants of a state that are reported last; ``check.py`` lists all of them, in the order of the report.
GROUP_INVARIANTS = (
    partitions_have_one_holder,
    targets_cover_what_is_read,
    free_partitions_are_given,
    instance_names_unique,
    classic_generations_sound,
    epochs_sound,
)

#: The invariants of a transition.
GROUP_STEPS = (generations_never_go_back, assignments_never_change, member_epochs_never_go_back)
