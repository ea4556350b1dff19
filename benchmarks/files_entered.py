"""How many files of this repository a call enters, in all threads: what a reader has to open to follow it.

One chain, a store in memory, each call for the second time. ``python -m benchmarks.files_entered [--list poll]`` prints
a line per call, or the files of one; exit code 1 if a call enters more files than its limit.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import txnstore
from txnstore import Consumer, Producer, Store
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on

#: The most files that each call may enter.
LIMITS = {"send": 6, "commit": 20, "poll": 10, "sql": 14}

_REPOSITORY = Path(txnstore.__file__).resolve().parent.parent
_CODE = tuple(str(_REPOSITORY / folder) + "/" for folder in ("txnstore", "catalog", "cli", "compactor"))


class Entered:
    """Counts the calls of functions by file while it is on, in this thread and in those that start after it was made.

    Code that a class definition or a decorator generates has no file and is not counted.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._on = False
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, arg: object) -> None:
        if self._on and event == "call":
            name = str(Path(frame.f_code.co_filename).resolve())
            if name.startswith(_CODE):
                self.calls[str(Path(name).relative_to(_REPOSITORY))] += 1

    def during(self, call: Callable[[], object]) -> Counter[str]:
        """The calls by file while ``call`` runs."""
        self.calls = Counter()
        self._on = True
        try:
            call()
        finally:
            self._on = False
        return self.calls

    def stop(self) -> None:
        """Measure no more."""
        sys.setprofile(None)
        threading.setprofile(None)


def measure() -> dict[str, Counter[str]]:
    """The files that each call enters, with how many calls of functions go there."""
    entered = Entered()
    try:
        with create_on(MemoryStore()) as store:
            store.create_topic("t")
            found = _calls(store)
            return {name: [entered.during(call) for call in (found[name], found[name])][1] for name in LIMITS}
    finally:
        entered.stop()


def _calls(store: Store) -> dict[str, Callable[[], Any]]:
    producer: Producer = store.producer("p")
    consumer: Consumer = store.consumer(["t"])
    producer.begin_transaction()

    def commit() -> None:
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send("t", b"v")

    def poll() -> None:
        assert len(consumer.poll(max_records=1)) == 1

    return {
        "send": lambda: producer.send("t", b"v"),
        "commit": commit,
        "poll": poll,
        "sql": lambda: store.sql("select count(*) from t").fetchall(),
    }


def main() -> int:
    """Print the table, or the files of one call; 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.files_entered", description=__doc__)
    parser.add_argument("--list", choices=list(LIMITS), help="print the files that this call enters")
    asked = parser.parse_args()
    found = measure()
    if asked.list is not None:
        for name, calls in sorted(found[asked.list].items()):
            print(f"{calls:5}  {name}")
    else:
        print(f"{'call':8}{'files':>6}{'limit':>6}{'calls':>7}")
        for name, files in found.items():
            print(f"{name:8}{len(files):6}{LIMITS[name]:6}{files.total():7}")
    return 1 if any(len(files) > LIMITS[name] for name, files in found.items()) else 0


if __name__ == "__main__":
    sys.exit(main())
