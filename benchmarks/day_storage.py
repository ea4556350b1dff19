"""The folder of a store that lives in virtual time: files have the time of its clock, and requests are counted."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from txnstore.storage.base import ObjectInfo
from txnstore.storage.local import LocalStore

#: The keys of one LIST or DELETE of S3.
_PAGE = 1_000
#: S3's list prices for a request, in dollars; a GB for a month.
PRICES = {"PUT": 5e-6, "LIST": 5e-6, "GET": 0.4e-6, "DELETE": 0.0}
GB_MONTH = 0.023


def kind_of(key: str) -> str:
    """The kind of an object: what the table of the files calls it."""
    parts = key.split("/")
    if parts[0] == "topics":
        return "segments"
    if parts[0] == "chains":
        return next((part for part in parts if part in {"entries", "checkpoints", "boundaries"}), "hint")
    return "other"


class VirtualFolder(LocalStore):
    """A store in a folder that does not outlive the benchmark: nothing is flushed to disk.

    Args:
        root: The path of the folder.
        clock: The time of a file that is written, in milliseconds since the epoch.
    """

    def __init__(self, root: str, clock: Callable[[], int]) -> None:
        super().__init__(root)
        self._clock = clock
        #: The requests by name, as S3 would bill them.
        self.requests: Counter[str] = Counter()
        #: The bytes that were written, by the kind of their objects.
        self.written: Counter[str] = Counter()

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        self.requests["GET"] += 1
        return super().get(key, start, end)

    def put(self, key: str, data: bytes) -> None:
        self._count_put(key, data)
        super().put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._count_put(key, data)
        return super().put_if_absent(key, data)

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        objects = super().list(prefix, start_after, limit)
        self.requests["LIST"] += max(1, -(-len(objects) // _PAGE))
        return objects

    def delete(self, keys: Sequence[str]) -> None:
        self.requests["DELETE"] += -(-len(keys) // _PAGE)
        super().delete(keys)

    def stat(self, key: str) -> ObjectInfo:
        self.requests["GET"] += 1  # A HEAD costs the same.
        return super().stat(key)

    def now_ms(self) -> int:
        self.requests["GET"] += 1
        return self._clock()

    def _count_put(self, key: str, data: bytes) -> None:
        self.requests["PUT"] += 1
        self.written[kind_of(key)] += len(data)

    def _write_temporary(self, path: str, data: bytes) -> str:
        folder = str(Path(path).parent)
        temporary = self._temporary_in(folder)
        descriptor = self._create_in(folder, temporary)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        at = self._clock() * 1_000_000
        os.utime(temporary, ns=(at, at))
        return temporary

    def _sync_name(self, path: str) -> None:
        """Nothing is flushed."""


def dollars(requests: Counter[str]) -> float:
    """What requests cost."""
    return sum(PRICES[name] * count for name, count in requests.items())


def memory_mb(name: str = "VmRSS") -> float:
    """The memory of this process in MB, or its largest one (``VmHWM``): Linux only."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[name].split()[0]) / 1024
