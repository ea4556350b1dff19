"""Compares expected with actual observations (DIF-07), and lists the differences that are allowed (DIF-09).

Offsets, records, ends, groups and error classes must be equal; the texts of messages may differ. A key that is not
expected is a difference at every depth, except the fields that a broker does not show. Each allowed difference names
its item; any other fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.harness.differential.difference import Difference, Path
from tests.harness.differential.upkeep import Upkeep
from tests.harness.traces import MODEL, Op

#: How the source of a trace ends whose broker has transactions of version 1: one epoch for a session of many.
SESSIONS = ", transactions 1"


@dataclass(frozen=True)
class Allowed:
    """An allowed difference. ``applies`` gets the comparison so far, the operation and the difference."""

    item: str
    why: str
    applies: Callable[[Comparison, Op, Difference], bool]


class Comparison:
    """Compares step by step; ``used`` counts the entries of the whitelist that were needed.

    ``source``: the origin of the expectations. Most entries of the whitelist are only for a broker. ``of_model``: the
    model is compared; it has one class of errors for stale epochs. ``merges``: small commits are merged at any time.
    """

    def __init__(
        self,
        source: str = MODEL,
        whitelist: Sequence[Allowed] | None = None,
        *,
        of_model: bool = False,
        merges: bool = False,
    ) -> None:
        self.of_model = of_model
        self.from_broker = source != MODEL
        self.of_sessions = source.endswith(SESSIONS)
        self.upkeep = Upkeep(from_broker=self.from_broker, merges=merges)
        self.restarted = False
        self.awaits_a_topic = False
        self.newer_groups: set[str] = set()
        self.deleted: set[str] = set()
        self._ids: dict[str, str] = {}
        self._owners: dict[str, str] = {}
        #: By transactional id: the identity that its last init granted, and the producer ids that it has had.
        self._granted: dict[str, tuple[int, int]] = {}
        self._producer_ids: dict[str, list[int]] = {}
        self.used: dict[str, int] = {}
        self._whitelist = WHITELIST if whitelist is None else whitelist

    def step(self, op: Op, expected: Mapping[str, Any], actual: Mapping[str, Any]) -> list[Difference]:
        """The differences after an operation that no item allows."""
        self.upkeep.step(op, expected, actual)
        self.restarted = self.restarted or op["op"] == "restart"
        if op["op"] in {"init", "raw_init", "fence"} and "id" in op:
            producer = op.get("producer", "")
            self._ids[producer], self._owners[op["id"]] = op["id"], producer
        if op["op"] in {"init", "flush"}:
            self.awaits_a_topic = self.from_broker and op.get("recreated", False)
        if op["op"] == "delete_topic":
            self.deleted.add(op["topic"])
        if op.get("protocol") == "consumer":
            self.newer_groups.add(op["group"])
        self._follow(op, actual)
        differences = []
        if op["op"] == "at_once":
            answers = zip(op["ops"], expected.get("answer", []), actual.get("answer", []), strict=True)
            for one, observed, answer in answers:
                differences += self.step(one, _without_nothing(observed), answer)
            expected = {key: value for key, value in expected.items() if key != "answer"}
        for difference in _differences((), expected, actual):
            allowed = next((entry for entry in self._whitelist if entry.applies(self, op, difference)), None)
            if allowed is None:
                differences.append(difference)
            else:
                self.used[allowed.item] = self.used.get(allowed.item, 0) + 1
        return differences

    def _follow(self, op: Op, actual: Mapping[str, Any]) -> None:
        for name, txn in actual.get("state", {}).get("transactions", {}).items():
            if "producer_id" not in txn:
                continue
            ids = self._producer_ids.setdefault(name, [])
            ids += [txn["producer_id"]] if txn["producer_id"] not in ids else []
            if op["op"] in {"init", "raw_init", "fence"} and op.get("id") == name and not actual.get("error"):
                self._granted[name] = txn["producer_id"], txn["epoch"]

    def replaced(self, op: Op) -> bool:
        """Whether a later init has taken over the transactional id of the producer or request."""
        if op["op"].startswith("raw_"):
            last = self._granted.get(op.get("id", ""))
            sent = op["producer_id"], op["epoch"]
            return last is not None and self._age(op["id"], *sent) < self._age(op["id"], *last)
        producer = op.get("producer", "")
        return bool(self._owners.get(self._ids.get(producer, ""), producer) != producer)

    def _age(self, name: str, producer_id: int, epoch: int) -> tuple[int, int]:
        ids = self._producer_ids[name]
        return (ids.index(producer_id) if producer_id in ids else len(ids)), epoch

    def rotated(self, op: Op) -> bool:
        """Whether the transactional id of the producer or request has another producer id now."""
        name = op["id"] if op["op"].startswith("raw_") else self._ids.get(op.get("producer", ""), "")
        ids = self._producer_ids.get(name, [])
        return len(ids) > 1 and op.get("producer_id") != ids[-1]


def _without_nothing(observed: Mapping[str, Any]) -> dict[str, Any]:
    """What was observed, with an answer only if there is one."""
    return {"error": None, **{key: value for key, value in observed.items() if value is not None}}


def _differences(path: Path, expected: Any, actual: Any) -> list[Difference]:
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        differences = []
        for key, value in expected.items():
            differences += _differences((*path, key), value, actual.get(key))
        if path:
            surplus = [(*path, key) for key in actual if key not in expected]
            differences += [Difference(there, None, actual[there[-1]]) for there in surplus if not _hidden(there)]
        return differences
    return [] if expected == actual else [Difference(path, expected, actual)]


def _hidden(path: Path) -> bool:
    """Whether a broker does not show a field: the groups of a transaction, and whether a batch was a duplicate."""
    shown = path[3:] if path[:2] == ("state", "transactions") else path[1:]
    return shown == ("groups",) or path == ("answer", "duplicate")


# The whitelist --------------------------------------------------------------------------------------------------------


def _of_upkeep(rule: Callable[[Upkeep, Difference], bool]) -> Callable[[Comparison, Op, Difference], bool]:
    return lambda comparison, _, difference: rule(comparison.upkeep, difference)


def _illegal_state(comparison: Comparison, op: Op, difference: Difference) -> bool:
    both = difference.expected == "ILLEGAL_STATE" and difference.actual in {"INVALID_TXN_STATE", "PRODUCER_CLOSED"}
    return comparison.from_broker and difference.path == ("error",) and both


def _late_commit(comparison: Comparison, op: Op, difference: Difference) -> bool:
    """The commit, and later calls of its producer."""
    ends = op["op"] in {"begin", "commit"} or (op["op"] == "raw_end_txn" and op["commit"])
    if difference == Difference(("error",), "PRODUCER_FENCED", "INVALID_TXN_STATE"):
        # The error is fatal for the client of the model; a real one may abort.
        return op["op"] == "begin" and not comparison.from_broker
    refusals = ("PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
    both = difference.expected == "INVALID_TXN_STATE" and difference.actual in refusals
    return comparison.from_broker and difference.path == ("error",) and ends and both


def _stale_epoch(comparison: Comparison, op: Op, difference: Difference) -> bool:
    """A store tells a producer the reason: a newer instance fences permanently, an abort does not (KIP-588).

    Kafka's class names the place that finds it. The model has one class for all places, and a store for requests of old
    identities, of which nothing is known.
    """
    both = (difference.expected, difference.actual)
    if difference.path != ("error",) or sorted(map(str, both)) != ["INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED"]:
        return False
    if comparison.of_model:
        return True
    if difference.actual == "INVALID_PRODUCER_EPOCH":
        return not comparison.replaced(op)
    return op["op"].startswith("raw_") or comparison.replaced(op)


def _shorter_window(comparison: Comparison, op: Op, difference: Difference) -> bool:
    """A batch repeated after a restart: a duplicate in txnstore, unknown in Kafka."""
    both = difference == Difference(("error",), "OUT_OF_ORDER_SEQUENCE_NUMBER", None)
    return comparison.from_broker and comparison.restarted and op["op"] == "raw_append" and both


def _rotated(comparison: Comparison, op: Op, difference: Difference) -> bool:
    both = difference.expected == "INVALID_PRODUCER_ID_MAPPING" and difference.actual == "PRODUCER_FENCED"
    return comparison.from_broker and difference.path == ("error",) and both and comparison.rotated(op)


def _silent_flush(comparison: Comparison, op: Op, difference: Difference) -> bool:
    """An error in txnstore, an answer without offsets in Kafka."""
    refused = difference.path == ("error",) and difference.actual in ("PRODUCER_FENCED", "PRODUCER_CLOSED")
    nothing = difference == Difference(("answer",), {"offsets": {}}, None)
    return comparison.from_broker and op["op"] == "flush" and (nothing or (refused and difference.expected is None))


def _commit_failed(comparison: Comparison, op: Op, difference: Difference) -> bool:
    """The offsets are refused, or a commit follows refused offsets."""
    refusals = {"ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID"} | ({"INVALID_TXN_STATE"} if op["op"] == "commit" else set())
    both = difference.expected == "COMMIT_FAILED" and difference.actual in refusals
    return comparison.from_broker and difference.path == ("error",) and both


def _bad_offsets(comparison: Comparison, op: Op, difference: Difference) -> bool:
    """Refused offsets: fatal for Java's producer, or awaited until ``max.block.ms``; abortable here (API-05)."""
    both = difference.expected, difference.actual
    allowed = {
        "send_bad_offsets": {
            ("INVALID_GROUP_ID", "InvalidConfigError"),
            ("REQUEST_TIMED_OUT", "UNKNOWN_TOPIC_OR_PARTITION"),
        },
        "commit": {("IN_ERROR_STATE", "INVALID_TXN_STATE")},
    }
    return comparison.from_broker and difference.path == ("error",) and both in allowed.get(op["op"], set())


