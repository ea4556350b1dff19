"""A reader of stores, written from docs/format.md alone (for checkpoints also docs/internals/format-writing.md).

It imports nothing of txnstore. A store is its objects: a mapping of keys to bytes. :class:`Reader` folds the chains of
a store from their beginnings, and answers for each closed cut what a reader shows. ``complete``: it also folds what
only writers need, and compares the whole state with each checkpoint that it passes. The state of a chain has the form
of ``state.json``, but for maps in the place of lists with names.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

Json = dict[str, Any]
Objects = Mapping[str, bytes]
Tp = tuple[str, int]

VERSION = 4
ABSENT = 3
#: Texts and bytes that are longer stand in ``expected.json`` as their hash.
LONG = 256
HOUR_MS = 3_600_000
#: What a record of a topic without a schema has.
RECORD = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp", pa.timestamp("ms", "UTC")),
    ]
)


class RefusedError(Exception):
    """The store cannot be read; the text says why."""


# Section 2: JSON objects ----------------------------------------------------------------------------------------------


def checked(line: bytes) -> Json:
    """The object of a line: the checksum comes first, then the version, then the features."""
    body, mark, rest = line.rpartition(b',"checksum":"')
    if not mark or rest != hashlib.sha256(body + b"}").hexdigest().encode() + b'"}':
        raise RefusedError("the checksum does not match")
    document: Json = json.loads(line)
    if document["version"] != VERSION:
        raise RefusedError(f"format version {document['version']}")
    lacking = (document.get("requires") or {}).get("read", [])
    if lacking:
        raise RefusedError(f"the features {', '.join(sorted(lacking))}")
    return document


def split(data: bytes) -> tuple[bytes, bytes]:
    """The payload of an entry, or the Parquet file of an index file; and the line."""
    payload, _, line = data.rpartition(b"\n")
    return payload, line


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# The state of a chain -------------------------------------------------------------------------------------------------


@dataclass
class State:
    """The state of a chain after an entry.

    ``decided``: the outcome of each decided transaction that is not completed, by producer id (7.5). The other members
    are those of ``state.json``.
    """

    chain: int
    chains: int
    sequence: int = 0
    entry_hash: str = ""
    timestamp: int = 0
    next_producer_id: int = 0
    next_commit_position: int = 0
    topics: dict[str, Json] = field(default_factory=dict)
    partitions: dict[Tp, Json] = field(default_factory=dict)
    transactions: dict[str, Json] = field(default_factory=dict)
    transactional_ids: dict[int, str] = field(default_factory=dict)
    groups: dict[str, Json] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    released: dict[str, int] = field(default_factory=dict)
    released_entries: list[list[int]] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)
    fences: dict[int, list[Any]] = field(default_factory=dict)
    requires: Json = field(default_factory=lambda: {"read": [], "write": []})
    authorization: Json = field(
        default_factory=lambda: {"mode": "off", "super_users": [], "allow_if_no_acl": False, "acls": []}
    )
    generations: dict[str, Json] = field(default_factory=dict)
    epochs: dict[str, dict[str, int]] = field(default_factory=dict)
    decided: dict[int, str] = field(default_factory=dict)

    def log(self, event: Json) -> Json:
        """The partition that an event names."""
        return self.partitions[event["topic"], event["partition"]]

    def is_foreign(self, producer_id: int) -> bool:
        """Whether another chain coordinates the producer."""
        return self.chains > 1 and producer_id != -1 and producer_id >> 32 != self.chain


def new_partition(revision: int) -> Json:
    return {
        "log_start": 0,
        "high_watermark": 0,
        "producers": {},
        "open_txns": {},
        "aborted": [],
        "clean_until": 0,
        "revision": revision,
        "session_windows": {},
        "batches": {},
    }


def new_group() -> Json:
    return {"offsets": {}, "pending": {}, "generation": -1, "last_producer": None, "members": {}, "emptied_at": 0}


def batch_of(document: Json) -> Json:
    """A batch with all its members: those that may be missing have their defaults."""
    segment = {"explicit_offsets": False, "footer_size": None, "footer_sha256": None, "first_byte": None}
    return {"delete_horizon": None, **document, "segment": {**segment, **document["segment"]}}


# Section 3: events that readers need ----------------------------------------------------------------------------------

Fold = Callable[[State, Json], None]
READERS: dict[str, Fold] = {}
WRITERS: dict[str, Fold] = {}


def needed(by: dict[str, Fold], *types: str) -> Callable[[Fold], Fold]:
    """Registers a fold of events of these types."""

    def register(fold: Fold) -> Fold:
        by.update(dict.fromkeys(types, fold))
        return fold

    return register


@needed(READERS, "TopicCreated", "TopicAltered")
def _topic(state: State, event: Json) -> None:
    topic = event["topic"]
    name = topic["name"]
    first = 0 if event["type"] == "TopicCreated" else state.topics[name]["partitions"]
    for number in range(first, topic["partitions"]):
        if (chain_hash(name, state.chains) + number) % state.chains == state.chain:
            state.partitions[name, number] = new_partition(state.sequence)
    state.topics[name] = topic
    state.deleted.pop(name, None)


@needed(READERS, "TopicDeleted")
def _topic_deleted(state: State, event: Json) -> None:
    name = event["name"]
    deleted = [(name, number) for number in range(state.topics.pop(name)["partitions"])]
    led = [tp for tp in deleted if tp in state.partitions]
    for tp in led:
        remove(state, list(state.partitions.pop(tp)["batches"].values()))
    for txn in state.transactions.values():
        txn["partitions"] = [tp for tp in txn["partitions"] if tuple(tp) not in led]
    for group in state.groups.values():
        for offsets in (group["offsets"], *group["pending"].values()):
            for tp in deleted:
                if tp in offsets and offsets[tp]["topic_id"] in (None, event["topic_id"]):
                    del offsets[tp]
    if state.chain != 0:
        state.deleted[name] = event["revision"]


@needed(READERS, "Observed")
def _observed(state: State, event: Json) -> None:
    state.seen[event["chain"]] = max(event["sequence"], state.seen.get(event["chain"], 0))


@needed(READERS, "BatchesAppended")
def _batches_appended(state: State, event: Json) -> None:
    producer_id = event["producer_id"]
    if event["transactional"]:
        raise_fence(state, producer_id, event["epoch"])
    for rows in event["batches"]:
        log = state.partitions[event["topic"], rows["partition"]]
        batch = batch_of(
            {
                **{name: value for name, value in rows.items() if name != "partition"},
                "limit": rows["base_offset"] + rows["records"],
                "segment": event["segment"],
                "appended_at": state.timestamp,
                **{name: event[name] for name in ("producer_id", "epoch", "transactional", "timestamp_type")},
            }
        )
        log["batches"][batch["base_offset"]] = batch
        log["high_watermark"] = batch["limit"]
        if producer_id == -1:
            continue
        if event["transactional"]:
            log["open_txns"].setdefault(producer_id, batch["base_offset"])
        before = log["producers"].get(producer_id)
        window = before["batches"] if before is not None and before["epoch"] == event["epoch"] else []
        appended = {
            "first_sequence": batch["base_sequence"],
            "last_sequence": (batch["base_sequence"] + batch["records"] - 1) % 2**31,
            "base_offset": batch["base_offset"],
            "last_offset": batch["limit"] - 1,
            "timestamp": state.timestamp,
        }
        set_producer(state, log, producer_id, event["epoch"], [*window, appended][-5:])


@needed(READERS, "OffsetsCommitted")
def _offsets_committed(state: State, event: Json) -> None:
    group = state.groups.setdefault(event["group"], new_group())
    producer_id = event["producer_id"]
    offsets = group["offsets"]
    if producer_id != -1:
        offsets = group["pending"].setdefault(producer_id, {})
        raise_fence(state, producer_id, event["epoch"])
    for item in event["offsets"]:
        offsets[item["topic"], item["partition"]] = {
            "value": {name: item[name] for name in ("offset", "metadata", "leader_epoch")},
            "commit_position": state.next_commit_position,
            "committed_at": state.timestamp,
            "topic_id": item["topic_id"],
        }
        state.next_commit_position += 1
    if event["member_id"] in group["members"]:
        group["members"][event["member_id"]]["seen_at"] = state.timestamp


@needed(READERS, "TxnDecided")
def _txn_decided(state: State, event: Json) -> None:
    state.decided[event["producer_id"]] = event["outcome"]
    txn = state.transactions.get(event["transactional_id"])
    if txn is not None:  # A reader that folds only what readers need has no transactions.
        txn |= {"state": f"PREPARE_{event['outcome']}", "updated_at": state.timestamp}
        txn |= {name: event[name] for name in ("next_producer_id", "next_epoch")}
        txn["session_epoch"] = -1
        grant(state, event["next_producer_id"])


@needed(READERS, "TxnCompleted")
def _txn_completed(state: State, event: Json) -> None:
    state.decided.pop(event["producer_id"], None)
    txn = state.transactions.get(event["transactional_id"])
    if txn is not None:
        rotated = event["next_producer_id"] != txn["producer_id"]
        txn |= {
            "previous_producer_id": txn["producer_id"] if rotated else -1,
            "producer_id": event["next_producer_id"],
            "epoch": event["next_epoch"],
            "last_epoch": event["epoch"],
            "next_producer_id": -1,
            "next_epoch": -1,
            "prepared_epoch": -1,
            "state": f"COMPLETE_{event['outcome']}",
            "partitions": [],
            "groups": [],
            "topic_ids": {},
            "started_at": None,
            "first_entry": 0,
            "updated_at": state.timestamp,
        }
        grant(state, event["next_producer_id"])
        state.transactional_ids[event["next_producer_id"]] = event["transactional_id"]


@needed(READERS, "MarkerWritten")
def _marker_written(state: State, event: Json) -> None:
    producer_id = event["producer_id"]
    raise_fence(state, producer_id, event["epoch"])
    log = state.log(event)
    first = log["open_txns"].pop(producer_id, None)
    if event["outcome"] == "ABORT" and first is not None:
        stable = min(log["open_txns"].values(), default=event["offset"] + 1)
        aborted = {"producer_id": producer_id, "first_offset": first, "last_offset": event["offset"]}
        log["aborted"].append(aborted | {"last_stable_offset": stable})
    log["high_watermark"] = event["offset"] + 1
    set_producer(state, log, producer_id, event["epoch"], [])


@needed(READERS, "GroupMarkerWritten")
def _group_marker_written(state: State, event: Json) -> None:
    raise_fence(state, event["producer_id"], event["epoch"])
    group = state.groups.get(event["group"])
    if group is not None:
        end_pending(group, event["producer_id"], event["epoch"], event["outcome"])


@needed(READERS, "SegmentsReplaced")
def _segments_replaced(state: State, event: Json) -> None:
    log = state.log(event)
    removed = [log["batches"].pop(base) for base in event["removed"]]
    added = [batch_of(batch) for batch in event["added"]]
    log["batches"].update((batch["base_offset"], batch) for batch in added)
    if removed:
        start, limit = removed[0]["base_offset"], removed[-1]["limit"]
        log["aborted"] = [
            entry
            for entry in log["aborted"]
            if entry["last_offset"] < start or entry["first_offset"] >= limit or _has_batches(log, entry)
        ]
    if event.get("clean_until") is not None:
        log["clean_until"] = event["clean_until"]
    log["revision"] = state.sequence
    remove(state, removed, added)


def _has_batches(log: Json, entry: Json) -> bool:
    return any(
        batch["transactional"]
        and batch["producer_id"] == entry["producer_id"]
        and batch["base_offset"] < entry["last_offset"]
        and batch["limit"] > entry["first_offset"]
        for batch in log["batches"].values()
    )


@needed(READERS, "LogStartMoved")
def _log_start_moved(state: State, event: Json) -> None:
    log, offset = state.log(event), event["offset"]
    removed = [batch for _, batch in sorted(log["batches"].items()) if batch["limit"] <= offset]
    for batch in removed:
        del log["batches"][batch["base_offset"]]
    log["log_start"] = offset
    log["aborted"] = [entry for entry in log["aborted"] if entry["last_offset"] >= offset]
    log["revision"] = state.sequence
    remove(state, removed)


@needed(READERS, "GroupDeleted")
def _group_deleted(state: State, event: Json) -> None:
    for by_group in (state.groups, state.generations, state.epochs):
        by_group.pop(event["group"], None)


@needed(READERS, "OffsetsDeleted")
def _offsets_deleted(state: State, event: Json) -> None:
    group = state.groups[event["group"]]
    for offsets in (group["offsets"], *group["pending"].values()):
        for tp in event["partitions"]:
            offsets.pop(tuple(tp), None)


@needed(READERS, "OffsetsExpired")
def _offsets_expired(state: State, event: Json) -> None:
    for tp in event["partitions"]:
        del state.groups[event["group"]]["offsets"][tuple(tp)]


# Section 3: events that only writers need -----------------------------------------------------------------------------


@needed(WRITERS, "TopicClosed")
def _topic_closed(state: State, event: Json) -> None:
    state.deleted[event["name"]] = event["revision"]


@needed(WRITERS, "ProducerInitialized")
def _producer_initialized(state: State, event: Json) -> None:
    grant(state, event["producer_id"])
    name = event["transactional_id"]
    if name is None:
        return
    before = state.transactions.get(name)
    if event["keeps"] and before is not None:
        before |= {"epoch": event["epoch"], "timeout_ms": event["timeout_ms"], "updated_at": state.timestamp}
        before |= {"last_epoch": -1, "previous_producer_id": -1}
        return
    state.transactions[name] = {
        "transactional_id": name,
        **{name: event[name] for name in ("producer_id", "epoch", "timeout_ms", "last_epoch", "previous_producer_id")},
        "state": "EMPTY",
        "next_producer_id": -1,
        "next_epoch": -1,
        "prepared_epoch": -1,
        "partitions": [],
        "groups": [],
        "topic_ids": {},
        "started_at": None,
        "first_entry": 0,
        "updated_at": state.timestamp,
        "versions": before["versions"] if before is not None else {},
        "session_epoch": -1,
    }
    state.transactional_ids[event["producer_id"]] = name


@needed(WRITERS, "PartitionsAdded", "OffsetsAdded")
def _joined(state: State, event: Json) -> None:
    txn = state.transactions[event["transactional_id"]]
    if txn["state"] != "ONGOING":
        txn |= {"started_at": state.timestamp, "first_entry": state.sequence}
    txn |= {"state": "ONGOING", "updated_at": state.timestamp}
    if event["type"] == "OffsetsAdded":
        txn["groups"] = sorted({*txn["groups"], event["group"]})
        return
    txn["partitions"] = [list(tp) for tp in sorted({*map(tuple, txn["partitions"]), *map(tuple, event["partitions"])})]
    for name, topic_id in event["topic_ids"].items():
        txn["topic_ids"][name] = sorted({*txn["topic_ids"].get(name, []), topic_id})


@needed(WRITERS, "TxnPrepared")
def _txn_prepared(state: State, event: Json) -> None:
    if state.is_foreign(event["producer_id"]):
        raise_fence(state, event["producer_id"], event["epoch"], prepared=True)
    else:
        state.transactions[event["transactional_id"]] |= {
            "prepared_epoch": event["epoch"],
            "updated_at": state.timestamp,
        }


@needed(WRITERS, "SessionContinued")
def _session_continued(state: State, event: Json) -> None:
    producer_id, session_epoch = event["producer_id"], event["session_epoch"]
    for tp in event["partitions"]:
        log = state.partitions[tuple(tp)]
        kept, current = log["session_windows"].get(producer_id), log["producers"].get(producer_id)
        window = kept["batches"] if kept is not None and kept["session_epoch"] == session_epoch else []
        if current is not None and current["epoch"] == event["epoch"]:
            nowhere = {"base_offset": -1, "last_offset": -1} if event["outcome"] == "ABORT" else {}
            window = [*window, *({**batch, **nowhere} for batch in current["batches"])]
        log["session_windows"][producer_id] = {"session_epoch": session_epoch, "batches": window[-5:]}
    if not state.is_foreign(producer_id):
        state.transactions[event["transactional_id"]]["session_epoch"] = session_epoch


@needed(WRITERS, "ProducerFenced")
def _producer_fenced(state: State, event: Json) -> None:
    for tp in event["partitions"]:
        set_producer(state, state.partitions[tuple(tp)], event["producer_id"], event["epoch"], [])
    raise_fence(state, event["producer_id"], event["epoch"])


@needed(WRITERS, "VersionRecorded")
def _version_recorded(state: State, event: Json) -> None:
    state.transactions[event["transactional_id"]]["versions"][event["scope"]] = event["version"]


@needed(WRITERS, "ObjectsDropped")
def _objects_dropped(state: State, event: Json) -> None:
    for key in event["keys"]:
        state.dropped[key] = state.timestamp
        state.released.pop(key, None)


@needed(WRITERS, "AuthorizationChanged")
def _authorization_changed(state: State, event: Json) -> None:
    for name in ("mode", "super_users", "allow_if_no_acl"):
        state.authorization[name] = event[name]


@needed(WRITERS, "AclCreated")
def _acl_created(state: State, event: Json) -> None:
    acls = state.authorization["acls"]
    if event["acl"] not in acls:
        acls.append(event["acl"])
        acls.sort(key=lambda acl: list(acl.values()))


@needed(WRITERS, "AclDeleted")
def _acl_deleted(state: State, event: Json) -> None:
    state.authorization["acls"].remove(event["acl"])


@needed(WRITERS, "ObjectsForgotten")
def _objects_forgotten(state: State, event: Json) -> None:
    for key in event["keys"]:
        state.dropped.pop(key, None)
        state.released.pop(key, None)
    state.released_entries = [span for span in state.released_entries if span not in event.get("entries", [])]


@needed(WRITERS, "MemberJoined")
def _member_joined(state: State, event: Json) -> None:
    members = state.groups.setdefault(event["group"], new_group())["members"]
    before = members.get(event["replaces"] or event["member_id"], {"target": [], "held": []})
    if not members:
        state.epochs.pop(event["group"], None)
    members.pop(event["replaces"], None)
    state.epochs.get(event["group"], {}).pop(event["replaces"], None)
    state.generations.pop(event["group"], None)
    names = ("member_id", "topics", "assignor", "session_timeout_ms", "instance_id")
    members[event["member_id"]] = {
        **{name: event[name] for name in names},
        "seen_at": state.timestamp,
        "target": before["target"],
        "held": before["held"],
    }


@needed(WRITERS, "MemberSeen")
def _member_seen(state: State, event: Json) -> None:
    member = state.groups[event["group"]]["members"][event["member_id"]]
    member["seen_at"] = state.timestamp
    if event["topics"] is not None:
        member["topics"] = event["topics"]


@needed(WRITERS, "MemberLeft")
def _member_left(state: State, event: Json) -> None:
    group = state.groups[event["group"]]
    del group["members"][event["member_id"]]
    state.epochs.get(event["group"], {}).pop(event["member_id"], None)
    if not group["members"]:
        group["emptied_at"] = state.timestamp


@needed(WRITERS, "MemberReconciled")
def _member_reconciled(state: State, event: Json) -> None:
    state.epochs.setdefault(event["group"], {})[event["member_id"]] = event["epoch"]


@needed(WRITERS, "GroupRebalanced")
def _group_rebalanced(state: State, event: Json) -> None:
    group = state.groups[event["group"]]
    group["generation"] = event["generation"]
    for item in event["members"]:
        group["members"][item["member_id"]] |= {"target": item["target"], "held": item["held"]}


@needed(WRITERS, "GenerationStored")
def _generation_stored(state: State, event: Json) -> None:
    group = state.groups.setdefault(event["group"], new_group())
    group["generation"] = event["generation"]
    before = state.generations.get(event["group"])
    if before is not None and before["members"] and not event["members"]:
        group["emptied_at"] = state.timestamp
    state.epochs.pop(event["group"], None)
    names = ("protocol_type", "protocol", "leader", "members")
    state.generations[event["group"]] = {**{name: event[name] for name in names}, "stored_at": state.timestamp}


@needed(WRITERS, "ProducersExpired")
def _producers_expired(state: State, event: Json) -> None:
    for producer_id in event["producer_ids"]:
        del state.log(event)["producers"][producer_id]
        state.log(event)["session_windows"].pop(producer_id, None)


@needed(WRITERS, "FencesExpired")
def _fences_expired(state: State, event: Json) -> None:
    for producer_id in event["producer_ids"]:
        del state.fences[producer_id]


@needed(WRITERS, "TransactionalIdExpired")
def _transactional_id_expired(state: State, event: Json) -> None:
    del state.transactions[event["transactional_id"]]
    for producer_id in event["producer_ids"]:
        del state.transactional_ids[producer_id]


# Assignments that several events make ---------------------------------------------------------------------------------


def set_producer(state: State, log: Json, producer_id: int, epoch: int, window: list[Json]) -> None:
    log["producers"][producer_id] = {
        "epoch": epoch,
        "batches": window,
        "last_timestamp": state.timestamp,
        "current_txn_first_offset": log["open_txns"].get(producer_id),
    }


def grant(state: State, producer_id: int) -> None:
    state.next_producer_id = max(state.next_producer_id, producer_id + 1)


def raise_fence(state: State, producer_id: int, epoch: int, *, prepared: bool = False) -> None:
    """7.7."""
    if not state.is_foreign(producer_id):
        return
    before = state.fences.get(producer_id)
    if before is not None and epoch < before[0]:
        before[1] = state.timestamp
    else:
        state.fences[producer_id] = [epoch, state.timestamp, prepared]


def end_pending(group: Json, producer_id: int, marker_epoch: int, outcome: str) -> None:
    if producer_id not in group["pending"]:
        return
    pending = group["pending"].pop(producer_id)
    if outcome == "COMMIT":
        for tp, offset in pending.items():
            if tp not in group["offsets"] or group["offsets"][tp]["commit_position"] < offset["commit_position"]:
                group["offsets"][tp] = offset
        group["last_producer"] = [producer_id, marker_epoch - 1]


def remove(state: State, removed: Sequence[Json], added: Sequence[Json] = ()) -> None:
    """Section 6: what happens to the objects of removed batches."""
    named, entries = {batch["segment"]["object"] for batch in added}, []
    for batch in removed:
        segment = batch["segment"]
        key = segment["object"]
        if segment["first_byte"] is not None and key.startswith("chains/"):
            entries.append(int(key.rpartition("/")[2].removesuffix(".json")))
        elif segment["first_byte"] is not None or batch["first_row"] or batch["records"] != segment["rows"]:
            state.released[key] = state.timestamp
        elif key not in named:
            state.dropped[key] = state.timestamp
    if entries:
        span, spans = [min(entries), max(entries), state.timestamp], state.released_entries
        if spans and spans[-1][2] // HOUR_MS == span[2] // HOUR_MS:
            spans[-1] = [min(spans[-1][0], span[0]), max(spans[-1][1], span[1]), span[2]]
        else:
            spans.append(span)


# Checkpoints and index files ------------------------------------------------------------------------------------------


def head_of(state: State) -> Json:
    """The members of ``state.json``, but for ``version``, ``index`` and ``checksum``."""
    named = {"topics", "partitions", "transactions", "groups", "decided"}
    same = {name: value for name, value in vars(state).items() if name not in named}
    return {
        **{name: _texts(value) if isinstance(value, dict) else value for name, value in same.items()},
        "topics": [topic for _, topic in sorted(state.topics.items())],
        "partitions": [_partition_head(tp, log) for tp, log in sorted(state.partitions.items())],
        "transactions": [txn for _, txn in sorted(state.transactions.items())],
        "groups": [_group_head(name, group) for name, group in sorted(state.groups.items())],
        "authorization": state.authorization if state.authorization != State(0, 1).authorization else None,
    }


def _texts(values: Json) -> Json:
    """JSON has texts in the place of numbers as names."""
    return {str(name): value for name, value in values.items()}


def _partition_head(tp: Tp, log: Json) -> Json:
    same = {name: value for name, value in log.items() if name != "batches"}
    texts = {name: _texts(log[name]) for name in ("producers", "open_txns", "session_windows")}
    return {**same, "tp": list(tp), **texts}


def _group_head(name: str, group: Json) -> Json:
    return {
        **group,
        "name": name,
        "offsets": _offset_list(group["offsets"]),
        "pending": {str(producer_id): _offset_list(offsets) for producer_id, offsets in group["pending"].items()},
        "members": [member for _, member in sorted(group["members"].items())],
    }


def _offset_list(offsets: dict[Tp, Json]) -> list[Json]:
    return [{"tp": list(tp), "committed": offset} for tp, offset in sorted(offsets.items())]


def state_of(head: Json, batches: dict[Tp, dict[int, Json]]) -> State:
    """The inverse of :func:`head_of`."""
    state = State(**{name: head[name] for name in vars(State(0, 1)) if head.get(name) is not None})
    state.topics = {topic["name"]: topic for topic in head["topics"]}
    state.partitions = {
        tuple(log["tp"]): {
            **{name: value for name, value in log.items() if name != "tp"},
            "producers": _numbers(log["producers"]),
            "open_txns": _numbers(log["open_txns"]),
            "session_windows": _numbers(log["session_windows"]),
            "batches": batches.get(tuple(log["tp"]), {}),
        }
        for log in head["partitions"]
    }
    state.transactions = {txn["transactional_id"]: txn for txn in head["transactions"]}
    state.decided = decided_in(state.transactions)
    state.groups = {
        group["name"]: {
            **{name: value for name, value in group.items() if name != "name"},
            "offsets": _offset_map(group["offsets"]),
            "pending": {int(producer_id): _offset_map(offsets) for producer_id, offsets in group["pending"].items()},
            "members": {member["member_id"]: member for member in group["members"]},
        }
        for group in head["groups"]
    }
    for name in ("transactional_ids", "seen", "fences"):
        setattr(state, name, _numbers(head[name]))
    return state


def _numbers(values: Json) -> dict[int, Any]:
    return {int(name): value for name, value in values.items()}


def _offset_map(offsets: list[Json]) -> dict[Tp, Json]:
    return {tuple(item["tp"]): item["committed"] for item in offsets}


def decided_in(transactions: dict[str, Json]) -> dict[int, str]:
    """7.5: the outcomes of decided transactions, by producer id."""
    named = [(txn["producer_id"], txn["state"].split("_")) for txn in transactions.values()]
    return {producer_id: outcome[0] for producer_id, (step, *outcome) in named if step == "PREPARE"}


SEGMENT = (
    "object",
    "format",
    "size",
    "sha256",
    "rows",
    "explicit_offsets",
    "footer_size",
    "footer_sha256",
    "first_byte",
)


def indexed(objects: Objects, folder: str, head: Json) -> dict[Tp, dict[int, Json]]:
    """The batches of a checkpoint, by partition and base offset."""
    logs: dict[Tp, dict[int, Json]] = {}
    last, previous = 0, ""
    for until in head["index"]:
        rows, line = split(_get(objects, f"{folder}checkpoints/{until:020d}-{last:020d}.index"))
        file = checked(line)
        if (file["after"], file["until"], file["previous"]) != (last, until, previous) or file["sha256"] != digest(
            rows
        ):
            raise RefusedError(f"the index file of {last} to {until} is damaged")
        last, previous = until, file["entry_hash"]
        listed = iter(pq.read_table(pa.BufferReader(rows)).to_pylist() if rows else [])
        for item in file["partitions"]:
            log = logs.setdefault(tuple(item["tp"]), {})
            for start, limit in item["removed"]:
                for base in [base for base in log if start <= base < limit]:
                    del log[base]
            for _ in range(item["rows"]):
                row = next(listed)
                segment = {name: row.pop(name) for name in SEGMENT}
                log[row["base_offset"]] = {**row, "segment": segment}
        if next(listed, None) is not None:
            raise RefusedError(f"the index file of {last} to {until} has too many rows")
    if (last, previous) != (head["sequence"], head["entry_hash"]):
        raise RefusedError("the index files end at another entry than the head")
    return {tp: log for tp, log in logs.items() if log}


def _get(objects: Objects, key: str) -> bytes:
    data = objects.get(key)
    if data is None:
        raise RefusedError(f"{key} is missing")
    return data


# Chains ---------------------------------------------------------------------------------------------------------------


class Chain:
    """A chain: where it begins, and the state after each of its entries."""

    def __init__(self, objects: Objects, store_id: str, number: int, chains: int, *, complete: bool) -> None:
        self.objects, self.store_id, self.number, self.chains = objects, store_id, number, chains
        self.complete = complete
        self.folder = f"chains/{store_id}/{number:04d}/"
        #: How many checkpoints were compared with the fold of the entries.
        self.compared = 0

    def states(self, *, hints: bool = False) -> Iterator[State]:
        """The state at the beginning, and after each further entry. ``hints``: from a late checkpoint on."""
        hint = self._hint() if hints else None
        state = self._newest(hint) if hints else self._oldest()
        known = (
            {hint[key]: hint[name] for key, name in (("sequence", "entry_hash"), ("head", "head_hash"))} if hint else {}
        )
        while True:
            if known.pop(state.sequence, state.entry_hash) != state.entry_hash:
                raise RefusedError(f"the hint names another entry {state.sequence} of chain {self.number}")
            yield deepcopy(state)
            data = self.objects.get(self._entry_key(state.sequence + 1))
            if data is None:
                later = [self._entry_key(state.sequence + 1 + ahead) in self.objects for ahead in range(1, ABSENT)]
                if any(later) or any(number > state.sequence for number in known):
                    raise RefusedError(f"entry {state.sequence + 1} of chain {self.number} is missing")
                return
            self._fold(state, data)
            self._compare(state)

    def _entry_key(self, sequence: int) -> str:
        return f"{self.folder}entries/{sequence:020d}.json"

    def _listed(self, kind: str, ending: str) -> list[int]:
        """The numbers of the objects of a kind."""
        prefix = f"{self.folder}{kind}/"
        names = (key.removeprefix(prefix) for key in self.objects if key.startswith(prefix) and key.endswith(ending))
        return sorted(int(name.removesuffix(ending)) for name in names)

    def boundary(self) -> int:
        """The last entry that may be deleted; 0: none."""
        numbers = self._listed("boundaries", ".json")
        if numbers != [*range(1, len(numbers) + 1)]:
            raise RefusedError(f"a boundary of chain {self.number} is missing")
        return (
            int(checked(self.objects[f"{self.folder}boundaries/{numbers[-1]:020d}.json"])["sequence"]) if numbers else 0
        )

    def _oldest(self) -> State:
        """The state with which the history begins."""
        first = self.boundary()
        if not first:
            return State(self.number, self.chains, next_producer_id=self.number << 32)
        state = self._first_sound(number for number in self._listed("checkpoints", "/state.json") if number >= first)
        if state is None:
            raise RefusedError(f"chain {self.number} has no sound checkpoint")
        return state

    def _hint(self) -> Json | None:
        data = self.objects.get(f"chains/latest/{self.number:04d}.json")
        if data is None:
            return None
        try:
            document = checked(data)
        except RefusedError:
            return None
        return document if document["store_id"] == self.store_id else None

    def _newest(self, hint: Json | None) -> State:
        """The newest sound checkpoint at or after the one of the hint, found by listing; else the beginning."""
        first = max(self.boundary(), hint["sequence"] if hint else 0)
        numbers = [number for number in self._listed("checkpoints", "/state.json") if number >= first]
        return self._first_sound(reversed(numbers)) or self._oldest()

    def _first_sound(self, numbers: Iterable[int]) -> State | None:
        for number in numbers:
            try:
                head = checked(self.objects[f"{self.folder}checkpoints/{number:020d}/state.json"])
                if head["sequence"] != number:
                    raise RefusedError(f"checkpoint {number} is that of entry {head['sequence']}")
                state = state_of(head, indexed(self.objects, self.folder, head))
            except RefusedError as error:
                if "feature" in str(error):
                    raise
                continue
            if (state.chain, state.chains) != (self.number, self.chains):
                raise RefusedError(f"checkpoint {number} of chain {self.number} is that of another chain or store")
            return state
        return None

    def _fold(self, state: State, data: bytes) -> None:
        _, line = split(data)  # A segment is compared with its hash where it is read.
        entry = checked(line)
        if entry["sequence"] != state.sequence + 1 or entry["previous"] != state.entry_hash:
            raise RefusedError(f"entry {state.sequence + 1} of chain {self.number} does not follow the one before it")
        state.sequence, state.timestamp = entry["sequence"], max(entry["timestamp"], state.timestamp)
        for kind, names in (entry["requires"] or {}).items():
            state.requires[kind] = sorted({*state.requires[kind], *names})
        for event in entry["events"]:
            fold = READERS.get(event["type"]) or (WRITERS.get(event["type"]) if self.complete else None)
            if fold is not None:
                fold(state, event)
        state.entry_hash = digest(line)

    def _compare(self, state: State) -> None:
        """Compare the state with its checkpoint, if there is one: all members, and all batches."""
        key = f"{self.folder}checkpoints/{state.sequence:020d}/state.json"
        if not self.complete or key not in self.objects:
            return
        head = checked(self.objects[key])
        folded = head_of(state)
        for name in ("version", "checksum", "index"):
            folded[name] = head[name]
        # As JSON: a list and a tuple, a text and a number as a name are the same there.
        for name in {*folded, *head}:
            assert _same(folded.get(name)) == _same(head.get(name)), f"{key}: {name}"
        batches = {tp: log["batches"] for tp, log in state.partitions.items() if log["batches"]}
        assert batches == indexed(self.objects, self.folder, head), key
        assert state.decided == decided_in(state.transactions), key
        self.compared += 1


def _same(value: Any) -> Any:
    return json.loads(json.dumps(value, sort_keys=True))


# Section 7 ------------------------------------------------------------------------------------------------------------


def chain_hash(name: str, chains: int) -> int:
    return (_murmur2(name.encode()) & 0x7FFFFFFF) % chains


def _murmur2(data: bytes) -> int:
    """Kafka's ``Utils.murmur2``."""
    mask, factor = 0xFFFFFFFF, 0x5BD1E995
    value = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * factor & mask
        value = value * factor & mask ^ (word ^ word >> 24) * factor & mask
    if data[whole:]:
        value = (value ^ int.from_bytes(data[whole:], "little")) * factor & mask
    value = (value ^ value >> 13) * factor & mask
    return value ^ value >> 15


