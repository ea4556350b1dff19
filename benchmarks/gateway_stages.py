"""A gateway that measures the processor time of its stages: ``python -m benchmarks.gateway_stages FILE gateway …``.

The functions that begin a stage are wrapped; a stage has the processor time of its thread without that of stages within
it. At SIGUSR1 the process writes the seconds of each stage since its start to the file, as JSON. What no stage has is
the event loop, the sockets and what runs between stages.
"""

from __future__ import annotations

import functools
import json
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from importlib import import_module
from pathlib import Path
from typing import Any

#: The stages: of each the functions that begin it, in the module or class that looks them up.
STAGES = {
    "receive": ("stream.Stream.buffer_updated", "stream.Stream.read", "server._Connection._read_frame"),
    "check and decode the frame": ("server.check_frame", "server.read_request"),
    "check the batch": ("produce.check_produced",),
    "stage it: rights, topic, producer": ("produce.Produce.produce",),
    "decompress": ("records.columns._decompress",),
    "find the records": ("records.columns._find_records",),
    "fields to Arrow": ("produce.to_table",),
    "encode the segment": ("produce.encode_rows",),
    "SHA-256 and checksums of blocks": ("txnstore.segment.sink.SegmentSink.write", "txnstore.segment.codec.hashlib"),
    "write the segment": ("produce.deliver",),
    "entry": ("txnstore.connection.Connection.submit_all",),
    "keep the batch": ("produce.Produce._keep_hot",),
    "answer": ("produce.Produce._response_fields", "server.write_response", "server._Connection._send_ready"),
    "find the batches": ("fetch._next_slices", "fetch.Fetch._records", "cold.ColdBatches.read"),
    "read and check the segments": ("cold.open_slice", "txnstore.read.reader.RangedObject.fetch"),
    "Parquet to Arrow": ("cold.read_together", "txnstore.read.reader.OpenSlice.read"),
    "encode the batches": ("cold._encode_batches",),
    "the rest of a flush": ("produce.Produce._prepare",),
}


class Stages:
    """The processor time of stages, by thread."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._threads: list[Counter[str]] = []

    def seconds(self) -> Counter[str]:
        """The seconds of each stage."""
        return sum(self._threads, Counter[str]())

    def timed(self, stage: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, whose processor time counts for a stage."""
        local, clock = self._local, time.thread_time

        @functools.wraps(call)
        def run(*args: Any, **options: Any) -> Any:
            if not hasattr(local, "seconds"):
                local.seconds, local.within = Counter(), 0.0
                self._threads.append(local.seconds)
            outer, local.within, began = local.within, 0.0, clock()
            try:
                return call(*args, **options)
            finally:
                took = clock() - began
                local.seconds[stage] += took - local.within
                local.within = outer + took

        return run

    def timed_coroutine(self, stage: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same coroutine function, whose steps count for a stage."""

        @functools.wraps(call)
        async def run(*args: Any, **options: Any) -> Any:
            return await _Steps(self, stage, call(*args, **options))

        return run


class _Steps(Awaitable[Any]):
    """A coroutine whose steps count for a stage."""

    def __init__(self, stages: Stages, stage: str, coroutine: Any) -> None:
        self._send, self._throw = stages.timed(stage, coroutine.send), stages.timed(stage, coroutine.throw)

    def __await__(self) -> Generator[Any, Any, Any]:
        step, value = self._send, None
        while True:
            try:
                waited = step(value)
            except StopIteration as end:
                return end.value
            try:
                step, value = self._send, (yield waited)
            except BaseException as error:  # noqa: BLE001 - The coroutine gets it.
                step, value = self._throw, error


class _TimedHashes:
    """``hashlib`` for a module that hashes a whole segment."""

    def __init__(self, stages: Stages, stage: str, hashlib: Any) -> None:
        self.sha256 = stages.timed(stage, hashlib.sha256)


def wrap(stages: Stages) -> None:
    """Wrap the functions of all stages."""
    for stage, places in STAGES.items():
        for place in places:
            path = place if place.startswith("txnstore.") else f"txnstore.gateway.{place}"
            owner, name = _owner(path)
            call = getattr(owner, name)
            if name == "hashlib":
                setattr(owner, name, _TimedHashes(stages, stage, call))
            elif _is_coroutine_function(call):
                setattr(owner, name, stages.timed_coroutine(stage, call))
            else:
                setattr(owner, name, stages.timed(stage, call))


def _is_coroutine_function(call: Any) -> bool:
    import inspect

    return inspect.iscoroutinefunction(call)


def _owner(path: str) -> tuple[Any, str]:
    """The module or class that has a name, and the name."""
    parts = path.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            owner: Any = import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        return functools.reduce(getattr, parts[count:-1], owner), parts[-1]
    raise ModuleNotFoundError(path)


def main(path: str, *arguments: str) -> None:
    """Run a command of txnstore, and write its stages when asked."""
    from txnstore.cli import main as run

    stages = Stages()
    wrap(stages)

    def write(*_: object) -> None:
        new = Path(f"{path}.new")
        new.write_text(json.dumps(stages.seconds()))
        new.replace(path)

    signal.signal(signal.SIGUSR1, write)
    sys.argv[1:] = arguments
    sys.exit(run())


if __name__ == "__main__":
    main(*sys.argv[1:])