def _old_topic(comparison: Comparison, op: Op, difference: Difference) -> bool:
    """Offsets for a topic that was created again under the producer: Java's has the id of the old one cached.

    So its transaction has none of them, until a new instance of the id has ended it.
    """
    allowed = difference in (
        Difference(("error",), "REQUEST_TIMED_OUT", None),
        Difference(("answer",), None, {"offsets": {}}),
    )
    state = difference.path[:2] == ("state", "groups")
    recreated = comparison.from_broker and op["op"] == "flush" and op.get("recreated", False)
    return (recreated and allowed) or (comparison.awaits_a_topic and state)


def _without_generation(comparison: Comparison, op: Op, difference: Difference) -> bool:
    """A heartbeat carries no generation here: its answer has the current one."""
    both = difference == Difference(("error",), "ILLEGAL_GENERATION", None)
    return not comparison.of_model and op["op"] == "heartbeat" and both


def _left_before(comparison: Comparison, op: Op, difference: Difference) -> bool:
    """To leave a group twice has no effect here; in Kafka the member is unknown then."""
    both = difference == Difference(("error",), "UNKNOWN_MEMBER_ID", None)
    return not comparison.of_model and op["op"] == "leave" and both


def _newer_protocol(comparison: Comparison, op: Op, difference: Difference) -> bool:
    """A commit for a group of KIP-848; see ``docs/kafka-differences.md``."""
    errors = difference.expected, difference.actual
    both: set[tuple[str | None, str]] = {
        ("STALE_MEMBER_EPOCH", "ILLEGAL_GENERATION"),
        ("UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID"),
    }
    if op.get("ahead", 0) < 0:
        both.add((None, "ILLEGAL_GENERATION"))
    newer = comparison.from_broker and op.get("group") in comparison.newer_groups
    return newer and difference.path == ("error",) and errors in both