class Reader:
    """A store at each of its entries.

    Args:
        objects: All objects of the store.
        complete: Fold also what only writers need, and compare all checkpoints.
        hints: Begin with the checkpoints that the hints name, or newer ones, and not with the first entries.
    """

    def __init__(self, objects: Objects, *, complete: bool = False, hints: bool = False) -> None:
        identity = checked(_get(objects, "store.json"))
        self.objects = objects
        count = identity["chains"]
        self.chains = [
            Chain(objects, identity["store_id"], number, count, complete=complete) for number in range(count)
        ]
        #: For each chain its states, by entry.
        self.states = [{state.sequence: state for state in chain.states(hints=hints)} for chain in self.chains]

    @property
    def compared(self) -> int:
        """How many checkpoints were compared with the fold of the entries."""
        return sum(chain.compared for chain in self.chains)

    @property
    def heads(self) -> list[int]:
        """The last entry of each chain."""
        return [max(states) for states in self.states]

    @property
    def firsts(self) -> list[int]:
        """The entry with which the history of each chain begins."""
        return [min(states) for states in self.states]

    def closed(self, entries: Sequence[int]) -> list[int]:
        """7.4: the smallest closed cut that contains these entries."""
        cut = list(entries)
        while True:
            behind = {
                other: sequence
                for number, entry in enumerate(cut)
                for other, sequence in self._state(number, entry).seen.items()
                if sequence > cut[other]
            }
            if not behind:
                return cut
            for other, sequence in behind.items():
                cut[other] = max(cut[other], sequence)

    def _state(self, number: int, entry: int) -> State:
        if entry not in self.states[number]:
            raise RefusedError(f"entry {entry} of chain {number} is named and missing")
        return self.states[number][entry]

    def view(self, entries: Sequence[int] | None = None) -> View:
        """What readers see at a closed cut; by default at the heads."""
        cut = self.closed(self.heads if entries is None else entries)
        return View(self.objects, [self._state(number, entry) for number, entry in enumerate(cut)], cut)


