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


@pytest.mark.slow
def test_dif_09_each_difference_occurs_in_trace_of_broker() -> None:
    """DIF-09: an entry of the whitelist that no trace needs would only hide something. Some need several chains."""
    needed = {item for name in RECORDED for chains in (1, 3) for item in replayed(name, chains) or ()}
    assert needed == {entry.item for entry in WHITELIST}