def _unknown_group(comparison: Comparison, op: Op, difference: Difference) -> bool:
    both = difference.expected == "GROUP_ID_NOT_FOUND" and difference.actual == "ILLEGAL_GENERATION"
    return comparison.from_broker and difference.path == ("error",) and op["op"] == "commit_offsets" and both


def _begun_by_a_refusal(comparison: Comparison, op: Op, difference: Difference) -> bool:
    """Only directly after the refusal; later observations must be equal."""
    state = difference.path[:2] == ("state", "transactions") and difference.path[-1] == "state"
    both = difference.expected == "ONGOING" and difference.actual in {"EMPTY", "COMPLETE_COMMIT", "COMPLETE_ABORT"}
    return comparison.from_broker and op["op"] == "raw_txn_offset_commit" and state and both


def _no_position(comparison: Comparison, op: Op, difference: Difference) -> bool:
    return difference == Difference(("error",), "NO_OFFSET", "OFFSET_OUT_OF_RANGE") and op["op"] in {"poll", "position"}


def _of_a_deleted_topic(comparison: Comparison, op: Op, difference: Difference) -> bool:
    """The other partitions must be equal."""
    of_a_transaction = difference.path[:2] == ("state", "transactions") or op["op"] == "describe_txn"
    if comparison.of_model or not of_a_transaction or difference.path[-1] != "partitions":
        return False
    missing = set(difference.expected) - set(difference.actual)
    return set(difference.actual) <= set(difference.expected) and all(
        name.rpartition("-")[0] in comparison.deleted for name in missing
    )


