"""What a user does with kcat: librdkafka, without a binding between."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.compat.foreign.parsing import short
from tests.compat.kafka_clients.outcomes import Case, Result

_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Kcat:
    """A topic that kcat reads and writes; the first request creates it.

    Attributes:
        addresses: Of the cluster.
        topic: A name of its own for each case.
    """

    addresses: str
    topic: str

    def __call__(self, *options: str, given: str | None = None) -> str:
        """What kcat prints with these options, and this as its input."""
        result = subprocess.run(
            ["kcat", "-b", self.addresses, *options],
            input=given, capture_output=True, text=True, timeout=_SECONDS, check=False,
            stdin=subprocess.DEVNULL if given is None else None,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        return result.stdout

    def produce(self, given: str, *options: str) -> None:
        """Write the lines of a text to the first partition."""
        self("-P", "-t", self.topic, "-p", "0", *options, given=given)

    def consume(self, *options: str) -> list[str]:
        """The lines of all records of the first partition up to its end."""
        return self("-C", "-t", self.topic, "-p", "0", "-e", "-q", *options).splitlines()


def lines_are_read_as_they_were_written(kcat: Kcat) -> None:
    """``-P`` and ``-C``."""
    kcat.produce("apples\npears\nplums\n")
    assert kcat.consume("-o", "beginning") == ["apples", "pears", "plums"]
    assert kcat.consume("-o", "-1") == ["plums"]
    assert kcat.consume("-o", "1", "-c", "1") == ["pears"]


def keys_headers_and_empty_values(kcat: Kcat) -> None:
    """``-K``, ``-H``, ``-Z`` and a format."""
    kcat.produce("ann:apples\nbob:\n", "-K", ":", "-Z", "-H", "origin=here", "-H", "empty=")
    assert kcat.consume("-o", "beginning", "-f", "%p %o %k %S %h\\n") == [
        "0 0 ann 6 origin=here,empty=",
        "0 1 bob -1 origin=here,empty=",
    ]


def records_as_json(kcat: Kcat) -> None:
    """``-J`` shows what the record has."""
    before = int(time.time() * 1000)
    kcat.produce("k:v\n", "-K", ":")
    [line] = kcat.consume("-o", "beginning", "-J")
    record = json.loads(line)
    assert (record["key"], record["payload"], record["offset"]) == ("k", "v", 0)
    assert before - 5000 <= record["ts"] <= int(time.time() * 1000) + 5000


def each_codec(kcat: Kcat) -> None:
    """``-z``: what was compressed is read back."""
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        kcat.produce(f"{codec} {'x' * 2000}\n", "-z", codec)
    assert [line.partition(" ")[0] for line in kcat.consume("-o", "beginning")] == [
        "none", "gzip", "snappy", "lz4", "zstd"
    ]  # fmt: skip


def metadata_of_all_topics_and_of_one(kcat: Kcat) -> None:
    """``-L``."""
    kcat.produce("apples\n")
    assert f'topic "{kcat.topic}" with 4 partitions' in kcat("-L", "-t", kcat.topic)
    everything = json.loads(kcat("-L", "-J"))
    assert kcat.topic in {topic["topic"] for topic in everything["topics"]}
    assert {broker["name"] for broker in everything["brokers"]} <= set(kcat.addresses.split(","))


def offsets_by_timestamp(kcat: Kcat) -> None:
    """``-Q`` and ``-o s@``."""
    kcat.produce("before\n")
    middle = int(time.time() * 1000) + 1
    while time.time() * 1000 < middle:  # Milliseconds are what timestamps have.
        pass
    kcat.produce("after\n")
    assert f"{kcat.topic} [0] offset 0" in kcat("-Q", "-t", f"{kcat.topic}:0:0")
    assert f"{kcat.topic} [0] offset 1" in kcat("-Q", "-t", f"{kcat.topic}:0:{middle}")
    assert f"{kcat.topic} [0] offset 0" in kcat("-Q", "-t", f"{kcat.topic}:0:-2")
    assert f"{kcat.topic} [0] offset 2" in kcat("-Q", "-t", f"{kcat.topic}:0:-1")
    assert kcat.consume("-o", f"s@{middle}") == ["after"]
    assert kcat.consume("-o", "s@0", "-o", f"e@{middle}") == ["before"]


def a_group_goes_on_where_it_stopped(kcat: Kcat) -> None:
    """``-G``: the offsets of the group are committed when it leaves."""
    group = ["-G", f"group-{kcat.topic}", "-q", "-X", "auto.offset.reset=earliest"]
    kcat.produce("one\ntwo\n")
    assert kcat(*group, "-c", "2", kcat.topic).split() == ["one", "two"]
    kcat.produce("three\n")
    assert kcat(*group, "-e", kcat.topic).split() == ["three"]


def a_transaction_is_read_when_it_is_committed(kcat: Kcat) -> None:
    """``-X transactional.id``: all lines of the input are one transaction."""
    for number in range(3):
        kcat.produce(f"{number}-a\n{number}-b\n", "-X", f"transactional.id={kcat.topic}")
    expected = [f"{number}-{letter}" for number in range(3) for letter in "ab"]
    assert kcat.consume("-o", "beginning", "-X", "isolation.level=read_committed") == expected
    # A marker has the offset after each transaction.
    assert kcat.consume("-o", "beginning", "-f", "%o\\n") == ["0", "1", "3", "4", "6", "7"]


def many_records_idempotently(kcat: Kcat) -> None:
    """Numbered lines arrive once, and in their order."""
    numbers = [str(number) for number in range(20_000)]
    kcat.produce("\n".join(numbers) + "\n", "-X", "enable.idempotence=true", "-X", "batch.num.messages=500")
    assert kcat.consume("-o", "beginning") == numbers


CASES: dict[str, Callable[[Kcat], None]] = {
    each.__name__: each
    for each in (
        lines_are_read_as_they_were_written,
        keys_headers_and_empty_values,
        records_as_json,
        each_codec,
        metadata_of_all_topics_and_of_one,
        offsets_by_timestamp,
        a_group_goes_on_where_it_stopped,
        a_transaction_is_read_when_it_is_committed,
        many_records_idempotently,
    )
}


def run(of: str, addresses: str, logs: Path, only: Sequence[str]) -> dict[Case, Result]:
    """Run the cases, each with a topic of its own."""
    results = {}
    with (logs / f"{of}.log").open("w") as log:
        for name, check in CASES.items():
            if only and name not in only:
                continue
            start = time.monotonic()
            try:
                check(Kcat(addresses, f"kcat-{uuid.uuid4().hex[:12]}"))
            except (AssertionError, subprocess.TimeoutExpired) as error:
                log.write(f"{name}: {error}\n")
                results[Case(of, name)] = Result("failed", short(str(error) or type(error).__name__))
            else:
                results[Case(of, name)] = Result("passed", "", time.monotonic() - start)
    return results
