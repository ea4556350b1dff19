"""Counts the files of this repository that a call enters: those that a reader has to open to follow it.

One chain, a store in memory, each call for the second time. Counted in the calling thread; worker threads, which fetch
and decode ahead, add to the second number. ``python -m benchmarks.files_entered [--list poll]`` prints a line per call
with its aim and its limit, or the files of one call; exit code 1 if a call enters more files than its limit.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType

import txnstore
from txnstore import Store
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on

#: The number of files that each call should enter at most in the calling thread.
AIMS = {"send": 6, "commit": 20, "poll": 10, "sql": 14}

#: The number above which the check fails. Only ``send`` has reached its aim. These merges would bring ``commit``
#: closer, and each would break another rule of the structure:
#:
#: - ``chain/keys.py`` with ``chain/codec.py``: two subjects, the names of objects and what is in them.
#: - ``core/log/model.py`` with ``appending.py``: a circle of imports, because ``core/state.py`` imports the values of
#:   the log, and the rules of an append import the state.
#: - ``core/transactions/table.py`` with ``rules.py``: a file of more than 400 lines.
#: - ``storage/counting.py`` with ``base.py``: every backend would import a wrapper that only a connection uses.
#: - ``threads.py`` with ``runtime.py``: a file of more than 400 lines. Its locks, which an interrupt cannot break, are
#:   on every path.
#: - ``storage/recent.py`` with ``counting.py``: one wrapper with two tasks.
#: - ``core/log/batches.py`` with ``model.py``: two subjects, the list and the values in it.
#: - ``chain/turns.py`` with ``pacing.py``: the rule of turns would need storage to be tested.
#:
#: A commit encodes small segments itself, because they are a part of its entry: ``segment/codec.py``,
#: ``segment/schema.py``, ``producer/upload.py`` and ``chain/payload.py``, which were entered by a worker before.
#:
#: ``poll`` checks an argument (``validation.py``) and closes readers of segments (``read/ranged.py``).
#:
#: ``sql`` reads the head of the chain, so it passes ``chain/tail.py``, which is apart from ``log.py`` for its size, and
#: ``chain/ages.py``, which remembers when the head was seen. Both exceptions enter ``chain/identity.py``, which notices
#: that a store was deleted, and all but ``send`` enter ``chain/boundary.py``, which notices that entries were.
LIMITS = {**AIMS, "commit": 34, "poll": 12, "sql": 20}

_ROOT = Path(txnstore.__file__).resolve().parent.parent
_CODE = tuple(_ROOT / name for name in ("txnstore", "catalog", "cli", "compactor"))


@cache
def _in_repository(filename: str) -> str | None:
    """The path of a file of the library inside the repository; None for any other, and for generated code."""
    path = Path(filename).resolve()
    return str(path.relative_to(_ROOT)) if any(path.is_relative_to(folder) for folder in _CODE) else None


@dataclass(slots=True)
class Entered:
    """The number of function calls into each file: from the calling thread, and from all threads."""

    calling: Counter[str] = field(default_factory=Counter)
    everywhere: Counter[str] = field(default_factory=Counter)


class Profile:
    """Counts during a call, in this thread and in threads that start after the profile was created."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._entered: Entered | None = None
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, arg: object) -> None:
        entered = self._entered
        if entered is None or event != "call":
            return
        name = _in_repository(frame.f_code.co_filename)
        if name is not None:
            entered.everywhere[name] += 1
            if threading.get_ident() == self._thread:
                entered.calling[name] += 1

    def during(self, call: Callable[[], object]) -> Entered:
        """Make the call; return the files that it enters."""
        self._entered = found = Entered()
        try:
            call()
        finally:
            self._entered = None
        return found

    def stop(self) -> None:
        """Stop counting."""
        sys.setprofile(None)
        threading.setprofile(None)


def measure() -> dict[str, Entered]:
    """The files that each call enters when it is made for the second time."""
    profile = Profile()
    try:
        with create_on(MemoryStore()) as store:
            store.create_topic("t")
            return dict(_second_calls(profile, store))
    finally:
        profile.stop()


def _second_calls(profile: Profile, store: Store) -> list[tuple[str, Entered]]:
    producer, consumer = store.producer("p"), store.consumer(["t"])
    found: dict[str, Entered] = {}
    for _ in range(2):
        producer.begin_transaction()
        found["send"] = profile.during(lambda: producer.send("t", b"v"))
        found["commit"] = profile.during(producer.commit_transaction)
    for _ in range(2):
        found["poll"] = profile.during(lambda: consumer.poll(max_records=1))
    for _ in range(2):
        found["sql"] = profile.during(lambda: store.sql("select * from t").fetchall())
    return [(name, found[name]) for name in AIMS]


def main() -> int:
    """Print the table, or the files of one call; 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.files_entered")
    parser.add_argument("--list", choices=list(AIMS), help="print the files that this call enters")
    asked = parser.parse_args()
    found = measure()
    if asked.list is not None:
        entered = found[asked.list]
        for name in sorted(entered.everywhere):
            print(f"{entered.calling[name]:5}  {name}{'' if name in entered.calling else '  (workers)'}")
    else:
        print(f"{'call':8}{'files':>6}{'aim':>5}{'limit':>7}{'calls':>7}{'with workers':>14}")
        for name, entered in found.items():
            files, everywhere = len(entered.calling), len(entered.everywhere)
            print(f"{name:8}{files:6}{AIMS[name]:5}{LIMITS[name]:7}{entered.calling.total():7}{everywhere:14}")
    return 1 if any(len(entered.calling) > LIMITS[name] for name, entered in found.items()) else 0


if __name__ == "__main__":
    sys.exit(main())
