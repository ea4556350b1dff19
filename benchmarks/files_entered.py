"""Counts the files of this repository that a call enters: those that a reader has to open to follow it.

One chain, a store in memory, each call for the second time. Counted in the calling thread; worker threads, which fetch
and decode ahead, add to the second number. ``python -m benchmarks.files_entered [--list poll]`` prints a line per call,
or the files of one call. A report, without an aim: a file ends where its subject ends.
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

CALLS = ("send", "commit", "poll", "sql")

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
        self._entered = entered = Entered()
        try:
            call()
        finally:
            self._entered = None
        return entered

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
    entered: dict[str, Entered] = {}
    for _ in range(2):
        producer.begin_transaction()
        entered["send"] = profile.during(lambda: producer.send("t", b"v"))
        entered["commit"] = profile.during(producer.commit_transaction)
    for _ in range(2):
        entered["poll"] = profile.during(lambda: consumer.poll(max_records=1))
    for _ in range(2):
        entered["sql"] = profile.during(lambda: store.sql("select * from t").fetchall())
    return [(name, entered[name]) for name in CALLS]


def main() -> None:
    """Print the table, or the files of one call."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.files_entered")
    parser.add_argument("--list", choices=CALLS, help="print the files that this call enters")
    arguments = parser.parse_args()
    entered_by_call = measure()
    if arguments.list is not None:
        entered = entered_by_call[arguments.list]
        for name in sorted(entered.everywhere):
            print(f"{entered.calling[name]:5}  {name}{'' if name in entered.calling else '  (workers)'}")
    else:
        print(f"{'call':8}{'files':>6}{'calls':>7}{'with workers':>14}")
        for name, entered in entered_by_call.items():
            files, everywhere = len(entered.calling), len(entered.everywhere)
            print(f"{name:8}{files:6}{entered.calling.total():7}{everywhere:14}")


if __name__ == "__main__":
    main()
