"""Scenarios of groups and their offsets."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tests.compat.wire.connection import Wire
from tests.compat.wire.records import UNKNOWN_TOPIC
from tests.compat.wire.transactions import offsets
from txnstore.gateway.apis import Api


def commit(group: str, *parts: tuple[str | UUID, int, int], **options: Any) -> dict[str, Any]:
    """The fields of OffsetCommit; ``metadata`` is that of each part."""
    metadata, epoch = options.pop("metadata", ""), options.pop("epoch", -1)
    topics = [
        {
            **({"topic_id": topic} if isinstance(topic, UUID) else {"name": topic}),
            "partitions": [
                {
                    "partition_index": number,
                    "committed_offset": offset,
                    "committed_leader_epoch": epoch,
                    "committed_metadata": metadata,
                }
            ],
        }
        for topic, number, offset in parts
    ]
    membership = {
        "generation_id": -1,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time": -1,
        **options,
    }
    if "generation_id" in options:
        membership["generation_id_or_member_epoch"] = options["generation_id"]
    return {"group_id": group, "topics": topics, **membership}


def committed_offsets(wire: Wire) -> None:
    """OFF-08, OFF-09, OFF-15: OffsetCommit of no member, and OffsetFetch of one and of several groups."""
    t = wire.topic("t", 3)
    for version in range(2, 11):
        topic: str | UUID = wire.topic_ids[t] if version == 10 else t
        missing: str | UUID = UNKNOWN_TOPIC if version == 10 else "missing"
        group = f"commit-{version}"
        for label, fields in (
            ("a generation of no group", commit(f"none-{version}", (topic, 0, 1), generation_id=3, member_id="m")),
            ("a member of no group", commit(f"none-{version}", (topic, 0, 1), member_id="m")),
            ("an offset", commit(group, (topic, 0, 1), metadata="m", epoch=0)),
            ("an empty group", commit("", (topic, 0, 1))),
            ("an unknown topic beside one that exists", commit(group, (topic, 1, 2), (missing, 0, 1))),
            ("an unknown partition", commit(group, (topic, 9, 2))),
            ("too large metadata", commit(group, (topic, 2, 2), metadata="x" * 4097)),
            ("a generation of a group without members", commit(group, (topic, 0, 3), generation_id=3, member_id="m")),
            ("a member of a group without members", commit(group, (topic, 0, 3), member_id="m")),
            ("a negative offset", commit(f"negative-{version}", (topic, 0, -4))),
            ("no topic", commit(group)),
        ):
            wire.show(label, Api.OFFSET_COMMIT, version, fields)
        if version >= 7:
            instance = commit(group, (topic, 0, 3), group_instance_id="i")
            wire.show("an instance of a group without members", Api.OFFSET_COMMIT, version, instance)
    for version in range(1, 8):
        rows: list[tuple[str, dict[str, Any]]] = [
            ("of a group", {"group_id": "commit-9", "topics": [{"name": t, "partition_indexes": [0, 1, 2]}]}),
            ("of an unknown group", {"group_id": "unknown", "topics": [{"name": t, "partition_indexes": [0]}]}),
            (
                "of an unknown topic",
                {"group_id": "commit-9", "topics": [{"name": "missing", "partition_indexes": [0]}]},
            ),
            ("of an unknown partition", {"group_id": "commit-9", "topics": [{"name": t, "partition_indexes": [8]}]}),
            ("of an empty group", {"group_id": "", "topics": [{"name": t, "partition_indexes": [0]}]}),
            ("of no topic", {"group_id": "commit-9", "topics": []}),
        ]
        if version >= 2:
            rows += [("of all topics", {"group_id": "commit-9", "topics": None})]
            rows += [("of all topics of an unknown group", {"group_id": "unknown", "topics": None})]
        for label, fields in rows:
            wire.show(label, Api.OFFSET_FETCH, version, fields)
    for version in range(8, 11):
        topic = wire.topic_ids[t] if version == 10 else t
        missing = UNKNOWN_TOPIC if version == 10 else "missing"
        named = {"topic_id" if version == 10 else "name": topic}
        unknown = {"topic_id" if version == 10 else "name": missing}
        groups: list[dict[str, Any]] = [
            {"group_id": "commit-9", "topics": [{**named, "partition_indexes": [0, 1, 2, 8]}]},
            {"group_id": "unknown", "topics": [{**named, "partition_indexes": [0]}]},
            {"group_id": "commit-8", "topics": None},
            {"group_id": "commit-7", "topics": [{**unknown, "partition_indexes": [0]}]},
            {"group_id": "commit-6", "topics": []},
            {"group_id": "commit-6", "topics": None, "member_id": "m", "member_epoch": 3},
            {"group_id": "", "topics": None},
        ]
        for number, group_fields in enumerate(groups):
            asked = {"member_id": None, "member_epoch": -1, **group_fields}
            wire.show(f"of group {number}", Api.OFFSET_FETCH, version, {"groups": [asked], "require_stable": True})


def pending_offsets(wire: Wire) -> None:
    """OFF-02, OFF-09, OFF-11, OFF-13: offsets of open transactions, for who asks for stable ones and who does not."""
    t = wire.topic("t", 2)
    first, second = wire.producer("first"), wire.producer("second")
    wire.ask(Api.OFFSET_COMMIT, 9, commit("g", (t, 0, 1), (t, 1, 1)))
    wire.ask(Api.TXN_OFFSET_COMMIT, 5, offsets("first", first, "g", (t, 0, 5, "")))
    wire.ask(Api.TXN_OFFSET_COMMIT, 5, offsets("second", second, "g", (t, 0, 7, "")))
    wire.ask(Api.TXN_OFFSET_COMMIT, 5, offsets("second", second, "new", (t, 0, 7, "")))

    def shown(label: str) -> None:
        for version in (6, 7, 8, 9):
            for stable in (False, True):
                for group in ("g", "new"):
                    topics = [{"name": t, "partition_indexes": [0, 1]}]
                    one = {"group_id": group, "topics": topics, "member_id": None, "member_epoch": -1}
                    fields = {**one, "groups": [one], "require_stable": stable}
                    kind = "stable" if stable else "any"
                    wire.show(f"{label}, {kind} of {group}", Api.OFFSET_FETCH, version, fields)
                    every = {**one, "topics": None}
                    asked = {**every, "groups": [every], "require_stable": stable}
                    wire.show(f"{label}, all {kind} of {group}", Api.OFFSET_FETCH, version, asked)

    shown("pending")
    wire.finish("first", first)
    shown("one is committed")
    wire.ask(Api.OFFSET_COMMIT, 9, commit("g", (t, 0, 3)))
    wire.finish("second", second)
    shown("both are committed, one after a plain commit")


def join(group: str, member: str = "", **options: Any) -> dict[str, Any]:
    """The fields of JoinGroup."""
    return {
        "group_id": group,
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "member_id": member,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"}],
        **options,
    }


def members(wire: Wire) -> None:
    """COORD-06, CON-17, OFF-06: JoinGroup, SyncGroup, Heartbeat, LeaveGroup of one member, and of none."""
    t = wire.topic("t")
    for version in range(10):
        group = f"members-{version}"
        for label, fields in (
            ("an empty group", join("")),
            ("too short a session", join(group, session_timeout=10)),
            ("too long a session", join(group, session_timeout=2_000_000)),
            ("an unknown member", join(group, "m")),
            ("no protocol", join(group, protocols=[])),
            ("no type of protocol", join(group, protocol_type="")),
        ):
            wire.show(label, Api.JOIN_GROUP, version, fields)
        joined = wire.show("a member", Api.JOIN_GROUP, version, join(group))
        if version >= 4:
            joined = wire.show("its id", Api.JOIN_GROUP, version, join(group, joined.member_id))
        member, generation = joined.member_id, joined.generation_id
        one = {"group_id": group, "generation_id": generation, "member_id": member, "group_instance_id": None}
        sync_version, beat_version, leave_version = min(version, 5), min(version, 4), min(version, 5)
        assigned = {**one, "protocol_type": "consumer", "protocol_name": "range"}
        labelled = f"of JoinGroup {version}"
        for label, fields in (
            ("a sync of an unknown member", {**assigned, "member_id": "x"}),
            ("a sync of another generation", {**assigned, "generation_id": generation + 1}),
            ("a sync of an unknown group", {**assigned, "group_id": "unknown"}),
            ("a sync of an empty group", {**assigned, "group_id": ""}),
            ("a sync", {**assigned, "assignments": [{"member_id": member, "assignment": b"abc"}]}),
            ("the sync again", assigned),
            ("a sync of another type", {**assigned, "protocol_type": "connect"}),
            ("a sync of another protocol", {**assigned, "protocol_name": "other"}),
        ):
            wire.show(f"{label} {labelled}", Api.SYNC_GROUP, sync_version, fields)
        for label, fields in (
            ("a heartbeat", one),
            ("one of an unknown member", {**one, "member_id": "x"}),
            ("one of an older generation", {**one, "generation_id": generation - 1}),
            ("one of a later generation", {**one, "generation_id": generation + 1}),
            ("one of an unknown group", {**one, "group_id": "unknown"}),
            ("one of an empty group", {**one, "group_id": ""}),
        ):
            wire.show(f"{label} {labelled}", Api.HEARTBEAT, beat_version, fields)
        for number in (5, 9):
            for label, options in (
                ("a commit of the member", {"generation_id": generation, "member_id": member}),
                ("one of nobody", {}),
                ("one of another member", {"generation_id": generation, "member_id": "x"}),
                ("one of an older generation", {"generation_id": generation - 1, "member_id": member}),
                ("one of a later generation", {"generation_id": generation + 1, "member_id": member}),
            ):
                wire.show(f"{label} {labelled}", Api.OFFSET_COMMIT, number, commit(group, (t, 0, 1), **options))
        wire.show(f"the group is not empty {labelled}", Api.DELETE_GROUPS, 2, {"groups_names": [group]})
        leaving: dict[str, Any] = {"group_id": group, "member_id": "x"}
        leaving["members"] = [{"member_id": "x", "group_instance_id": None}]
        wire.show(f"an unknown member leaves {labelled}", Api.LEAVE_GROUP, leave_version, leaving)
        leaving = {
            "group_id": group,
            "member_id": member,
            "members": [{"member_id": member, "group_instance_id": None}],
        }
        wire.show(f"the member leaves {labelled}", Api.LEAVE_GROUP, leave_version, leaving)
        wire.show(f"it leaves again {labelled}", Api.LEAVE_GROUP, leave_version, leaving)
        wire.show(f"an unknown group is left {labelled}", Api.LEAVE_GROUP, leave_version, {**leaving, "group_id": "no"})
        wire.show(f"a heartbeat of who has left {labelled}", Api.HEARTBEAT, beat_version, one)
        wire.show(
            f"an offset of who has left {labelled}",
            Api.OFFSET_COMMIT,
            9,
            commit(group, (t, 0, 1), generation_id=generation, member_id=member),
        )
        wire.show(f"an offset of nobody {labelled}", Api.OFFSET_COMMIT, 9, commit(group, (t, 0, 1)))


def transactions_of_members(wire: Wire) -> None:
    """OFF-06, OFF-08: offsets of transactions with a membership."""
    t = wire.topic("t")
    joined = wire.ask(Api.JOIN_GROUP, 9, join("g"))
    joined = wire.ask(Api.JOIN_GROUP, 9, join("g", joined.member_id, group_instance_id=None))
    member, generation = joined.member_id, joined.generation_id
    one = {"group_id": "g", "generation_id": generation, "member_id": member, "group_instance_id": None}
    assigned = {**one, "protocol_type": "consumer", "protocol_name": "range", "assignments": []}
    wire.ask(Api.SYNC_GROUP, 5, assigned)
    who = wire.producer("x")
    for version in (3, 4, 5):
        if version < 5:
            fields = {"transactional_id": "x", "producer_id": who[0], "producer_epoch": who[1], "group_id": "g"}
            wire.ask(Api.ADD_OFFSETS_TO_TXN, 3, fields)
        for label, membership in (
            ("of the member", {"generation_id": generation, "member_id": member}),
            ("of nobody", {}),
            ("of another member", {"generation_id": generation, "member_id": "x"}),
            ("of an older generation", {"generation_id": generation - 1, "member_id": member}),
            ("of a later generation", {"generation_id": generation + 1, "member_id": member}),
            ("of a member without generation", {"member_id": member}),
            ("of an unknown instance", {"generation_id": generation, "member_id": member, "group_instance_id": "i"}),
        ):
            wire.show(label, Api.TXN_OFFSET_COMMIT, version, offsets("x", who, "g", (t, 0, 1, ""), **membership))
    wire.finish("x", who)


def static_members(wire: Wire) -> None:
    """OFF-06: an instance that is replaced is fenced."""
    t = wire.topic("t")
    for version in (5, 7, 9):
        group = f"static-{version}"
        first = wire.show("an instance", Api.JOIN_GROUP, version, join(group, group_instance_id="i"))
        sync = {"group_id": group, "generation_id": first.generation_id, "member_id": first.member_id}
        sync |= {"group_instance_id": "i", "protocol_type": "consumer", "protocol_name": "range"}
        wire.ask(Api.SYNC_GROUP, 5, {**sync, "assignments": [{"member_id": first.member_id, "assignment": b"abc"}]})
        wire.show("the instance again", Api.JOIN_GROUP, version, join(group, group_instance_id="i"))
        beat = {**sync}
        wire.show(f"a heartbeat of the first, JoinGroup {version}", Api.HEARTBEAT, 4, beat)
        wire.show(f"a sync of the first, JoinGroup {version}", Api.SYNC_GROUP, 5, sync)
        options = {"generation_id": first.generation_id, "member_id": first.member_id, "group_instance_id": "i"}
        wire.show(
            f"a commit of the first, JoinGroup {version}", Api.OFFSET_COMMIT, 9, commit(group, (t, 0, 1), **options)
        )
        wire.show("a join of the first", Api.JOIN_GROUP, version, join(group, first.member_id, group_instance_id="i"))
        unknown = {**options, "group_instance_id": "j"}
        wire.show(
            f"a commit of an unknown instance, JoinGroup {version}",
            Api.OFFSET_COMMIT,
            9,
            commit(group, (t, 0, 1), **unknown),
        )
        leaving = {
            "group_id": group,
            "members": [
                {"member_id": first.member_id, "group_instance_id": "i"},
                {"member_id": "", "group_instance_id": "j"},
                {"member_id": "", "group_instance_id": "i"},
            ],
        }
        wire.show(f"three leave, JoinGroup {version}", Api.LEAVE_GROUP, 5, leaving)


def heartbeats_of_kip_848(wire: Wire) -> None:
    """OFF-07: ConsumerGroupHeartbeat and what it refuses."""
    t = wire.topic("t", 2)

    def beat(group: str, member: str, epoch: int, **options: Any) -> dict[str, Any]:
        first = (
            {"rebalance_timeout": 30_000, "subscribed_topic_names": [t], "topic_partitions": []} if epoch == 0 else {}
        )
        later = {"rebalance_timeout": -1, "subscribed_topic_names": None, "topic_partitions": None}
        return {
            "group_id": group,
            "member_id": member,
            "member_epoch": epoch,
            "instance_id": None,
            "rack_id": None,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            **(first or later),
            **options,
        }

    for version in range(2):
        group, member = f"g{version}", "AAAAAAAAAAAAAAAAAAAAAA"
        for label, fields in (
            ("an empty group", beat("", member, 0)),
            ("an empty member", beat(group, "", 0)),
            ("an epoch of no member", beat(group, member, 5)),
            ("no topics", beat(group, member, 0, subscribed_topic_names=None)),
            ("an unknown assignor", beat(group, member, 0, server_assignor="other")),
            ("no timeout", beat(group, member, 0, rebalance_timeout=-1)),
            (
                "partitions at the beginning",
                beat(group, member, 0, topic_partitions=[{"topic_id": wire.topic_ids[t], "partitions": [0]}]),
            ),
            ("an empty instance", beat(group, member, 0, instance_id="")),
            ("an empty rack", beat(group, member, 0, rack_id="")),
            ("an epoch below -2", beat(group, member, -3)),
            ("who never joined leaves", beat(group, member, -1)),
            ("an instance leaves that has none", beat(group, member, -2)),
            ("a member", beat(group, member, 0)),
        ):
            wire.show(label, Api.CONSUMER_GROUP_HEARTBEAT, version, fields)
        for label, options in (
            ("an older epoch", {"generation_id": 0, "member_id": member}),
            ("a later epoch", {"generation_id": 99, "member_id": member}),
            ("another member", {"generation_id": 1, "member_id": "x"}),
            ("nobody", {}),
        ):
            wire.show(
                f"a commit of {label} after version {version}",
                Api.OFFSET_COMMIT,
                9,
                commit(group, (t, 0, 1), **options),
            )
            wire.show(
                f"a commit of {label} after version {version}",
                Api.OFFSET_COMMIT,
                8,
                commit(group, (t, 0, 1), **options),
            )
        wire.show(f"a member of the older protocol, after version {version}", Api.JOIN_GROUP, 9, join(group))
        for asked in (
            {"member_id": member, "member_epoch": 99},
            {"member_id": "x", "member_epoch": 1},
            {"member_id": member, "member_epoch": 0},
            {"member_id": None, "member_epoch": -1},
        ):
            one = {"group_id": group, "topics": None, **asked}
            wire.show(
                f"offsets for {asked} after version {version}",
                Api.OFFSET_FETCH,
                9,
                {"groups": [one], "require_stable": True},
            )
        wire.show("a later epoch", Api.CONSUMER_GROUP_HEARTBEAT, version, beat(group, member, 99))
        wire.show("another member", Api.CONSUMER_GROUP_HEARTBEAT, version, beat(group, "x", 1))
        wire.show("its end", Api.CONSUMER_GROUP_HEARTBEAT, version, beat(group, member, -1))
        wire.show("its end again", Api.CONSUMER_GROUP_HEARTBEAT, version, beat(group, member, -1))


def descriptions_of_groups(wire: Wire) -> None:
    """OFF-16, OFF-17: DescribeGroups, ConsumerGroupDescribe, ListGroups, DeleteGroups, OffsetDelete."""
    t = wire.topic("t")
    wire.ask(Api.OFFSET_COMMIT, 9, commit("simple", (t, 0, 1)))
    for version in range(7):
        wire.show("groups", Api.DESCRIBE_GROUPS, version, {"groups": ["simple", "unknown", ""]})
    for version in range(2):
        wire.show("groups", Api.CONSUMER_GROUP_DESCRIBE, version, {"group_ids": ["simple", "unknown", ""]})
    for version in range(6):
        wire.show("all", Api.LIST_GROUPS, version, {})
        if version >= 4:
            for states in (["Empty"], ["empty"], ["Stable", "Dead"], ["Other"]):
                wire.show(f"in {states}", Api.LIST_GROUPS, version, {"states_filter": states})
        if version >= 5:
            for types in (["classic"], ["Classic"], ["consumer"], ["other"]):
                wire.show(f"of {types}", Api.LIST_GROUPS, version, {"types_filter": types})
    for label, fields in (
        ("offsets", {"group_id": "simple", "topics": [{"name": t, "partitions": [{"partition_index": 0}]}]}),
        ("offsets again", {"group_id": "simple", "topics": [{"name": t, "partitions": [{"partition_index": 0}]}]}),
        (
            "an unknown topic",
            {"group_id": "simple", "topics": [{"name": "missing", "partitions": [{"partition_index": 0}]}]},
        ),
        ("an unknown group", {"group_id": "unknown", "topics": [{"name": t, "partitions": [{"partition_index": 0}]}]}),
        ("an empty group", {"group_id": "", "topics": [{"name": t, "partitions": [{"partition_index": 0}]}]}),
    ):
        wire.show(label, Api.OFFSET_DELETE, 0, fields)
    for version in range(3):
        wire.ask(Api.OFFSET_COMMIT, 9, commit(f"deleted-{version}", (t, 0, 1)))
        names = [f"deleted-{version}", "unknown", ""]
        wire.show("groups", Api.DELETE_GROUPS, version, {"groups_names": names})
        wire.show("the same", Api.DELETE_GROUPS, version, {"groups_names": names})
