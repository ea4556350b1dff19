"""The comparer sees what it is there to see; what it lets pass is passed by one entry of its list.

A mutant is the model with one rule wrong. It has to disagree with a golden trace: one that does not shows that the
traces observe too little.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.harness.differential import WHITELIST, Comparison, MismatchError, ModelDriver, Trace, record, replay
from tests.harness.differential.__main__ import main
from tests.harness.differential.trace import changes, merged
from tests.harness.model import Batch, Broker, Group, Identity, Log, Producer, RefusedError, Transaction, broker, log
from tests.harness.model.group import Claim, Write

FOLDER = Path(__file__).parent.parent / "traces"
PATHS = [*sorted(FOLDER.glob("*.json")), *sorted(FOLDER.glob("kafka/*members*.json"))]
TRACES = [Trace.load(path) for path in PATHS]
Patch = pytest.MonkeyPatch


def _window_of_six(patch: Patch) -> None:
    patch.setattr(log, "WINDOW", 6)


def _window_of_four(patch: Patch) -> None:
    patch.setattr(log, "WINDOW", 4)


def _no_wrap(patch: Patch) -> None:
    patch.setattr(log, "MAX_SEQUENCE", 2**40)


def _one_epoch_more(patch: Patch) -> None:
    patch.setattr(broker, "LAST_EPOCH", 32767)


def _longer_time_outs(patch: Patch) -> None:
    patch.setattr(broker, "MAX_TIMEOUT_MS", 900_001)


def _lso_of_the_latest_transaction(patch: Patch) -> None:
    stable = property(lambda self: max(self.start, max(self.open_transactions().values(), default=self.end)))
    patch.setattr(Log, "last_stable_offset", stable)


def _aborted_data_is_read(patch: Patch) -> None:
    patch.setattr(Log, "outcome", lambda self, batch: "COMMIT")


def _no_bump(patch: Patch) -> None:
    patch.setattr(Broker, "_bump", lambda self, name, txn: None)


def _markers_with_the_old_epoch(patch: Patch) -> None:
    real = Log.mark
    patch.setattr(Log, "mark", lambda self, producer_id, epoch, outcome: real(self, producer_id, epoch - 1, outcome))


def _a_marker_is_forgotten(patch: Patch) -> None:
    real = Broker.finish

    def finish(self: Broker, transactional_id: str, outcome: str) -> None:
        partitions = self.transactions[transactional_id].partitions
        if len(partitions) > 1:
            partitions.remove(max(partitions))
        real(self, transactional_id, outcome)

    patch.setattr(Broker, "finish", finish)


def _no_fence(patch: Patch) -> None:
    patch.setattr(Broker, "_fence", Broker._known)


def _no_epoch_in_partitions(patch: Patch) -> None:
    patch.setattr(Log, "epoch_of", lambda self, producer_id: None)


def _an_old_end_ends_the_next(patch: Patch) -> None:
    def again(self: Broker, txn: Transaction, who: Identity, outcome: str) -> Identity:
        return self.end(Identity(*txn.current, who.transactional_id), outcome)

    patch.setattr(Broker, "_end_again", again)


def _an_end_cannot_be_repeated(patch: Patch) -> None:
    def again(self: Broker, txn: Transaction, who: Identity, outcome: str) -> Identity:
        raise RefusedError("PRODUCER_FENCED")

    patch.setattr(Broker, "_end_again", again)


def _the_first_write_stays(patch: Patch) -> None:
    """Instead of the last one in the log (OFF-11, OFF-12)."""
    real = Group.committed

    def committed(self: Group, partition: str) -> int | None:
        written = [write.offset for write in self.log if isinstance(write, Write) and write.partition == partition]
        return written[0] if real(self, partition) is not None else None

    patch.setattr(Group, "committed", committed)


def _pending_offsets_are_stable(patch: Patch) -> None:
    patch.setattr(Group, "unstable", lambda self, partition: False)


def _any_generation(patch: Patch) -> None:
    patch.setattr(Broker, "_check_offsets", lambda self, item, transactional: None)


def _any_generation_of_a_member(patch: Patch) -> None:
    def check(self: Group, claim: Claim, *, transactional: bool) -> None:
        real(self, replace(claim, generation=self.generation) if claim.member in self.members else claim, transactional)

    real = _checked(Group.check)
    patch.setattr(Group, "check", check)


def _any_member(patch: Patch) -> None:
    patch.setattr(Group, "_check_member", lambda self, claim: None)


def _no_static_names(patch: Patch) -> None:
    patch.setattr(Group, "_static", lambda self, instance: None)


def _nobody_commits_in_a_transaction_like_outside(patch: Patch) -> None:
    real = _checked(Group.check)
    patch.setattr(Group, "check", lambda self, claim, transactional: real(self, claim, False))


def _nobody_commits_outside_like_in_a_transaction(patch: Patch) -> None:
    real = _checked(Group.check)
    patch.setattr(Group, "check", lambda self, claim, transactional: real(self, claim, True))


def _checked(check: Callable[..., None]) -> Callable[[Group, Claim, bool], None]:
    return lambda group, claim, transactional: check(group, claim, transactional=transactional)


def _a_static_member_that_comes_back_rebalances(patch: Patch) -> None:
    real = Group.join

    def join(self: Group, member: str, instance: str | None) -> None:
        before = self.generation
        real(self, member, instance)
        self.generation = before + 1

    patch.setattr(Group, "join", join)


def _who_leaves_rebalances_nobody(patch: Patch) -> None:
    patch.setattr(Group, "leave", lambda self, claim: self.members.pop(claim.member, None))


def _no_sweep(patch: Patch) -> None:
    patch.setattr(Broker, "sweep", lambda self: [])


def _an_init_leaves_what_is_open(patch: Patch) -> None:
    real = Broker.init

    def init(self: Broker, name: str | None, timeout: int = 60_000, expected: Any = None) -> Identity:
        txn = self.transactions.get(name or "")
        if txn is not None and txn.state == "ONGOING":
            txn.state = "EMPTY"
        return real(self, name, timeout, expected)

    patch.setattr(Broker, "init", init)


def _a_commit_that_has_nothing_bumps(patch: Patch) -> None:
    def commit(self: Producer) -> dict[str, list[int]]:
        self._check("IN_TRANSACTION")
        written = self._write()
        self.identity = self.broker.end(self.identity, "COMMIT" if self.started else "ABORT")
        self._ended()
        return written

    patch.setattr(Producer, "commit", commit)


def _an_empty_abort_is_indexed(patch: Patch) -> None:
    def mark(self: Log, producer_id: int, epoch: int, outcome: str) -> None:
        first = self.open_transactions().get(producer_id, self.end)
        self.batches.append(Batch(self.end, producer_id, epoch, marker=outcome))
        if outcome == "ABORT":
            self.aborted.append((producer_id, first, self.end - 1, self.last_stable_offset))

    patch.setattr(Log, "mark", mark)


MUTANTS: list[Callable[[Patch], None]] = [
    _window_of_six,
    _window_of_four,
    _no_wrap,
    _one_epoch_more,
    _longer_time_outs,
    _lso_of_the_latest_transaction,
    _aborted_data_is_read,
    _no_bump,
    _markers_with_the_old_epoch,
    _a_marker_is_forgotten,
    _no_fence,
    _no_epoch_in_partitions,
    _an_old_end_ends_the_next,
    _an_end_cannot_be_repeated,
    _the_first_write_stays,
    _pending_offsets_are_stable,
    _any_generation,
    _any_generation_of_a_member,
    _any_member,
    _no_static_names,
    _nobody_commits_in_a_transaction_like_outside,
    _nobody_commits_outside_like_in_a_transaction,
    _a_static_member_that_comes_back_rebalances,
    _who_leaves_rebalances_nobody,
    _no_sweep,
    _an_init_leaves_what_is_open,
    _a_commit_that_has_nothing_bumps,
    _an_empty_abort_is_indexed,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__.strip("_"))
def test_dif_17_a_model_with_one_wrong_rule_disagrees_with_a_trace(
    mutant: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    mutant(monkeypatch)
    assert any(_disagrees(trace) for trace in TRACES)


def _disagrees(trace: Trace) -> bool:
    """Whether the comparison fails; a mutant that cannot even go on is no proof that it was seen."""
    try:
        replay(trace, ModelDriver())
    except MismatchError:
        return True
    except RecursionError:
        return False
    return False


def test_dif_17_one_changed_value_anywhere_in_a_trace_is_seen() -> None:
    """Each kind of observation is compared: an altered one fails."""
    trace = TRACES[0]
    state: dict[str, Any] = {}
    for observation in trace.observations:
        state = merged(state, observation.get("state", {}))
    kinds = set(state["partitions"]["t-0"]) | set(state["transactions"]["a"])
    for kind in kinds:
        where = ("partitions", "t-0") if kind in state["partitions"]["t-0"] else ("transactions", "a")
        wrong = merged(state, {where[0]: {where[1]: {kind: "something else"}}})
        found = Comparison().step({"op": "flush"}, {"state": wrong}, {"state": state})
        assert [difference.path for difference in found] == [("state", *where, kind)]


def test_what_is_one_too_many_is_a_difference() -> None:
    """DIF-07: a partition, group or transaction that nobody expects."""
    for part in ("partitions", "transactions", "groups"):
        found = Comparison().step({"op": "flush"}, {"state": {part: {}}}, {"state": {part: {"new": 1}}})
        assert [str(difference) for difference in found] == [f"state.{part}.new: expected None, got 1"]


# The whitelist --------------------------------------------------------------------------------------------------------

BROKER = "kafka 4.1"
ALLOWED: list[tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("FEN-06", "model", {"op": "raw_append"}, {"error": "INVALID_PRODUCER_EPOCH"}, {"error": "PRODUCER_FENCED"}),
    ("API-01", BROKER, {"op": "begin"}, {"error": "ILLEGAL_STATE"}, {"error": "PRODUCER_CLOSED"}),
    (
        "CMP-17",
        "model",
        {"op": "compact"},
        {"state": {"partitions": {"t-0": {"uncommitted": [[0, None, "a"], [1, None, "b"]]}}}},
        {"state": {"partitions": {"t-0": {"uncommitted": [[1, None, "b"]]}}}},
    ),
    (
        "TV2-02",
        BROKER,
        {"op": "raw_end_txn", "commit": True},
        {"error": "INVALID_TXN_STATE"},
        {"error": "PRODUCER_FENCED"},
    ),
    ("OFF-06", BROKER, {"op": "flush"}, {"error": "COMMIT_FAILED"}, {"error": "ILLEGAL_GENERATION"}),
    (
        "OFF-07",
        BROKER,
        {"op": "commit_offsets", "group": "g", "protocol": "consumer"},
        {"error": "STALE_MEMBER_EPOCH"},
        {"error": "ILLEGAL_GENERATION"},
    ),
    (
        "OFF-08",
        BROKER,
        {"op": "commit_offsets"},
        {"error": "GROUP_ID_NOT_FOUND"},
        {"error": "ILLEGAL_GENERATION"},
    ),
    (
        "ADD-09",
        BROKER,
        {"op": "raw_txn_offset_commit"},
        {"state": {"transactions": {"x": {"state": "ONGOING"}}}},
        {"state": {"transactions": {"x": {"state": "EMPTY"}}}},
    ),
    ("PST-03", BROKER, {"op": "raw_append"}, {"error": "OUT_OF_ORDER_SEQUENCE_NUMBER"}, {"error": None}),
    (
        "INIT-07",
        BROKER,
        {"op": "commit"},
        {"error": "INVALID_PRODUCER_ID_MAPPING"},
        {"error": "PRODUCER_FENCED"},
    ),
    ("API-09", BROKER, {"op": "flush"}, {"error": None}, {"error": "PRODUCER_CLOSED"}),
]


@pytest.mark.parametrize(("item", "source", "op", "expected", "actual"), ALLOWED, ids=[row[0] for row in ALLOWED])
def test_dif_09_a_difference_is_allowed_by_its_item_alone(
    item: str, source: str, op: dict[str, Any], expected: dict[str, Any], actual: dict[str, Any]
) -> None:
    """DIF-09: with the entry it passes and is counted; without it it fails."""
    comparison = Comparison(source)
    others = Comparison(source, [entry for entry in WHITELIST if entry.item != item])
    for one in (comparison, others):
        assert one.step({"op": "restart"}, {}, {}) == []
    assert comparison.step(op, expected, actual) == []
    assert comparison.used == {item: 1}
    assert others.step(op, expected, actual)


def test_dif_09_every_entry_of_the_whitelist_is_tested_here() -> None:
    assert [entry.item for entry in WHITELIST] == [row[0] for row in ALLOWED]
    assert all(entry.why for entry in WHITELIST)


def test_off_07_what_kafka_takes_from_an_older_epoch_is_allowed_in_groups_of_the_newer_protocol_alone() -> None:
    def differs(group: str, ahead: int, expected: str | None, actual: str) -> bool:
        comparison = Comparison(BROKER)
        comparison.step({"op": "join", "group": "newer", "protocol": "consumer"}, {}, {})
        op = {"op": "commit_offsets", "group": group, "ahead": ahead}
        return bool(comparison.step(op, {"error": expected}, {"error": actual}))

    assert not differs("newer", -1, None, "ILLEGAL_GENERATION")
    assert not differs("newer", 0, "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID")
    assert differs("newer", 0, None, "ILLEGAL_GENERATION")
    assert differs("newer", -1, None, "UNKNOWN_MEMBER_ID")
    assert differs("classic", -1, None, "ILLEGAL_GENERATION")
    assert differs("classic", 0, "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID")


def test_cmp_17_a_compaction_may_hide_records_but_not_add_or_change_any() -> None:
    def step(actual: list[Any]) -> int:
        records = [[0, None, "a"], [1, None, "b"]]
        sides = ({"state": {"partitions": {"t-0": {"uncommitted": found}}}} for found in (records, actual))
        return len(Comparison().step({"op": "compact"}, *sides))

    assert [step([[1, None, "b"]]), step([]), step([[1, None, "c"]]), step([[2, None, "b"]])] == [0, 0, 1, 1]


# Traces ---------------------------------------------------------------------------------------------------------------


def test_changes_lead_from_one_state_to_the_next() -> None:
    before, after = {"a": 1, "b": {"x": 1, "y": [1]}, "c": 3}, {"a": 1, "b": {"x": 2, "y": [1, 2]}, "d": {"z": 0}}
    assert changes(before, after) == {"b": {"x": 2, "y": [1, 2]}, "c": None, "d": {"z": 0}}
    assert merged(before, changes(before, after)) == after
    assert changes(after, after) == {}


def test_a_trace_reads_as_it_was_written(tmp_path: Path) -> None:
    for trace in TRACES:
        trace.save(tmp_path / "trace.json")
        assert Trace.load(tmp_path / "trace.json") == trace


def test_a_trace_that_lacks_an_observation_is_refused(tmp_path: Path) -> None:
    Trace("short", "", [], [{"op": "sweep"}], []).save(tmp_path / "trace.json")
    with pytest.raises(ValueError, match="1 operations, but 0 observations"):
        Trace.load(tmp_path / "trace.json")


def test_a_recorded_script_can_be_replayed_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """DIF-12: from JSON lines to a trace, and from there to a comparison; a wrong one makes it fail and says where."""
    script, path = tmp_path / "script.jsonl", tmp_path / "trace.json"
    script.write_text('{"op": "create_topic", "topic": "t"}\n\n{"op": "init", "producer": "A", "id": "a"}\n')
    assert main(["record", str(script)]) == 0
    path.write_text(capsys.readouterr().out)
    assert Trace.load(path).observations == record(Trace.load(path).ops)
    assert main(["replay", str(path), "--chains", "2"]) == 0
    assert "store of 2 chains: the same after each of 2 operations" in capsys.readouterr().out
    path.write_text(path.read_text().replace('"epoch": 0', '"epoch": 1'))
    assert main(["replay", str(path)]) == 1
    assert "answer.epoch: expected 1, got 0" in capsys.readouterr().out


def test_fen_06_a_client_is_fenced_for_good_only_by_a_newer_instance() -> None:
    """FEN-06, KIP-588: after a timeout, Kafka's client aborts and goes on."""
    comparison = Comparison(BROKER)
    flush = {"op": "flush", "producer": "A"}
    told = {"error": "INVALID_PRODUCER_EPOCH"}, {"error": "PRODUCER_FENCED"}
    comparison.step({"op": "init", "producer": "A", "id": "a"}, {}, {})
    assert comparison.step(flush, *told)
    comparison.step({"op": "init", "producer": "B", "id": "a"}, {}, {})
    assert comparison.step(flush, *told) == []