#: The allowed differences.
WHITELIST: tuple[Allowed, ...] = (
    Allowed(
        "FEN-06",
        "the class of a stale epoch names its reason, not the place that finds it",
        _stale_epoch,
    ),
    Allowed("API-01", "Java's IllegalStateException is the producer's own state here", _illegal_state),
    Allowed(
        "CMP-17",
        "a compaction may drop aborted records: read_uncommitted shows fewer, the index names fewer",
        _of_upkeep(Upkeep.dropped),
    ),
    Allowed(
        "CMP-07",
        "Kafka's markers are records: a clean removes them after those of their transaction, a retention with them",
        _of_upkeep(Upkeep.markers),
    ),
    Allowed(
        "CMP-08",
        "Kafka's cleaner comes for new records only, and not to the active segment: tombstones go later",
        _of_upkeep(Upkeep.tombstones),
    ),
    Allowed(
        "CMP-02",
        "Kafka never cleans the active segment: what its last batch supersedes goes with a later clean",
        _of_upkeep(Upkeep.active_segment),
    ),
    Allowed(
        "RET-04",
        "the log start is a record's offset here, and may be in the gap before it in Kafka",
        _of_upkeep(Upkeep.gap),
    ),
    Allowed(
        "RET-12",
        "Kafka's markers have an age, and end a retention by age; here they have none",
        _of_upkeep(Upkeep.marker),
    ),
    Allowed(
        "RET-01",
        "Kafka's retention deletes records of open transactions (D1); here it waits for their end",
        _of_upkeep(Upkeep.undecided),
    ),
    Allowed(
        "CMP-25",
        "a clean joins batches: retention deletes them when the newest record of all is old enough",
        _of_upkeep(Upkeep.joined),
    ),
    Allowed(
        "TV2-02", "a commit that finds its transaction aborted is refused as a stale epoch (KAFKA-20785)", _late_commit
    ),
    Allowed("OFF-06", "Java's CommitFailedException hides which part of a membership is wrong", _commit_failed),
    Allowed(
        "OFF-07",
        "each change of the members fences all of them, and static names fence, also with KIP-848",
        _newer_protocol,
    ),
    Allowed("OFF-08", "the generation of a group that is not known is illegal for every commit", _unknown_group),
    Allowed(
        "ADD-09",
        "offsets that are refused begin no transaction in a chain; in Kafka there is one, which can be aborted",
        _begun_by_a_refusal,
    ),
    Allowed("API-05", "refused offsets are abortable; fatal or awaited in vain by Java's producer", _bad_offsets),
    Allowed("OFF-18", "offsets by name are of the topic that exists; Java's producer may know an old id", _old_topic),
    Allowed("CON-17", "a heartbeat has no generation: its answer brings the current one", _without_generation),
    Allowed("OFF-22", "who has left may leave again", _left_before),
    Allowed("CON-13", "without a position and a policy, the offset is out of range, too", _no_position),
    Allowed(
        "END-07", "a deletion ends what a transaction has in the topic; in Kafka its end does", _of_a_deleted_topic
    ),
    Allowed("PST-03", "a restart forgets no batch of the window; a broker's keeps the last one", _shorter_window),
    Allowed("INIT-07", "a producer whose id was replaced is fenced; in Kafka the old id is unknown", _rotated),
    Allowed(
        "API-09", "a flush also raises that a producer is fenced or closed; Kafka's has nothing to flush", _silent_flush
    ),
)