class View:
    """What readers see at a closed cut."""

    def __init__(self, objects: Objects, states: list[State], cut: list[int]) -> None:
        self.objects, self.states, self.cut = objects, states, cut
        #: The topics of the catalog.
        self.topics = states[0].topics
        self._decided = {producer: outcome for state in states for producer, outcome in state.decided.items()}
        self._tables: dict[str, pa.Table] = {}

    def log(self, topic: str, partition: int) -> Json:
        """A partition in which decided transactions have ended (7.3, 7.5)."""
        number = (chain_hash(topic, len(self.states)) + partition) % len(self.states)
        copy = self.states[number].topics.get(topic)
        if copy is None or copy["topic_id"] != self.topics[topic]["topic_id"]:
            return new_partition(0)
        log = self.states[number].partitions.get((topic, partition))
        if log is None:
            return new_partition(0)
        open_txns, aborted = dict(log["open_txns"]), list(log["aborted"])
        for producer_id, first in log["open_txns"].items():
            outcome = self._decided.get(producer_id)
            if outcome is not None:
                del open_txns[producer_id]
            if outcome == "ABORT":
                aborted.append(
                    {"producer_id": producer_id, "first_offset": first, "last_offset": log["high_watermark"] - 1}
                )
        return {**log, "open_txns": open_txns, "aborted": aborted}

    def offsets(self, topic: str, partition: int) -> list[int]:
        """The log start, the last stable offset and the high watermark."""
        log = self.log(topic, partition)
        stable = max(log["log_start"], min(log["open_txns"].values(), default=log["high_watermark"]))
        return [log["log_start"], stable, log["high_watermark"]]

    def groups(self) -> dict[str, Json]:
        """For each group the committed and the pending offsets, without those of topics that do not exist."""
        shown = {}
        for state in self.states:
            for name, group in state.groups.items():
                ended = deepcopy(group)
                for producer_id in sorted(group["pending"]):
                    if producer_id in self._decided:
                        end_pending(ended, producer_id, 0, self._decided[producer_id])
                pending = {str(producer): self._existing(offsets) for producer, offsets in ended["pending"].items()}
                shown[name] = {"committed": self._existing(ended["offsets"]), "pending": pending}
        return shown

    def _existing(self, offsets: dict[Tp, Json]) -> list[list[Any]]:
        return [
            [*tp, *(offset["value"][name] for name in ("offset", "metadata", "leader_epoch"))]
            for tp, offset in sorted(offsets.items())
            if tp[0] in self.topics and offset["topic_id"] in (None, self.topics[tp[0]]["topic_id"])
        ]

    def schema(self, topic: str) -> pa.Schema:
        """The columns of a topic."""
        return schema_of(self.topics[topic])

    # Sections 3.2 and 5 -----------------------------------------------------------------------------------------------

    def places(self, topic: str, partition: int, isolation: str) -> list[tuple[Json, int, int]]:
        """The batches that a reader reads, each with the range of its offsets that are shown."""
        log = self.log(topic, partition)
        start, stable, end = self.offsets(topic, partition)
        committed = isolation == "read_committed"
        limit = stable if committed else end
        return [
            (batch, max(start, base), min(limit, batch["limit"]))
            for base, batch in sorted(log["batches"].items())
            if base < limit and batch["limit"] > start and not (committed and _is_aborted(log, batch))
        ]

    def records(self, topic: str, isolation: str) -> list[list[Any]]:
        """The records of a topic: partition, offset, event time in ms, and the values of the columns of the topic."""
        rows: list[list[Any]] = []
        for partition in range(self.topics[topic]["partitions"]):
            for batch, start, limit in self.places(topic, partition, isolation):
                rows += [[partition, *row] for row in self._rows(topic, batch) if start <= row[0] < limit]
        return rows

    def _rows(self, topic: str, batch: Json) -> Iterator[list[Any]]:
        document, segment = self.topics[topic], batch["segment"]
        schema, time_column = schema_of(document), document["timestamp"] if document["schema"] else "timestamp"
        table = self._table(segment).slice(batch["first_row"], batch["records"])
        if table.num_rows != batch["records"]:
            raise RefusedError("a batch has more rows than its segment")
        if "_timestamp" in table.column_names:
            times: list[int | None] = _milliseconds(table["_timestamp"])
            if None in times:
                raise RefusedError("a compacted segment has a row without its event time")
        elif batch["timestamp_type"] == "CreateTime" and time_column in table.column_names:
            times = _milliseconds(table[time_column])
        else:
            times = [None] * table.num_rows
        default = batch["max_timestamp"]
        if segment["explicit_offsets"]:
            offsets = table["_offset"].to_pylist()
        else:
            offsets = [*range(batch["base_offset"], batch["base_offset"] + table.num_rows)]
        columns = [
            [plain(value) for value in table[column.name].cast(column.type)]
            if column.name in table.column_names
            else [None] * table.num_rows
            for column in schema
        ]
        for number, (offset, time) in enumerate(zip(offsets, times, strict=True)):
            yield [offset, default if time is None else time, *(column[number] for column in columns)]

    def _table(self, segment: Json) -> pa.Table:
        """The rows of a segment, which is fetched and checked once."""
        name = json.dumps(segment, sort_keys=True)
        if name not in self._tables:
            self._tables[name] = _decoded(self.objects, segment)
        return self._tables[name]


