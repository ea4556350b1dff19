"""``group``: list, show, reset and delete consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from txnstore.cli.confirm import ask, must_ask, yes_option
from txnstore.cli.context import App, NounGroup, pass_app, shared_options
from txnstore.cli.output import instant
from txnstore.cli.values import Integer, parse_position

if TYPE_CHECKING:
    from txnstore.admin.groups import GroupDescription
    from txnstore.core.model import TopicPartition
    from txnstore.store import Store


_OFFSET_COLUMNS = ["topic", "partition", "offset", "end", "lag", "blocked", "pending", "committed_at", "metadata"]
_MEMBER_COLUMNS = {
    "native": ["member_id", "instance_id", "assigned", "waits_for", "expires_at"],
    "classic": ["member_id", "instance_id", "assigned", "client_id", "client_host"],
    "consumer": ["member_id", "instance_id", "assigned", "waits_for"],
}
_RESET_COLUMNS = ["topic", "partition", "before", "offset"]


@click.group(cls=NounGroup)
def group() -> None:
    """List, show, reset and delete consumer groups."""


@group.command("list")
@shared_options()
@pass_app
def list_groups(app: App) -> None:
    """List all groups with the number of their members and their lag."""
    with app.operations() as store:
        groups = store.groups()
    rows = [
        {**_summary(group), "members": len(group.members), "partitions": len(group.positions), "lag": group.lag}
        for group in groups
    ]
    kind = ["kind"] if any(group.kind != "native" for group in groups) else []
    columns = ["group", *kind, "state", "generation", "members", "partitions", "lag"]
    app.out.rows(rows, columns, empty="There are no groups. A consumer with a group id creates one")


@group.command()
@click.argument("name")
@shared_options()
@pass_app
def show(app: App, name: str) -> None:
    """Show the members and the committed offsets of the group NAME."""
    with app.operations() as store:
        group = store.group(name)
    members, offsets = _member_rows(group), _offset_rows(group)
    app.out.blocked(position.blocked for position in group.positions if position.blocked is not None)
    if app.out.as_json:
        app.out.record({**_summary(group), "lag": group.lag, "members": members, "offsets": offsets})
        return
    app.out.record({**_summary(group), "lag": group.lag})
    app.out.rows(members, _MEMBER_COLUMNS[group.kind])
    for member in group.members:
        for holder in member.holders:
            from txnstore.consumer.membership import describe_holder

            app.out.note(f"Member {member.member_id} waits for {describe_holder(holder)}")
    app.out.rows(offsets, _OFFSET_COLUMNS)


@group.command("reset-offsets")
@click.argument("name")
@click.option(
    "--to",
    "target",
    required=True,
    metavar="earliest|latest|OFFSET|TIME",
    help="The new position: earliest, latest, an offset, or the first record at or after a time, such as "
    "2026-01-31T12:00:00Z, or -1h for an hour ago.",
)
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="Only this one; repeatable.")
@click.option("--partition", "partitions", type=Integer(min=0), multiple=True, help="Only this one; repeatable.")
@click.option("--dry-run", is_flag=True, help="Only show what would be committed.")
@yes_option
@shared_options()
@pass_app
def reset(
    app: App, name: str, target: str, topics: tuple[str, ...], partitions: tuple[int, ...], dry_run: bool, yes: bool
) -> None:
    """Set the committed offsets of the group NAME, which must have no live members.

    By default for all partitions with a committed offset; with --topic for all partitions of that topic. Shows the
    offsets before and after, and asks.
    """
    from txnstore.runtime import wall_clock_ms

    if partitions and len(topics) != 1:
        msg = "--partition needs one --topic"
        raise click.UsageError(msg)
    target_position = parse_position(target, "--to", wall_clock_ms())
    with app.open(read_only=dry_run) as store:
        to = "earliest" if isinstance(target_position, int) else target_position
        positions = store.reset_offsets(name, to, topics=topics or None, dry_run=True)
        if missing_numbers := sorted(set(partitions) - {tp.partition for tp in positions}):
            msg = f"topic {topics[0]!r} has no partition {missing_numbers[0]}"
            raise click.UsageError(msg)
        new_offsets = {
            tp: target_position if isinstance(target_position, int) else offset
            for tp, offset in positions.items()
            if not partitions or tp.partition in partitions
        }
        if isinstance(target_position, int):
            store.reset_offsets(name, new_offsets, dry_run=True)  # Refuses an impossible offset before the question.
        old_offsets = _committed_offsets(store, name)
        rows = [
            {"group": name, "topic": tp.topic, "partition": tp.partition, "before": old_offsets.get(tp), "offset": new}
            for tp, new in new_offsets.items()
        ]
        if must_ask(f"reset the offsets of group {name!r}", yes=yes, dry_run=dry_run) and rows:
            app.out.plan(rows, _RESET_COLUMNS)
            note = "" if old_offsets else " It has none yet."
            ask(f"Set the committed offsets of group {name!r} to these?{note}")
        if not dry_run:
            store.reset_offsets(name, new_offsets)
    app.out.rows(rows, _RESET_COLUMNS, empty="Nothing to reset: the group has no committed offsets")
    if dry_run:
        app.out.note("Nothing was changed (--dry-run)")


def _committed_offsets(store: Store, name: str) -> dict[TopicPartition, int | None]:
    """The committed offsets of a group; none of a new group."""
    from txnstore.errors import GroupNotFoundError

    try:
        return {position.tp: position.offset for position in store.group(name).positions}
    except GroupNotFoundError:
        return {}


@group.command("remove-members")
@click.argument("name")
@yes_option
@shared_options()
@pass_app
def remove_members(app: App, name: str, yes: bool) -> None:
    """Remove the members of the group NAME that a gateway keeps, if that one never returns. Shows them, and asks.

    Members that are alive join again.
    """
    with app.open() as store:
        group = store.group(name)
        if must_ask(f"remove the members of group {name!r}", yes=yes):
            app.out.plan(_member_rows(group) if group.kind != "native" else [], _MEMBER_COLUMNS[group.kind])
            ask(f"Remove these members of group {name!r}?")
        removed = store.remove_members(name)
    app.out.result(f"{removed} members of group {name!r} are removed", group=name, members=removed)


@group.command()
@click.argument("name")
@yes_option
@shared_options()
@pass_app
def delete(app: App, name: str, yes: bool) -> None:
    """Delete the group NAME with its offsets; it must have no live members. Shows the offsets, and asks."""
    with app.open() as store:
        group = store.group(name)
        if must_ask(f"delete group {name!r}", yes=yes):
            app.out.plan(_offset_rows(group), _OFFSET_COLUMNS)
            ask(f"Delete group {name!r} with these offsets? This cannot be undone.")
        store.delete_group(name)
    app.out.result(f"Group {name!r} is deleted", group=name)


def _summary(group: GroupDescription) -> dict[str, Any]:
    return {
        "group": group.group,
        "state": group.state,
        "generation": group.generation,
        "last_transactional_id": group.last_transactional_id,
        **_gateway_members(group),
    }


def _gateway_members(group: GroupDescription) -> dict[str, Any]:
    """The members of the summary that only groups of a gateway have."""
    if group.kind != "classic":
        return {} if group.kind == "native" else {"kind": group.kind}
    return {
        "kind": group.kind,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "stored_at": instant(group.stored_at),
    }


def _member_rows(group: GroupDescription) -> list[dict[str, Any]]:
    """Return a row for each member of a group."""
    return [
        {
            "member_id": member.member_id,
            "instance_id": member.instance_id,
            "topics": member.topics,
            "assigned": [str(tp) for tp in member.assigned],
            "waits_for": [str(tp) for tp in member.waits_for],
            "held_by": [holder.member_id for holder in member.holders],
            "expires_at": instant(member.expires_at),
            **({"client_id": member.client_id, "client_host": member.client_host} if group.kind == "classic" else {}),
        }
        for member in group.members
    ]


def _offset_rows(group: GroupDescription) -> list[dict[str, Any]]:
    """Return a row for each partition where a group has committed, or has members."""
    return [
        {
            "topic": position.tp.topic,
            "partition": position.tp.partition,
            "offset": position.offset,
            "end": position.end,
            "lag": position.lag,
            "high_watermark": position.high_watermark,
            "blocked": position.blocked.records if position.blocked is not None else 0,
            "pending": position.pending,
            "committed_at": instant(position.committed_at),
            "metadata": position.metadata,
            "member_id": position.member_id,
        }
        for position in group.positions
    ]
