"""Kafka Streams: a word count with ``exactly_once_v2`` that is killed, and continues without its local state."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial

import txnstore
from tests.compat.kafka_programs.place import Place, Running, UnexpectedError

_LINES = 1_000
_WORDS = [f"word{number}" for number in range(40)]


def word_count(place: Place) -> str:
    """Each count from 1 to that of the word is in the output once, though the program was killed twice."""
    place.topic("lines", 3)
    place.topic("counts", 2)
    draw = random.Random(7)
    lines = [" ".join(draw.choices(_WORDS, k=3)) for _ in range(_LINES)]
    expected = Counter(word for line in lines for word in line.split())
    total = expected.total()
    half, last = _LINES // 2, _LINES * 4 // 5
    place.run(
        "ConsoleProducer", "--bootstrap-server", place.bootstrap, "--topic", "lines", text="\n".join(lines[:half])
    )
    seen = [0]
    for threads, more in [(1, lines[half:last]), (2, lines[last:])]:
        with _program(place, threads) as running:
            running.wait_until(partial(_has_counts, place, seen[-1] + 1), "further counts")
            _send(place, more)  # So that it cannot be done before it is killed.
            running.kill()
        seen.append(place.count("counts"))
    if seen[-1] == total:
        msg = "the program was not killed before its end"
        raise UnexpectedError(msg)
    with _program(place, 2) as running:
        running.wait_until(partial(_has_counts, place, total), f"{total} counts")
        running.terminate()
    _check(place, expected)
    return f"{total} counts of {len(expected)} words; killed after {', '.join(map(str, seen[1:]))}"


def _program(place: Place, threads: int) -> AbstractContextManager[Running]:
    folder = place.folder / "state"
    shutil.rmtree(folder, ignore_errors=True)  # So the counts come from the changelog.
    return place.program("harness.WordCount", place.bootstrap, str(folder), str(threads))


def _send(place: Place, lines: Sequence[str]) -> None:
    with txnstore.open(place.url) as store, store.producer() as producer:
        for line in lines:
            producer.send("lines", value=line.encode())


def _has_counts(place: Place, least: int) -> bool:
    return place.count("counts") >= least


def _check(place: Place, expected: Counter[str]) -> None:
    with txnstore.open(place.url) as store:
        table = store.scan("counts").to_table().sort_by([("_partition", "ascending"), ("_offset", "ascending")])
        changes = store.scan("word-count-counted-changelog").to_table()
        changes = changes.sort_by([("_partition", "ascending"), ("_offset", "ascending")])
    counts: dict[str, list[int]] = {}
    for row in table.to_pylist():
        counts.setdefault(row["key"].decode(), []).append(int(row["value"]))
    if counts != {word: list(range(1, number + 1)) for word, number in expected.items()}:
        msg = f"the counts are not those of {expected}: {counts}"
        raise UnexpectedError(msg)
    state = {row["key"].decode(): int.from_bytes(row["value"][-8:], "big") for row in changes.to_pylist()}
    if state != dict(expected):
        msg = f"the changelog has {state}, not {expected}"
        raise UnexpectedError(msg)
