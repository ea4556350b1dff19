"""What a process needs until it knows what to read: import, open, plan; in a folder and on S3.

Each run is a process of its own, in turns with one that only imports ``pyarrow.parquet``. ``BEFORE=FOLDER`` names a
checkout of an earlier txnstore, which opens the same stores in between. Processor time counts, not seconds: the server
of the S3 tests is one in Python.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import txnstore
from benchmarks.measure import Result
from tests.harness.s3.servers import S3Server
from txnstore.chain.context import CHECKPOINT_EVERY

#: Commits before the last checkpoint, and after it.
COMMITS, TAIL = 1_000, 43
ROUNDS = 7
_IMPORT = "import pyarrow.parquet"
_OPEN = """
import json, sys
import txnstore
url, options, _ = json.loads(sys.argv[1])
txnstore.open(url, storage_options=options, read_only=True).close()
"""
_PLAN = """
import json, sys
import txnstore
url, options, commits = json.loads(sys.argv[1])
with txnstore.open(url, storage_options=options, read_only=True) as store:
    requests = store.metrics()
    assert sum(part.batch.records for part in store.scan("events").plan()) == commits
loaded = sorted({"s3fs", "botocore", "aiohttp"} & sys.modules.keys())
print(json.dumps([requests.gets, requests.puts, requests.lists, loaded]))
"""
#: What is done where, and how many imports of pyarrow.parquet it may take (docs/internals/design/history.md, Opening).
_WORK = (
    ("open", "small folder", _OPEN, 1.5),
    ("open + plan", "small folder", _PLAN, 2.2),
    ("open + plan", "folder", _PLAN, 2.4),
    ("open + plan", "S3", _PLAN, 3.0),
)


def run() -> Iterator[Result]:
    """Open and plan a folder and a bucket; compare with an import, and count requests."""
    here = str(Path(__file__).parents[1])
    checkouts = {"": here, **({"before: ": os.environ["BEFORE"]} if "BEFORE" in os.environ else {})}
    with tempfile.TemporaryDirectory() as base, S3Server() as server:
        bucket = server.create_bucket(f"bench-{time.time_ns()}")
        places = {
            "small folder": (f"{base}/small", None, _fill_small(f"{base}/small")),
            "folder": (f"{base}/events", None, _fill(f"{base}/events", None)),
            "S3": (f"{bucket}/events", server.storage_options, _fill(f"{bucket}/events", server.storage_options)),
        }
        yield from _processor_time(places, checkouts)
        for name, checkout in checkouts.items():
            gets, puts, lists, loaded = json.loads(_child(_PLAN, checkout, places["S3"]))
            detail = f"{TAIL} entries after the checkpoint; {lists} LIST; imported: {', '.join(loaded) or 'obstore'}"
            yield Result(f"{name}open on S3: GET", gets, TAIL + 12, at_most=True, detail=detail)
            yield Result(f"{name}open on S3: PUT", puts, 0, at_most=True, detail="")


def _fill_small(url: str) -> int:
    """A store with two batches, and no checkpoint; returns their number."""
    with txnstore.create(url) as store:
        store.create_topic("events")
        with store.producer(linger=None) as producer:
            for number in range(2):
                producer.send("events", b"%d" % number).result()
    return 2


def _fill(url: str, options: Mapping[str, Any] | None) -> int:
    """A store with a checkpoint and a tail; returns the number of its batches."""
    with txnstore.create(url, storage_options=options) as store:
        store.create_topic("events")
        with store.producer(linger=None) as producer:
            sent = 0
            # The last checkpoint is one that the process writes by itself.
            while sent < COMMITS or store.checkpoint() % CHECKPOINT_EVERY:
                producer.send("events", b"%d" % sent).result()
                sent += 1
            for number in range(TAIL):
                producer.send("events", b"%d" % number).result()
    return sent + TAIL


def _processor_time(places: Mapping[str, Any], checkouts: Mapping[str, str]) -> Iterator[Result]:
    imports: list[float] = []
    spent: dict[tuple[str, float], list[float]] = {}
    for _ in range(ROUNDS):
        imports.append(_seconds(_IMPORT, checkouts[""], None))
        for (work, place, code, aim), (name, checkout) in product(_WORK, checkouts.items()):
            spent.setdefault((f"{name}{work}, {place}", aim), []).append(_seconds(code, checkout, places[place]))
    base = statistics.median(imports)
    for (name, aim), times in spent.items():
        median = statistics.median(times)
        detail = f"{median * 1000:.0f} ms of processor time; {base * 1000:.0f} for the import"
        yield Result(f"{name} / import pyarrow.parquet", median / base, aim, at_most=True, detail=detail)


def _seconds(code: str, checkout: str, store: Any) -> float:
    """The processor time of a process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _child(code, checkout, store)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _child(code: str, checkout: str, store: Any) -> str:
    environment = {**os.environ, "PYTHONPATH": checkout}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # Else each process would compile all modules.
    arguments = [sys.executable, "-c", code, json.dumps(store)]
    return subprocess.run(
        arguments, env=environment, cwd="/", check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
