"""Many clients send a gateway large and hostile requests at once; its greatest memory is compared with the docs.

``python -m tests.harness memory-gateway``. Each kind of attack runs on a new process, then all of them on one. A run
fails if a process ends, serves no other client afterwards, or has taken more than :data:`MOST`, which
``docs/gateway.md`` gives.
"""

from __future__ import annotations

import argparse
import re
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import txnstore
from tests.helpers.gateway_process import (
    GatewayProcess,
    fetch_fields,
    gateway_process,
    produce_fields,
    record_batch,
    request_frame,
)
from tests.helpers.kafka_frames import FrameWriter
from txnstore.gateway.apis import Api
from txnstore.gateway.frames import MOST_VALUES
from txnstore.gateway.server import MAX_OTHER_BYTES
from txnstore.gateway.wire import PREFIX

#: The memory that the documentation gives a gateway, in bytes.
MOST = 1536 << 20
#: The arrays whose smallest items take most memory once they are decoded, or answered.
_ARRAYS = {
    (Api.LIST_CONFIG_RESOURCES, 1): "resource_types",
    (Api.DELETE_ACLS, 3): "filters",
    (Api.METADATA, 12): "topics",
    (Api.METADATA, 1): "topics",
    (Api.FETCH, 12): "topics.partitions",
    (Api.OFFSET_FETCH, 8): "groups",
    (Api.OFFSET_COMMIT, 9): "topics.partitions",
    (Api.DESCRIBE_CONFIGS, 4): "resources",
    (Api.FIND_COORDINATOR, 4): "coordinator_keys",
    (Api.CREATE_TOPICS, 7): "topics",
}


def _full(api: Api, version: int, target: str) -> bytes:
    """A request of an API with nearly as many of the smallest items in one array as it can have."""
    one, two = (FrameWriter(_counts_of(target, n), _text).write(api, version) for n in (1, 2))
    place = next(place for place in one.places if place.name == target)
    first, size = place.at + place.size, len(two.data) - len(one.data)
    count = min((MAX_OTHER_BYTES - len(one.data)) // size, MOST_VALUES // 10)
    item, rest = one.data[first : first + size], one.data[first + size :]
    data = one.data[: place.at] + place.encoded(count) + item * count + rest
    return PREFIX.pack(len(data)) + data


def _counts_of(target: str, number: int) -> Callable[[str], int]:
    return lambda path: number if path == target else int(target.startswith(path))


def _text(path: str) -> bytes:
    return b"t" if path == "topics.name" else b""


def _send(gateway: GatewayProcess, data: bytes, times: int = 1, *, reads: bool = True) -> None:
    with suppress(OSError, EOFError), gateway.client(60) as client:
        for _ in range(times):
            client.send(data)
        if reads:
            client.receive()
        else:
            threading.Event().wait(10)


def _counts(gateway: GatewayProcess, number: int) -> None:
    pairs = list(_FULL.items())
    _send(gateway, pairs[number % len(pairs)][1])


def _large(gateway: GatewayProcess, _: int) -> None:
    size = 90 << 20
    _send(gateway, struct.pack(">ihhih", size, 0, 3, 1, -1) + b"\0" * (size - 10))


def _partitions(gateway: GatewayProcess, _: int) -> None:
    _send(gateway, _PARTITIONS)


def _bombs(gateway: GatewayProcess, number: int) -> None:
    _send(gateway, request_frame(Api.PRODUCE, 7, produce_fields("t", _BOMBS[number % len(_BOMBS)])))


def _unread(gateway: GatewayProcess, _: int) -> None:
    _send(gateway, request_frame(Api.FETCH, 4, fetch_fields("t", 0)), 4, reads=False)


_FULL = {f"{api.name} {version}": _full(api, version, target) for (api, version), target in _ARRAYS.items()}
_PARTITIONS = request_frame(
    Api.PRODUCE,
    9,
    {"acks": 1, "topic_data": [{"name": "t", "partition_data": [{"index": n, "records": b""} for n in range(20_000)]}]},
)
_BOMBS = [record_batch([b"\0" * 60_000_000], codec=codec) for codec in (1, 4)]
ATTACKS: Mapping[str, Callable[[GatewayProcess, int], None]] = {
    "as many values as a request can have": _counts,
    "requests of 90 MB": _large,
    "20,000 partitions in a request": _partitions,
    "batches that grow to 60 MB": _bombs,
    "responses that are not read": _unread,
}


def greatest_memory(gateway: GatewayProcess) -> int:
    """The most memory that the process has had so far, in bytes."""
    status = Path(f"/proc/{gateway.process.pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


def attack(folder: Path, names: list[str], clients: int) -> tuple[int, int]:
    """The greatest memory of a new gateway before and after so many clients for each attack, all at once."""
    with txnstore.create(folder / "store") as store:
        store.create_topic("t", partitions=2)
        with store.producer() as producer:
            for _ in range(40):
                producer.send("t", value=bytes(900_000), partition=0)
    with gateway_process(folder / "store", folder / "log") as gateway:
        _send(gateway, request_frame(Api.METADATA, 1, {}))
        before = greatest_memory(gateway)
        threads = [
            threading.Thread(target=ATTACKS[name], args=(gateway, number))
            for number in range(clients)
            for name in names
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert gateway.process.poll() is None, "the gateway has ended"
        with gateway.client(60) as client:
            assert client.ask(Api.METADATA, 1, {"topics": [{"name": "t"}]}).topics[0].error_code == 0
        return before, greatest_memory(gateway)


def main() -> int:
    """Run; the status is 1 if a gateway has taken too much."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=20, help="for each attack")
    clients = parser.parse_args().clients
    worst = 0
    for names in [*([name] for name in ATTACKS), list(ATTACKS)]:
        with tempfile.TemporaryDirectory() as folder:
            before, most = attack(Path(folder), names, clients)
        worst = max(worst, most)
        print(f"{names[0] if len(names) == 1 else 'all of them'}: {before >> 20} MB, then {most >> 20} MB", flush=True)
    print(f"the documentation gives a gateway {MOST >> 20} MB")
    return int(worst > MOST)


if __name__ == "__main__":
    sys.exit(main())
