"""DIF-17 for cleans and retention: a model with one wrong rule disagrees with a trace of a broker."""

from __future__ import annotations

import inspect
import textwrap

import pytest

from tests.harness.differential import Comparison, MismatchError, ModelDriver, Trace, replay
from tests.harness.differential.difference import Difference
from tests.harness.model import Log, log
from tests.harness.traces import Op, traces

KINDS = ("clean", "retain", "delete_records_in")
TRACES = [trace for kind in KINDS for trace in traces("kafka", f"??_{kind}*").values()]

#: A method of the log, a part of its text, and a wrong one.
MUTANTS = {
    "clean_above_the_lso": ("clean", "min([self.last_stable_offset,", "min([self.end,"),
    "aborted_records_supersede": ("clean", 'self.records("read_committed")', 'self.records("read_uncommitted")'),
    "the_oldest_record_stays": ("clean", "record in committed if record[0]", "record in committed[::-1] if record[0]"),
    "aborted_records_stay": ("clean", "in staying else", "in staying or batch.transactional else"),
    "tombstones_go_at_once": ("clean", "self.horizons.get(at, now + 1) > now", "record[1] is not None"),
    "tombstones_stay": ("clean", "and self.horizons.get(at, now + 1) > now", ""),
    "each_clean_moves_the_horizon": ("clean", "self.horizons.setdefault(at, horizon)", "self.horizons[at] = horizon"),
    "no_horizon": ("clean", 'now + int(self.config.get("delete.retention.ms", DAY_MS))', "now"),
    "no_lag": ("clean", "lag_ms and item.timestamp", "False and item.timestamp"),
    "a_lag_of_cleaned_records": ("clean", "if item.base >= self.cleaned", ""),
    "the_index_stays": ("_has_records", "return any(batch.first is not None for batch in mine)", "return True"),
    "retention_of_the_youngest": ("retain", "now - batch.timestamp", "now - live[-1].timestamp"),
    "retention_keeps_one_more": ("retain", "surplus > deleted", "surplus > deleted + 1"),
    "retention_deletes_one_more": ("retain", "surplus > deleted", "surplus >= deleted"),
    "retention_of_compacted_topics": ("retain", 'if "delete" not in self.policy', "if not self.policy"),
    "deletion_from_compacted_topics": ("delete_before", 'if "delete" not in self.policy', "if not self.policy"),
    "deletion_to_the_lso": ("delete_before", "start = self.end if offset == -1", "start = self.start if offset == -1"),
    "the_index_goes_early": ("_move_start", "entry[2] >= self.start", "entry[1] >= self.start"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_dif_17_a_wrong_rule_of_removal_disagrees_with_a_trace(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DIF-17: CMP-02, CMP-05, CMP-06, CMP-08, CMP-16, CMP-18, RET-01, RET-03, RET-06, RET-08."""
    method, right, wrong = MUTANTS[name]
    source = textwrap.dedent(inspect.getsource(getattr(Log, method)))
    assert source.count(right) == 1
    scope = dict(vars(log))
    exec(source.replace(right, wrong), scope)  # noqa: S102 - the mutant
    monkeypatch.setattr(Log, method, scope[method])
    assert any(_disagrees(trace) for trace in TRACES)


def test_dif_17_the_model_itself_disagrees_with_no_trace() -> None:
    """DIF-17: otherwise each of its mutants would."""
    assert len(TRACES) >= 15
    assert [trace.name for trace in TRACES if _disagrees(trace)] == []


def _disagrees(trace: Trace) -> bool:
    try:
        replay(trace, ModelDriver())
    except MismatchError:
        return True
    return False


# The rules of the whitelist: each allows no more than it explains -----------------------------------------------------

CLEAN: Op = {"op": "clean", "topic": "t"}
RETAIN: Op = {"op": "retain", "topic": "t", "ms": 1}
OLD, OTHER, NEW = [0, "a", "1"], [1, "b", "1"], [3, "a", "2"]


def _differences(op: Op, kafka: dict[str, object], ours: dict[str, object]) -> list[Difference]:
    """What is left of the differences between two logs after an operation."""
    same = {"log_start": 0, "lso": 4, "hw": 4, "committed": [OTHER, NEW], "uncommitted": [OTHER, NEW], "markers": []}
    sides = [{"state": {"partitions": {"t-0": {**same, **log}}}} for log in (kafka, ours)]
    return Comparison("kafka 4.4.0").step(op, *sides)


def _records(*rows: list[object]) -> dict[str, object]:
    return {"committed": list(rows), "uncommitted": list(rows)}


def test_cmp_02_only_what_the_active_segment_supersedes_may_stay_longer() -> None:
    """CMP-02: Kafka's last record is of key ``a``: an older ``a`` may be left there, but not here, and nothing else."""
    assert _differences(CLEAN, _records(OLD, OTHER, NEW), {}) == []
    assert len(_differences(CLEAN, {}, _records(OLD, OTHER, NEW))) == 2
    assert len(_differences(CLEAN, _records([0, "b", "0"], OTHER, NEW), {})) == 2
    assert len(_differences(RETAIN, _records(OLD, OTHER, NEW), {})) == 2


def test_cmp_08_only_a_tombstone_may_stay_longer() -> None:
    """CMP-08: one that Kafka's clean left out, and that removed nothing that is still here."""
    assert _differences(CLEAN, _records(OTHER, [3, "c", None]), _records(OTHER)) == []
    assert len(_differences(CLEAN, _records(OTHER, [2, "c", None], NEW), {})) == 2
    assert len(_differences(CLEAN, _records(OTHER, [3, "b", None]), _records(OTHER))) == 2
    assert len(_differences(CLEAN, _records(OTHER, [3, "c", "2"]), _records(OTHER))) == 2
    assert len(_differences(CLEAN, _records(OTHER), _records(OTHER, [3, "c", None]))) == 2


def test_cmp_17_a_clean_drops_no_undecided_record() -> None:
    """CMP-03, CMP-17: of what only read_uncommitted sees, aborted records may be missing, open ones not."""
    aborted: dict[str, object] = {"uncommitted": [OLD, OTHER, NEW]}
    assert _differences(CLEAN, aborted, {}) == []
    opened: dict[str, object] = {"lso": 3, "committed": [OTHER]}
    differences = _differences(CLEAN, opened, {**opened, "uncommitted": [OTHER]})
    assert [difference.path[-1] for difference in differences] == ["uncommitted"]


def test_ret_04_log_starts_differ_within_a_gap_only() -> None:
    """RET-04: no record may be between the two."""
    assert _differences(RETAIN, {"log_start": 1}, {}) == []
    assert len(_differences(RETAIN, {"log_start": 2}, {})) == 1
    assert len(_differences({"op": "flush"}, {"log_start": 1}, {})) == 1


def test_ret_12_only_a_marker_at_the_head_holds_a_retention() -> None:
    """RET-12: the records above are the same."""
    ours = {"log_start": 3, **_records(NEW)}
    assert _differences(RETAIN, {"markers": [[0, "COMMIT", 0, 1]]}, {**ours, "markers": [[0, "COMMIT", 0, 1]]}) == []
    assert len(_differences(RETAIN, {}, ours)) == 3
    assert len(_differences(RETAIN, {"markers": [[0, "COMMIT", 0, 1]]}, {**ours, **_records()})) == 3


def test_ret_01_only_an_open_transaction_is_kept_longer() -> None:
    """RET-01: the log starts at the LSO, which is below the high watermark, when the retention runs."""
    kafka = {"log_start": 3, "lso": 3, "committed": [], "uncommitted": [NEW]}
    held = {"log_start": 1, "lso": 1, "committed": []}
    assert _differences(RETAIN, kafka, held) == []
    assert {difference.path[-1] for difference in _differences(RETAIN, kafka, {**held, "log_start": 0})} >= {"lso"}
    assert {difference.path[-1] for difference in _differences(RETAIN, {**kafka, "lso": 4}, held)} == {"lso"}


def test_cmp_25_only_records_below_the_higher_log_start_are_kept_longer() -> None:
    """CMP-25: after a clean."""
    kafka = {"log_start": 3, **_records(NEW)}
    assert _differences(CLEAN, kafka, {}) == []
    assert len(_differences(RETAIN, kafka, {})) == 3
    assert len(_differences(CLEAN, {**kafka, **_records()}, _records(OTHER, NEW))) == 2
