"""Several machines on one: the processes of each have a runtime folder of their own, and meet the others over TCP."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from txnstore.chain.committer.sharing import VARIABLE

#: Addresses of the loopback network: each process has one of its own, by which the nemesis finds it.
_HOSTS = 250


@dataclass(frozen=True)
class Machines:
    """The environments of processes on several machines.

    ``folder``: that of their runtime folders, with a short path, as sockets need.
    """

    folder: str
    count: int
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def environment(self, place: int) -> tuple[str, dict[str, str]]:
        """The host of a new process, and the variables that put it onto a machine, by the number of its place."""
        number = next(self._numbers)
        host = f"127.0.{1 + number // _HOSTS}.{1 + number % _HOSTS}"
        return host, {VARIABLE: f"tcp://{host}", "XDG_RUNTIME_DIR": f"{self.folder}/{place % self.count}"}


@contextmanager
def several_machines(count: int) -> Iterator[Machines]:
    """So many machines, whose runtime folders are deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="machines-", dir="/tmp") as folder:
        yield Machines(folder, count)