def _is_aborted(log: Json, batch: Json) -> bool:
    return batch["transactional"] and any(
        entry["producer_id"] == batch["producer_id"]
        and entry["first_offset"] <= batch["base_offset"] <= entry["last_offset"]
        for entry in log["aborted"]
    )


def _decoded(objects: Objects, segment: Json) -> pa.Table:
    first = segment["first_byte"]
    data = _get(objects, segment["object"])
    data = data if first is None else data[first : first + segment["size"]]
    if len(data) != segment["size"] or digest(data) != segment["sha256"]:
        raise RefusedError(f"a segment in {segment['object']} is damaged")
    if segment["footer_size"] is not None:
        check_blocks(data, segment)
    source = pa.BufferReader(data)
    if segment["format"] == "parquet":
        table = pq.read_table(source)
    elif segment["format"] == "arrow":
        table = pa.ipc.open_file(source).read_all()
    else:
        table = pa.ipc.open_stream(source).read_all()
    if table.num_rows != segment["rows"]:
        raise RefusedError(f"a segment in {segment['object']} has {table.num_rows} rows")
    return table


def check_blocks(data: bytes, segment: Json) -> None:
    """Section 5: what a reader compares that does not read the whole file."""
    footer = len(data) - segment["footer_size"]
    assert digest(data[footer:]) == segment["footer_sha256"]
    blocks = json.loads(pq.read_metadata(pa.BufferReader(data)).metadata[b"txnstore.blocks"])
    sums = base64.b64decode(blocks["crc32"])
    starts = range(0, footer, blocks["size"])
    assert len(sums) == 4 * len(starts)
    for number, start in enumerate(starts):
        crc = int.from_bytes(sums[4 * number : 4 * number + 4], "little")
        assert zlib.crc32(data[start : min(start + blocks["size"], footer)]) == crc


