"""The instruments of the torture of gateways: clients that hang, and the copies of Spark."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.gateway import nemesis as module
from tests.harness.gateway.nemesis import Nemesis
from tests.harness.gateway.plan import ClientTask
from tests.harness.gateway.spark import copies, without_aborted_copies
from tests.harness.gateway.watch import Watch, Watched, last_call
from tests.harness.history import Offsets, Poll, Send, Snapshot, Type, check, history_of
from tests.harness.history.format import Bounds, Event
from tests.harness.torture.archivist import kind_of

TASK = ClientTask("librdkafka-job", "librdkafka-job-0-1", 0, 1, "unused", "", 0, kind="job", library="librdkafka")


class _Client:
    consumer = "a value, no call"

    def commit(self, number: int) -> int:
        if number < 0:
            raise ValueError
        return number + 1


def test_a_call_is_named_before_it_begins_and_after_it(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    client = _Client()
    watched = Watched(client, Watch(path), "producer")
    assert last_call(path) == ""
    assert watched.commit(1) == 2
    assert last_call(path) == "after producer.commit"
    assert watched.consumer == client.consumer
    with pytest.raises(ValueError, match=r"^$"):
        watched.commit(-1)
    assert last_call(path) == "after producer.commit"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    code = "import signal, time; signal.signal(signal.SIGUSR1, signal.SIG_IGN); print('.', flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(1)
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("paused", [False, True])
def test_a_client_that_hangs_is_killed_and_its_last_call_reported_unless_it_is_paused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes], paused: bool
) -> None:
    monkeypatch.setattr(module, "_HANGING", 0.0)
    task = dataclasses.replace(TASK, folder=str(tmp_path))
    nemesis = Nemesis(tmp_path, "unused", {}, [], [], 0)
    client = module._Process(task.name, lambda: sleeper, sleeper, 0.0, task)
    client.paused_until = 1e9 if paused else None
    nemesis._clients.append(client)
    nemesis._end_hanging()  # It has not begun: it may take the time of a start.
    nemesis._end_hanging()
    assert nemesis.hangs == []
    Watch(task.calls).note("producer.send_offsets")
    nemesis._end_hanging()
    assert nemesis.hangs == []
    nemesis._end_hanging()
    assert len(nemesis.hangs) == (0 if paused else 1)
    assert all(hang.endswith("producer.send_offsets") for hang in nemesis.hangs)
    assert (sleeper.poll() is None) == paused


@pytest.mark.parametrize("is_session", [False, True])
def test_a_process_commits_for_others_if_it_or_one_of_its_session_does(tmp_path: Path, *, is_session: bool) -> None:
    """Spark commits in Python processes that the JVM starts."""
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import os; print(os.getpid()); input()'])"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=is_session,
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        nemesis = Nemesis(tmp_path, "unused", {}, [], [], 0, lambda: {child, 2**31 - 1})
        nemesis._clients.append(client := module._Process("spark", lambda: parent, parent, 0.0, TASK))
        assert nemesis._committing() == ({client: child} if is_session else {})
        nemesis._committers = lambda: {parent.pid}
        assert nemesis._committing() == {client: parent.pid}
        client.paused_until = 1e9
        assert nemesis._committing() == {}
        parent.communicate(b"\n")


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        (set[str](), "no transactions"),
        ({"librdkafka848-job-0"}, "librdkafka848-job"),
        ({"spark-01a22de6-0b38-7317-aef0-52ab7c95c08a"}, "spark"),
        ({"job-0", "producer-1"}, "several ids"),
    ],
)
def test_kinds_of_processes_are_those_of_their_ids(ids: set[str], kind: str) -> None:
    assert kind_of(ids) == kind


def _history(outputs: list[tuple[str, int, str]], offset: int) -> list[str]:
    """The anomalies of an input of two records, of which Spark has made these, with its group at an offset."""
    inputs = (("in-0", 0, "a"), ("in-0", 1, "b"))
    sends = tuple(Send(key, value, at) for key, at, value in inputs)
    records: dict[str, tuple[tuple[int, str], ...]] = {"in-0": ((0, "a"), (1, "b")), "out-0": ()}
    for key, at, value in outputs:
        records[key] = (*records.get(key, ()), (at, value))
    bounds = {key: Bounds(0, 9, 9) for key in records}
    snapshot = Snapshot(bounds, records, {"spark": {"in-0": offset}})
    events = [
        Event("p", Type.INVOKE, "send", 1, sends),
        Event("p", Type.OK, "send", 2, sends),
        Event("f", Type.INVOKE, "snapshot", 3, final=True),
        Event("f", Type.OK, "snapshot", 4, (snapshot,)),
        Event("f", Type.INVOKE, "poll", 5, final=True),
        Event("f", Type.OK, "poll", 6, (Poll(records),)),
    ]
    made = list(copies(history_of(events).operations))
    return sorted({each.kind for each in check(history_of([*events, *made]))})


def test_copies_of_spark_are_checked_as_transactions() -> None:
    first, second = "spark|spark|in-0|0|a", "spark|spark|in-0|1|b"
    assert _history([("out-0", 0, first), ("out-0", 2, second)], 2) == []
    assert _history([("out-0", 0, first), ("out-0", 2, second), ("out-1", 4, first)], 2) == ["double-consume"]
    assert "duplicate" in _history([("out-0", 0, first), ("out-0", 2, second), ("out-0", 4, first)], 2)
    assert "offsets-data-mismatch" in _history([("out-0", 0, first)], 2)
    assert "offsets-data-mismatch" in _history([("out-0", 0, first), ("out-0", 2, second)], 1)
    assert "inconsistent-offsets" in _history([("out-0", 0, first), ("out-0", 2, "spark|spark|in-0|1|x")], 2)


def test_a_copy_names_its_transaction_source_and_offsets() -> None:
    read = Poll({"out-1": ((7, "spark|g|in-2|5|a|b"),)})
    operations = history_of([Event("f", Type.INVOKE, "poll", 5), Event("f", Type.OK, "poll", 6, (read,))]).operations
    [event] = copies(operations)
    assert event.value == (
        Poll({"in-2": ((5, "a|b"),)}),
        Send("out-1", "spark|g|in-2|5|a|b", 7, ("in-2", 5)),
        Offsets("g", {"in-2": 6}),
    )


def test_records_of_aborted_micro_batches_are_no_copies() -> None:
    """A read_uncommitted consumer reads a record of a micro-batch that is aborted, and written again later."""
    copied, other = "spark|spark|in-0|0|a", "b"
    uncommitted = Poll({"out-1": ((7, copied), (8, other))})
    events = [
        Event("u", Type.INVOKE, "poll", 5, isolation="read_uncommitted"),
        Event("u", Type.OK, "poll", 6, (uncommitted,)),
    ]
    assert without_aborted_copies(history_of(events)).operations[0].value == (Poll({"out-1": ((8, other),)}),)
    events += [Event("c", Type.INVOKE, "poll", 7), Event("c", Type.OK, "poll", 8, (Poll({"out-1": ((7, copied),)}),))]
    assert without_aborted_copies(history_of(events)).operations[0].value == (uncommitted,)
