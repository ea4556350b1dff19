"""Sends a gateway frames that are valid, nearly valid, and not valid, and watches it: ``python -m tests.harness
fuzz-gateway``.

A seed determines the frames. For each API and version that the gateway lists, messages are made of kio's types with
values that matter (names that exist, limits of integers, empty and long texts), and changed: bytes flipped, cut out,
inserted, lengths replaced, frames joined; and each length and count of each request claims more than follows, or less
than nothing. A gateway fails if its process ends, an unexpected error is in its log, it
serves no other client, its memory grows without bound, or the answer to an unchanged frame cannot be decoded.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import random
import re
import struct
import sys
import tempfile
import time
import typing
import uuid
from collections import Counter
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

from kio.index import load_request_schema
from kio.serial import entity_writer
from kio.serial.errors import OutOfBoundValue
from kio.static.constants import uuid_zero

import txnstore
from tests.helpers.gateway_process import (
    Client,
    GatewayProcess,
    decode_response,
    gateway_process,
    produce_fields,
    record_batch,
)
from tests.helpers.kafka_frames import FrameWriter, hostile
from txnstore.gateway.apis import VERSIONS, Api
from txnstore.gateway.wire import PREFIX, build

#: The memory that the process may take after it has started, in bytes.
_MOST_GROWTH = 600 << 20
#: The topic of the other client: no frame names it, so none deletes it.
_SERVED = "not-named-by-frames"
#: Seconds to wait for a response; then the connection is left.
_PATIENCE = 0.5
_NAMES = ("t", "u", "", "missing", "__consumer_offsets", "a" * 249, "a" * 300, "é/ä", "\0", "group", "PLAIN")
_INTEGERS = (-2, -1, 0, 1, 2, 3, 5, 10, 127, 1000, 1 << 14, 1 << 20)
_UNEXPECTED = re.compile(r"unexpected error|Traceback|continues after an error", re.IGNORECASE)


@dataclasses.dataclass
class Outcome:
    """What a run has done, and what it has found.

    Attributes:
        frames: The frames that were sent, by what became of each.
        findings: What is wrong with the gateway.
    """

    frames: Counter[str] = dataclasses.field(default_factory=Counter)
    findings: list[str] = dataclasses.field(default_factory=list)


class Messages:
    """Random requests.

    Args:
        rng: The source of all choices.
        topic_id: The id of a topic that exists.
    """

    def __init__(self, rng: random.Random, topic_id: uuid.UUID) -> None:
        self._rng, self._topic_id = rng, topic_id

    def frame(self, api: int, version: int, correlation: int) -> bytes:
        """A request with random fields, with its length."""
        schema: Any = load_request_schema(api, version)
        header: Any = schema.__header_schema__
        values = {"request_api_key": api, "request_api_version": version, "correlation_id": correlation}
        buffer = BytesIO()
        entity_writer(header)(buffer, build(header, {**values, "client_id": "fuzz"}))
        entity_writer(schema)(buffer, self._message(schema, api))
        data = buffer.getvalue()
        return PREFIX.pack(len(data)) + data

    def _message(self, schema: Any, api: int) -> Any:
        return schema(**{name: self._value(hint, name, api) for name, hint in _fields(schema)})

    def _value(self, hint: Any, name: str, api: int) -> Any:
        rng, arguments = self._rng, typing.get_args(hint)
        if type(None) in arguments:
            (inner,) = (each for each in arguments if each is not type(None))
            return None if rng.random() < 0.2 else self._value(inner, name, api)
        if typing.get_origin(hint) is tuple:
            return tuple(self._value(arguments[0], name, api) for _ in range(rng.choice((0, 1, 1, 1, 2, 5))))
        if dataclasses.is_dataclass(hint):
            return self._message(hint, api)
        return self._plain(hint, name, api)

    def _plain(self, hint: Any, name: str, api: int) -> Any:
        rng, kind = self._rng, getattr(hint, "__name__", "")
        if hint is bool:
            return rng.random() < 0.5
        if isinstance(hint, type) and issubclass(hint, str):
            return "t" if "topic" in name and rng.random() < 0.5 else rng.choice(_NAMES)
        if hint is bytes or kind == "Records":
            return self._bytes(api)
        if hint is uuid.UUID or kind == "UUID":
            return rng.choice((self._topic_id, uuid_zero, uuid.UUID(int=rng.getrandbits(128))))
        if kind.endswith("Timedelta"):
            return dt.timedelta(milliseconds=rng.choice((0, 0, 1, 10, 100, 30_000) if api != Api.FETCH else (0, 1, 50)))
        if kind == "TZAware":
            return dt.datetime.fromtimestamp(rng.choice((0, 1_700_000_000)), dt.UTC)
        if isinstance(hint, type) and issubclass(hint, float):
            return rng.choice((0.0, 1.5, -1.0))
        return self._integer(hint, name)

    def _integer(self, hint: Any, name: str) -> Any:
        rng = self._rng
        if name in {"partition", "index", "partition_index"} and rng.random() < 0.6:
            return hint(0)
        size = {"i8": 7, "i16": 15, "i32": 31, "i64": 63}.get(getattr(hint, "__name__", ""), 31)
        number = rng.choice((*_INTEGERS, (1 << size) - 1, -(1 << size)))
        try:
            return hint(number)
        except (ValueError, TypeError):  # The type is narrower.
            return hint(1)

    def _bytes(self, api: int) -> bytes:
        rng = self._rng
        if api != Api.PRODUCE or rng.random() < 0.1:
            return rng.randbytes(rng.choice((0, 1, 20, 300)))
        values = [rng.randbytes(rng.choice((0, 10, 200))) for _ in range(rng.randrange(1, 4))]
        producer = (rng.choice((-1, -1, 1, 2)), rng.choice((-1, 0, 1)), rng.choice((-1, 0, 1, 3)))
        batch = bytearray(record_batch(values, producer=producer))
        if rng.random() < 0.3:
            batch[rng.randrange(len(batch))] ^= 1 << rng.randrange(8)
        return bytes(batch)


@cache
def _fields(schema: type) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(schema)
    return tuple((field.name, hints[field.name]) for field in dataclasses.fields(schema))


def changed(rng: random.Random, frame: bytes, other: bytes) -> bytes:
    """A frame with a few faults. Its length is mostly right, so that what follows is looked at."""
    data = bytearray(frame[4:])
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(data)) if data else 0
        match rng.randrange(6):
            case 0 if data:
                data[at] ^= 1 << rng.randrange(8)
            case 1 if data:
                data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del data[at:]
            case 3:
                data[at:at] = rng.randbytes(rng.randrange(1, 8))
            case 4:
                data[at : at + 4] = struct.pack(">i", rng.choice((-(2**31), -1, 0, 1 << 16, 2**31 - 1)))
            case 5:
                data[at:] = other[4 + at :]
    size = len(data) if rng.random() < 0.9 else rng.choice((0, -1, 2**31 - 1, len(data) + 5, max(len(data) - 5, 0)))
    return PREFIX.pack(size) + bytes(data)


def claiming(rng: random.Random, api: int, version: int) -> list[tuple[str, bytes]]:
    """A request for each of its lengths and counts, in which that one is a number that the frame does not hold."""
    written = FrameWriter(lambda _: rng.choice((1, 2)), has_entities=rng.random() < 0.5).write(api, version)
    numbers = list(hostile(written))
    rng.shuffle(numbers)
    return [
        (f"{place.name} of {number}", PREFIX.pack(len(data)) + data)
        for place, number in dict(numbers).items()
        for data in [written.replaced(place, number)]
    ]


def _claim(gateway: GatewayProcess, outcome: Outcome, name: str, frame: bytes) -> None:
    with gateway.client() as client:
        try:
            client.send(frame)
            answer = client.receive()
        except (EOFError, ConnectionError):
            outcome.frames["refused"] += 1
            return
        outcome.findings.append(f"{name} is answered: {answer[:200]!r}")


def fuzz(gateway: GatewayProcess, seed: int, goes_on: Callable[[], bool], topic_id: uuid.UUID) -> Outcome:
    """Send frames until ``goes_on`` says no, at least once for each API and version."""
    rng, outcome = random.Random(seed), Outcome()
    messages = Messages(rng, topic_id)
    with gateway.client() as client:
        listed = client.ask(Api.API_VERSIONS, 3, {}).api_keys
    ranges = {api.api_key: VERSIONS[Api(api.api_key)] for api in listed}
    targets = [(api, version) for api, (first, last) in ranges.items() for version in range(first, last + 1)]
    first_memory, turn = gateway.resident_bytes, list(targets)
    rng.shuffle(turn)
    correlation = 0
    while (turn or goes_on()) and gateway.process.poll() is None:
        correlation += 1
        api, version = turn.pop() if turn else rng.choice(targets)
        claims = claiming(rng, api, version)
        frame = messages.frame(api, version, correlation)
        try:
            for name, claim in claims if correlation <= len(targets) else claims[:1]:
                _claim(gateway, outcome, f"API {api}, version {version}: {name}", claim)
            _send(gateway, rng, outcome, (api, version, correlation), frame, messages.frame(*rng.choice(targets), 0))
        except OSError as error:
            if gateway.process.poll() is None:
                outcome.findings.append(f"API {api}, version {version}: no connection: {error!r}")
                break
        if correlation % 200 == 0:
            _look(gateway, outcome, first_memory)
        if outcome.findings:
            break
    _look(gateway, outcome, first_memory)
    return outcome


def _send(
    gateway: GatewayProcess,
    rng: random.Random,
    outcome: Outcome,
    target: tuple[int, int, int],
    frame: bytes,
    other: bytes,
) -> None:
    api, version, correlation = target
    is_changed = rng.random() < 0.6
    with gateway.client(_PATIENCE) as client:
        data = changed(rng, frame, other) if is_changed else frame
        try:
            client.send(data + other if is_changed and rng.random() < 0.1 else data)
        except (ConnectionError, TimeoutError):
            outcome.frames["closed"] += 1
            return
        if rng.random() < 0.1:
            client.reset()
            outcome.frames["left"] += 1
            return
        _receive(client, outcome, (api, version, correlation), is_changed=is_changed)


def _receive(client: Client, outcome: Outcome, target: tuple[int, int, int], *, is_changed: bool) -> None:
    api, version, correlation = target
    try:
        answer = client.receive()
    except TimeoutError:
        outcome.frames["no answer"] += 1  # acks=0, a join that waits, or a frame that continues.
        return
    except (EOFError, ConnectionError):
        outcome.frames["closed"] += 1
        return
    outcome.frames["answered"] += 1
    if is_changed:
        return
    outcome.frames["decoded"] += 1
    try:
        received, _ = decode_response(api, version, answer)
    except OutOfBoundValue as error:  # kio does not read -1, which Kafka has for a transaction that has not begun.
        if api != Api.DESCRIBE_TRANSACTIONS:
            outcome.findings.append(f"API {api}, version {version}: a value is out of range: {error!r}")
        return
    except Exception as error:  # noqa: BLE001 - Whatever it is, it is a finding.
        outcome.findings.append(
            f"API {api}, version {version}: the response cannot be decoded: {error!r}: {answer[:200]!r}"
        )
        return
    if received != correlation:
        outcome.findings.append(f"API {api}, version {version}: a response with another correlation id")


def _look(gateway: GatewayProcess, outcome: Outcome, first_memory: int) -> None:
    if (status := gateway.process.poll()) is not None:
        outcome.findings.append(f"the gateway has ended with status {status}")
        return
    lines = gateway.log_lines()
    for number, line in enumerate(lines):
        if _UNEXPECTED.search(line):
            outcome.findings.append("\n".join(lines[number : number + 60]))
            break
    growth = gateway.resident_bytes - first_memory
    if growth > _MOST_GROWTH:
        outcome.findings.append(f"the gateway has taken {growth >> 20} MB more")
    try:
        with gateway.client() as client:
            response = client.ask(Api.PRODUCE, 7, produce_fields(_SERVED, record_batch([b"served"])))
        code = response.responses[0].partition_responses[0].error_code
        if code != 0:
            outcome.findings.append(f"another client gets the code {code!r}")
    except (OSError, EOFError) as error:
        outcome.findings.append(f"another client is not served: {error!r}")


def run(folder: Path, seed: int, goes_on: Callable[[], bool]) -> Outcome:
    """Fuzz a new gateway on a new store in a folder."""
    with txnstore.create(folder / "store") as store:
        store.create_topic("t", partitions=2)
        store.create_topic("u", partitions=1)
        store.create_topic(_SERVED)
    with gateway_process(folder / "store", folder / "log") as gateway:
        with gateway.client() as client:
            topics = client.ask(Api.METADATA, 12, {"topics": None}).topics
        outcome = fuzz(gateway, seed, goes_on, next(topic.topic_id for topic in topics if topic.name == "t"))
        if gateway.process.poll() is None and (status := gateway.stop()) != 0:
            outcome.findings.append(f"the gateway has ended with status {status} after SIGTERM")
    return outcome


def main() -> int:
    """Run for ``--seconds``; the status is 1 if anything is found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.seconds
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(Path(folder), arguments.seed, lambda: time.monotonic() < until)
    print(f"seed {arguments.seed}: {outcome.frames.total()} outcomes: {dict(outcome.frames)}")
    for finding in outcome.findings:
        print(finding)
    return bool(outcome.findings)


if __name__ == "__main__":
    sys.exit(main())