def schema_of(topic: Json) -> pa.Schema:
    """The columns of a topic."""
    if topic["schema"] is None:
        return RECORD
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(topic["schema"])))


def _milliseconds(column: pa.ChunkedArray) -> list[int | None]:
    """Event times: an integer counts milliseconds, finer units are rounded down, a missing zone is UTC."""
    finer = pa.types.is_timestamp(column.type) and column.type.unit == "us"
    return [None if each is None else each // 1000 if finer else each for each in column.cast(pa.int64()).to_pylist()]


def plain(value: pa.Scalar) -> Any:
    """A value as ``expected.json`` has it; docs/format/vectors/README.md."""
    kind = value.type
    if not value.is_valid:
        return None
    if pa.types.is_map(kind):
        return [[plain(entry[0]), plain(entry[1])] for entry in _entries(value)]
    if pa.types.is_list(kind):
        return [plain(each) for each in value.values]
    if pa.types.is_struct(kind):
        return {name: plain(each) for name, each in value.items()}
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return value.value
    if pa.types.is_decimal(kind):
        return str(value.as_py())
    content = value.as_py()
    if isinstance(content, str | bytes) and len(content) > LONG:
        return f"sha256:{digest(content.encode() if isinstance(content, str) else content)}"
    if isinstance(content, bytes):
        return base64.b64encode(content).decode()
    if isinstance(content, float) and not math.isfinite(content):
        return str(content)
    return content


def _entries(value: pa.Scalar) -> Iterator[tuple[pa.Scalar, pa.Scalar]]:
    for entry in value.values:
        yield entry[0], entry[1]


def ranges(offsets: Iterable[int]) -> list[list[int]]:
    """Ascending offsets as half-open ranges."""
    result: list[list[int]] = []
    for offset in offsets:
        if result and result[-1][1] == offset:
            result[-1][1] = offset + 1
        else:
            result.append([offset, offset + 1])
    return result
