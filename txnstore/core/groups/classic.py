"""The rules of classic groups, whose members a gateway keeps (``docs/internals/design/groups.md``).

The gateway runs Kafka's classic protocol in memory and stores each generation in one entry. A generation is stored only
by a gateway that knows the one before it, so of two gateways that coordinate a group one loses. Offset commits are
checked against the stored generation, whatever a gateway believes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from txnstore.core.authorization.rights import reads_group_or_maintains
from txnstore.core.declaration import command
from txnstore.core.groups.commands import StoreGeneration
from txnstore.core.groups.events import GenerationStored
from txnstore.core.groups.membership import expire
from txnstore.core.groups.model import GROUPS, ClassicGeneration, Group
from txnstore.core.routes import to_group
from txnstore.core.state import Draft
from txnstore.errors import IllegalGenerationError, InconsistentGroupProtocolError, InvalidConfigError
from txnstore.validation import check_id

#: The greatest generation; Kafka's protocol has 32 bits for it.
MAX_GENERATION = 2**31 - 1
#: The most bytes of the subscriptions and assignments of a generation, which every process keeps in memory.
MAX_GENERATION_BYTES = 4 * 2**20


@command(StoreGeneration, route=to_group, right=reads_group_or_maintains)
def store_generation(draft: Draft, command: StoreGeneration) -> None:
    """Store a generation, unless it is the stored one.

    Raises:
        IllegalGenerationError: The stored generation is another one than the gateway knows.
        InconsistentGroupProtocolError: The group has live members with leases.
        InvalidConfigError: An argument is not valid.
    """
    classic = _generation(command)
    _check_generation(command, classic)
    name = command.group
    group = draft.state.groups.get(command.group, Group())
    if (group.generation, _without_time(group.classic)) == (command.generation, classic):
        return
    if group.generation != command.expected:
        msg = f"group {name!r} is at generation {group.generation}, not {command.expected}: another gateway keeps it"
        raise IllegalGenerationError(msg)
    if command.generation == command.expected:
        _check_replacement(command, group.classic, classic)
    if any((member.member_id, member.seen_at) not in command.expired for member in group.members.values()):
        msg = f"group {name!r} has live members that no gateway keeps, so no member of another kind can join it"
        raise InconsistentGroupProtocolError(msg)
    expire(draft, name, command.expired)
    draft.require(GROUPS)
    draft.emit(
        GenerationStored(
            group=name,
            generation=command.generation,
            protocol_type=classic.protocol_type,
            protocol=classic.protocol,
            leader=classic.leader,
            members=list(classic.members),
        )
    )


def assignments_by_lasting_name(classic: ClassicGeneration) -> dict[tuple[str, str], bytes]:
    """Return the assignment of each member of a generation, by static name, else by member id."""
    return {member.lasting_name: member.assignment for member in classic.members}


def _generation(command: StoreGeneration) -> ClassicGeneration:
    """Build the generation of a command, without the time; an empty one has neither protocol nor leader."""
    members = tuple(sorted(command.members, key=lambda member: member.member_id))
    if not members:
        return ClassicGeneration(command.protocol_type, None, None, ())
    return ClassicGeneration(command.protocol_type, command.protocol, command.leader, members)


def _without_time(classic: ClassicGeneration | None) -> ClassicGeneration | None:
    return None if classic is None else replace(classic, stored_at=0)


def _member_ids(classic: ClassicGeneration) -> set[str]:
    return {member.member_id for member in classic.members}


def _check_replacement(
    command: StoreGeneration, old_classic: ClassicGeneration | None, new_classic: ClassicGeneration
) -> None:
    """Check that the command only replaces ids of static members in its generation (KIP-345).

    The command names the ids that it replaces. So one that a paused gateway sends late, after another gateway has
    replaced the same member, does not fence the newer instance.
    """
    if (
        old_classic is None
        or not command.replaces
        or _member_ids(old_classic) - _member_ids(new_classic) != set(command.replaces)
        or (old_classic.protocol_type, old_classic.protocol) != (new_classic.protocol_type, new_classic.protocol)
        or assignments_by_lasting_name(old_classic) != assignments_by_lasting_name(new_classic)
    ):
        msg = f"generation {command.generation} of group {command.group!r} is stored with other members or assignments"
        raise IllegalGenerationError(msg)


def _check_generation(command: StoreGeneration, classic: ClassicGeneration) -> None:
    """Check what a gateway stores as a generation: its number, distinct members, leader, protocol and size."""
    check_id("group.id", command.group)
    name = command.group
    if not 1 <= command.generation <= MAX_GENERATION or command.generation < command.expected:
        msg = f"generation {command.generation} of group {name!r} cannot follow {command.expected}"
        raise InvalidConfigError(msg)
    for kind, values in (
        ("member.id", [member.member_id for member in classic.members]),
        ("group.instance.id", [member.instance_id for member in classic.members if member.instance_id is not None]),
    ):
        for value, count in Counter(values).items():
            check_id(kind, value)
            if count > 1:
                msg = f"two members of group {name!r} have the {kind} {value!r}"
                raise InvalidConfigError(msg)
    if classic.members and (not classic.protocol_type or classic.protocol is None):
        msg = f"the members of group {name!r} have no protocol"
        raise InvalidConfigError(msg)
    if classic.members and classic.leader not in _member_ids(classic):
        msg = f"the leader {classic.leader!r} of group {name!r} is none of its members"
        raise InvalidConfigError(msg)
    size = sum(len(member.subscription) + len(member.assignment) for member in classic.members)
    if size > MAX_GENERATION_BYTES:
        msg = f"the subscriptions and assignments of group {name!r} have {size} bytes, above {MAX_GENERATION_BYTES}"
        raise InvalidConfigError(msg)
