"""Kafka Connect: lines of a file go through a topic into another file."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.compat.broker.cluster import free_ports
from tests.compat.kafka_programs.place import PATIENCE, Place, UnexpectedError

_STANDALONE = "org.apache.kafka.connect.cli.ConnectStandalone"
_DISTRIBUTED = "org.apache.kafka.connect.cli.ConnectDistributed"
_TEXT = "org.apache.kafka.connect.storage.StringConverter"
_SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"
_SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"
_LINES = 1_000


def standalone(place: Place) -> str:
    """Each line is in the topic and in the file once; what is appended to the source follows."""
    place.topic("connected", 2)
    source, sink = place.folder / "source.txt", place.folder / "sink.txt"
    _append(source, 0, _LINES)
    worker = {**_worker(place), "offset.storage.file.filename": str(place.folder / "offsets")}
    settings = [
        _properties(place.folder / "worker.properties", worker),
        _properties(place.folder / "source.properties", {"name": "source", **_source(source, "connected")}),
        _properties(place.folder / "sink.properties", {"name": "sink", **_sink(sink, "connected")}),
    ]
    with place.program(_STANDALONE, *settings) as running:
        running.wait_until(lambda: len(_lines(sink)) >= _LINES, f"{_LINES} lines")
        _append(source, _LINES, _LINES + 100)
        running.wait_until(lambda: len(_lines(sink)) >= _LINES + 100, "the appended lines")
        running.terminate()
    _check(place, "connected", _LINES + 100)
    if sorted(_lines(sink)) != sorted(_lines(source)):
        msg = "the files differ"
        raise UnexpectedError(msg)
    return f"{_LINES + 100} lines"


def distributed(place: Place) -> str:
    """With ``exactly.once.source.support`` each line is in the topic once, though the worker was killed."""
    source, sink = place.folder / "distributed-source.txt", place.folder / "distributed-sink.txt"
    written = 0

    def has_more(least: int) -> bool:
        """Append some lines, up to 1,000, and tell whether so many are in the topic."""
        nonlocal written
        _append(source, written, min(written + 20, _LINES))
        written = min(written + 20, _LINES)
        return place.count("distributed") >= least

    (port,) = free_ports(1)
    worker = {
        **_worker(place),
        "listeners": f"http://127.0.0.1:{port}",
        "group.id": "connect",
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "1000",
        "scheduled.rebalance.max.delay.ms": "0",
        "exactly.once.source.support": "enabled",
        **{f"{kind}.storage.topic": f"connect-{kind}" for kind in ("config", "offset", "status")},
        **{f"{kind}.storage.replication.factor": "1" for kind in ("config", "offset", "status")},
        "offset.storage.partitions": "3",
        "status.storage.partitions": "2",
    }
    file = _properties(place.folder / "distributed.properties", worker)
    created = {
        **_source(source, "distributed"),
        "exactly.once.support": "required",
        "transaction.boundary": "poll",
        "topic.creation.default.replication.factor": "1",
        "topic.creation.default.partitions": "2",
    }
    with place.program(_DISTRIBUTED, file) as running:
        running.wait_until(lambda: _put(port, "source", created), "connector")
        running.wait_until(lambda: has_more(100), "records")
        running.kill()
    before = place.count("distributed")
    with place.program(_DISTRIBUTED, file) as running:
        running.wait_until(lambda: has_more(_LINES), f"{_LINES} records")
        running.wait_until(lambda: _put(port, "sink", _sink(sink, "distributed")), "connector")
        running.wait_until(lambda: len(set(_lines(sink))) >= _LINES, "lines")
        running.terminate()
    _check(place, "distributed", _LINES)
    return f"{_LINES} lines, {before} of them before the kill"


def _worker(place: Place) -> dict[str, str]:
    return {
        "bootstrap.servers": place.bootstrap,
        "listeners": f"http://127.0.0.1:{free_ports(1)[0]}",
        "plugin.discovery": "service_load",
        "key.converter": _TEXT,
        "value.converter": _TEXT,
        "offset.flush.interval.ms": "1000",
    }


def _source(file: Path, topic: str) -> dict[str, str]:
    return {"connector.class": _SOURCE, "tasks.max": "1", "file": str(file), "topic": topic}


def _sink(file: Path, topic: str) -> dict[str, str]:
    return {"connector.class": _SINK, "tasks.max": "1", "file": str(file), "topics": topic}


def _properties(file: Path, settings: Mapping[str, str]) -> str:
    file.write_text("".join(f"{name}={setting}\n" for name, setting in settings.items()))
    return str(file)


def _append(file: Path, first: int, end: int) -> None:
    with file.open("a") as lines:
        lines.writelines(f"line {number}\n" for number in range(first, end))


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def _put(port: int, name: str, settings: Mapping[str, str]) -> bool:
    """Create a connector by a request to the worker; whether it was there to take it."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/connectors/{name}/config",
        data=json.dumps(settings).encode(),
        headers={"Content-Type": "application/json"},
        method="PUT",
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:  # noqa: S310 - http, to our own worker
            return response.status in {200, 201}
    except urllib.error.HTTPError as error:
        if error.code not in {404, 409, 500, 503}:  # It is starting, or rebalancing.
            raise UnexpectedError(error.read().decode()) from error
    except OSError:
        time.sleep(1)
    return False


def _check(place: Place, topic: str, count: int) -> None:
    rows = place.query(f"select count(*), count(distinct value) from {topic}")
    if rows != [(count, count)]:
        msg = f"the topic {topic} has {rows}, not {count} lines"
        raise UnexpectedError(msg)
