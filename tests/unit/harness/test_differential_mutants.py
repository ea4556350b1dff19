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

from tests.harness.differential import Comparison, MismatchError, ModelDriver, Trace, record, replay
from tests.harness.differential.__main__ import main
from tests.harness.model import Batch, Broker, Group, Identity, Log, Producer, RefusedError, Transaction, broker, log
from tests.harness.model.group import Claim, Write
from tests.harness.traces import changes, merged, traces

TRACES = [*traces("model").values(), *traces("kafka", "*members*").values()]
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
    patch.setattr(Broker, "_fence", Broker._transaction_of)


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


def _no_member_commits_in_a_transaction_like_outside(patch: Patch) -> None:
    real = _checked(Group.check)
    patch.setattr(Group, "check", lambda self, claim, transactional: real(self, claim, False))


def _no_member_commits_outside_like_in_a_transaction(patch: Patch) -> None:
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


def _a_leave_starts_no_rebalance(patch: Patch) -> None:
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
    _no_member_commits_in_a_transaction_like_outside,
    _no_member_commits_outside_like_in_a_transaction,
    _a_static_member_that_comes_back_rebalances,
    _a_leave_starts_no_rebalance,
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
    """Whether the comparison fails; a mutant that cannot even continue is no proof that it was seen."""
    try:
        replay(trace, ModelDriver())
    except MismatchError:
        return True
    except RecursionError:
        return False
    return False


def test_dif_17_every_changed_value_in_trace_is_detected() -> None:
    """Each kind of observation is compared: an altered one fails."""
    trace = TRACES[0]
    state: dict[str, Any] = {}
    for observation in trace.observations:
        state = merged(state, observation.get("state", {}))
    kinds = set(state["partitions"]["t-0"]) | set(state["transactions"]["a"])
    for kind in kinds:
        where = ("partitions", "t-0") if kind in state["partitions"]["t-0"] else ("transactions", "a")
        wrong = merged(state, {where[0]: {where[1]: {kind: "something else"}}})
        differences = Comparison().step({"op": "flush"}, {"state": wrong}, {"state": state})
        assert [difference.path for difference in differences] == [("state", *where, kind)]


def _an_offset_in_every_group(patch: Patch) -> None:
    """A committed offset in each group for a partition that no commit has named."""
    real = ModelDriver._group
    patch.setattr(ModelDriver, "_group", lambda self, name: real(self, name) | {"t-9": [5, False]})


def _a_record_offset_of_another_partition(patch: Patch) -> None:
    real = ModelDriver.op_flush

    def flush(self: ModelDriver, op: dict[str, Any]) -> dict[str, Any]:
        answer = real(self, op)
        return {"offsets": answer["offsets"] | {"t-9": [5]}}

    patch.setattr(ModelDriver, "op_flush", flush)


@pytest.mark.parametrize("mutant", [_an_offset_in_every_group, _a_record_offset_of_another_partition])
def test_dif_07_an_invented_item_is_a_difference_at_every_depth(
    mutant: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    """DIF-07: with the traces of the model and with those of a broker, which shows fewer fields."""
    mutant(monkeypatch)
    assert sum(map(_disagrees, TRACES)) >= 5
    assert any(map(_disagrees, traces("kafka", "*offsets*").values()))


@pytest.mark.parametrize("path", [("a",), ("a", "b"), ("a", "b", "c"), ("a", "b", "c", "d")], ids=".".join)
def test_dif_07_additional_key_is_a_difference(path: tuple[str, ...]) -> None:
    """DIF-07: an unexpected partition, group or transaction, or anything inside one."""
    for root in ("state", "answer"):
        sides: list[dict[str, Any]] = []
        for leaf in ({}, {"new": 1}):
            tree: dict[str, Any] = leaf
            for key in reversed((root, *path)):
                tree = {key: tree}
            sides.append(tree)
        differences = Comparison().step({"op": "flush"}, *sides)
        assert [str(difference) for difference in differences] == [
            f"{'.'.join((root, *path))}.new: expected None, got 1"
        ]


def test_dif_07_fields_that_a_broker_does_not_show_are_not_compared() -> None:
    shown = {"answer": {"base_offset": 0}, "state": {"transactions": {"a": {"epoch": 0}}}}
    all_of_it = merged(shown, {"answer": {"duplicate": False}, "state": {"transactions": {"a": {"groups": ["g"]}}}})
    assert Comparison().step({"op": "raw_append"}, shown, all_of_it) == []


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
