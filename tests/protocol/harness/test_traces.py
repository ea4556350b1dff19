"""DIF-12, DIF-13: golden traces, replayed against the model and against stores of one and of several chains.

``docs/internals/testing.md`` says how they are written and recorded. Those in ``tests/traces/kafka`` were recorded with
a Kafka broker and Kafka's own producer: what they say is what Kafka does. The others were recorded with the model.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests.harness.differential import WHITELIST, ModelDriver, StoreDriver, record, replay
from tests.harness.traces import MODEL, traces

TRACES = {**traces("model"), **traces("kafka")}
#: ``make check`` leaves out random traces on stores, which take two fifths of the time of all.
CHECKED = [pytest.param(name, marks=pytest.mark.slow) if "random" in name else name for name in TRACES]
RECORDED = {name: trace for name, trace in TRACES.items() if trace.source != MODEL}


@cache
def replayed(name: str, chains: int) -> frozenset[str] | None:
    """The differences that the replay of a trace needed, done once; None if the store lacks an operation of it."""
    trace, driver = TRACES[name], StoreDriver(chains)
    try:
        return frozenset(replay(trace, driver).used) if driver.supports.issuperset(trace.needs) else None
    finally:
        driver.close()


@pytest.mark.slow
@pytest.mark.parametrize("chains", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CHECKED)
def test_dif_07_store_matches_trace_after_each_operation(name: str, chains: int) -> None:
    """DIF-06, DIF-07, DIF-12; each trace names the items that it proves."""
    if replayed(name, chains) is None:
        pytest.skip(f"this store cannot do all of {', '.join(sorted(TRACES[name].needs))} yet")


@pytest.mark.parametrize("name", TRACES)
def test_dif_13_model_matches_trace(name: str) -> None:
    """DIF-13: the third leg: where store and trace disagree, the model says which of them is alone."""
    trace = TRACES[name]
    replay(trace, ModelDriver())
    if trace.source == MODEL:
        assert record(trace.ops) == trace.observations, "record it again, then review what has changed"


def test_dif_12_first_set_of_traces_exists() -> None:
    """DIF-12: at least twenty, and every one says what it is about and what it proves."""
    assert len(RECORDED) >= 20
    assert all(trace.about and trace.items and trace.name in name for name, trace in TRACES.items())


def test_dif_01_traces_of_broker_exist() -> None:
    """DIF-01, DIF-02, DIF-03: the traces of the broker's folder come from a broker of one node, and no other do."""
    assert set(RECORDED) == {name for name in TRACES if name.startswith("kafka/")}
    assert all(trace.source.startswith("kafka 4.") for trace in RECORDED.values())


def test_dif_08_observations_contain_no_request_in_progress() -> None:
    """DIF-08: nothing is observed while a transaction is being completed."""
    for trace in RECORDED.values():
        for observation in trace.observations:
            changed = observation.get("state", {}).get("transactions", {}).values()
            assert not [txn for txn in changed if txn is not None and txn.get("state", "").startswith("PREPARE")]


def test_dif_10_recorded_traces_contain_timeouts() -> None:
    """DIF-10: on the broker's side a ``tick`` is real time, here it is the clock's."""
    waited = {trace.name for trace in RECORDED.values() if any(op["op"] == "tick" for op in trace.ops)}
    assert {"time_out_abort", "late_commit", "late_after_sweep"} <= waited


#: By entry of the whitelist: a trace whose replay on a store of this many chains needs it.
NEEDED = {
    "FEN-06": ("kafka/20_offset_fencing", 1),
    "API-01": ("kafka/01_commit_and_abort", 3),
    "CMP-17": ("kafka/49_retain_transactions", 1),
    "CMP-07": ("kafka/50_delete_records_in_transactions", 1),
    "CMP-08": ("kafka/42_clean_active_segment", 1),
    "CMP-02": ("kafka/42_clean_active_segment", 1),
    "RET-04": ("kafka/50_delete_records_in_transactions", 1),
    "RET-12": ("kafka/49_retain_transactions", 1),
    "RET-01": ("kafka/48_retain_undecided", 1),
    "CMP-25": ("kafka/45_clean_and_delete", 1),
    "TV2-02": ("kafka/08_late_after_sweep", 1),
    "OFF-06": ("kafka/27_members_of_a_producer", 1),
    "OFF-07": ("kafka/28_members_of_the_newer_protocol", 1),
    "OFF-08": ("kafka/24_members", 1),
    "ADD-09": ("kafka/25_members_in_transactions", 1),
    "API-05": ("kafka/53_refused_offsets", 1),
    "OFF-18": ("kafka/53_refused_offsets", 1),
    "CON-17": ("kafka/53_refused_offsets", 1),
    "OFF-22": ("kafka/53_refused_offsets", 1),
    "CON-13": ("kafka/31_no_position", 1),
    "END-07": ("kafka/32_deleted_topics", 1),
    "PST-03": ("kafka/29_window_after_restart", 1),
    "INIT-07": ("kafka/15_rotation", 1),
    "API-09": ("kafka/random_applications_002", 1),
}


def test_dif_09_each_difference_has_a_trace_of_broker() -> None:
    """DIF-09: an entry of the whitelist that no trace needs would only hide something."""
    assert list(NEEDED) == [entry.item for entry in WHITELIST]
    assert {name for name, _ in NEEDED.values()} <= RECORDED.keys()


@pytest.mark.slow
@pytest.mark.parametrize("item", NEEDED)
def test_dif_09_a_difference_occurs_in_its_trace(item: str) -> None:
    assert item in (replayed(*NEEDED[item]) or ())
