"""Several processes that serve one address: a parent starts them, restarts those that die, and ends them all.

Each worker is a gateway with an address of its own, as those of several machines are, and listens at the common
address, too. So clients find any of them there, and then the one that leads what they ask for.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from typing import NamedTuple

from txnstore.errors import TxnStoreError
from txnstore.gateway.metrics import MetricsServer

_LOG = logging.getLogger(__name__)

#: Seconds before a worker that has died is started again, and for the metrics of a worker.
_PAUSE, _METRICS_TIMEOUT = 1.0, 2.0
#: What goes through the pipe of a worker: it serves; the parent asks for metrics. Any other text is that of metrics.
_READY, _METRICS = "ready", "metrics"
#: A sample of Prometheus: its name, its labels and its value.
_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? (.*)")


class WorkerError(TxnStoreError):
    """A worker cannot serve."""


@dataclass(frozen=True, slots=True)
class Siblings:
    """What a worker knows of its machine.

    Attributes:
        count: The workers of each machine, this one included.
        shared: The socket at the common address, bound, on which it listens beside its own.
        local: Where this machine reaches each of its workers, by the address that clients connect to.
        pipe: The connection to the parent.
    """

    count: int
    shared: socket.socket
    local: Mapping[tuple[str, int], tuple[str, int]]
    pipe: Pipe

    def attach(self, stop: Callable[[], None], metrics: Callable[[], str]) -> None:
        """Tell the parent that this worker serves, answer its questions, and stop when it has ended."""
        loop = asyncio.get_running_loop()

        def answer() -> None:
            try:
                self.pipe.recv()
                self.pipe.send(metrics())
            except (EOFError, OSError):
                loop.remove_reader(self.pipe.fileno())
                stop()

        loop.add_reader(self.pipe.fileno(), answer)
        with suppress(OSError):  # The parent has ended: the reader notices it.
            self.pipe.send(_READY)


class Started(NamedTuple):
    """A worker that was started."""

    process: BaseProcess
    pipe: Pipe


class _Worker:
    """A worker, as its parent sees it."""

    def __init__(self, started: Started) -> None:
        self.process, self._pipe = started
        self._loop = asyncio.get_running_loop()
        #: Whether it serves; False: it has ended before.
        self.is_serving: asyncio.Future[bool] = self._loop.create_future()
        #: Its exit status.
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._metrics: asyncio.Future[str] | None = None
        self._loop.add_reader(self.process.sentinel, self._on_end)
        self._loop.add_reader(self._pipe.fileno(), self._on_message)

    def _on_message(self) -> None:
        """Take a message of the worker: that it serves, or its metrics."""
        try:
            message = self._pipe.recv()
        except (EOFError, OSError):
            self._loop.remove_reader(self._pipe.fileno())
            return
        if message == _READY:
            self.is_serving.set_result(True)
        elif self._metrics is not None and not self._metrics.done():
            self._metrics.set_result(message)

    def _on_end(self) -> None:
        self._loop.remove_reader(self.process.sentinel)
        self._loop.remove_reader(self._pipe.fileno())
        self.process.join()
        self._pipe.close()
        if not self.is_serving.done():
            self.is_serving.set_result(False)
        self.ended.set_result(self.process.exitcode or 0)

    async def metrics(self) -> str:
        """Its metrics; empty if it does not answer in time."""
        if self.ended.done() or not self.is_serving.done():
            return ""
        if self._metrics is None or self._metrics.done():
            self._metrics = self._loop.create_future()
            try:
                self._pipe.send(_METRICS)
            except OSError:
                return ""
        try:
            async with asyncio.timeout(_METRICS_TIMEOUT):
                return await asyncio.shield(self._metrics)
        except TimeoutError:
            return ""


class Workers:
    """The workers of a machine.

    Args:
        start: Starts the worker of a number.
        count: How many there are.
        grace: Seconds within which they end; then they are killed.
        reloads: Whether they have files that are read again at SIGHUP.
    """

    def __init__(self, start: Callable[[int], Started], count: int, grace: float, *, reloads: bool = False) -> None:
        self._start, self._count, self._grace, self._reloads = start, count, grace, reloads
        #: How often a worker was started again.
        self._restarts = 0
        #: The newest process of each number.
        self._workers: dict[int, _Worker] = {}
        self._stopping = asyncio.Event()

    async def run(
        self,
        on_ready: Callable[[], None],
        metrics_listener: socket.socket | None = None,
        own_metrics: Callable[[int, int], str] = lambda _serving, _restarts: "",
        own_problem: Callable[[], str] = str,
    ) -> None:
        """Keep the workers until SIGTERM or SIGINT; a second one kills them.

        Args:
            on_ready: Called when all of them serve.
            metrics_listener: Where the metrics of all are served, each sample with the label ``worker``.
            own_metrics: Makes the text of the metrics of the parent.
            own_problem: Returns why the parent is not healthy; an empty text if it is.

        Raises:
            WorkerError: One of them has ended before it served for the first time. The others are ended.
        """
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()

        def stop() -> None:
            if stopped.is_set():
                self._signal_all("kill")
            stopped.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        if self._reloads:
            loop.add_signal_handler(signal.SIGHUP, self._reload)
        server = None
        if metrics_listener is not None:
            server = MetricsServer(lambda: self._all_metrics(own_metrics), partial(self._problem, own_problem))
            await server.listen(metrics_listener)
        serving = [asyncio.Event() for _ in range(self._count)]
        keepers = [loop.create_task(self._keep(number, event)) for number, event in enumerate(serving)]
        ready = loop.create_task(self._when_ready(serving, on_ready))
        waiting = loop.create_task(stopped.wait())
        try:
            done, _ = await asyncio.wait({waiting, *keepers}, return_when=asyncio.FIRST_COMPLETED)
            for keeper in done - {waiting}:
                keeper.result()
        finally:
            ready.cancel()
            waiting.cancel()
            await self._end(keepers)
            if server is not None:
                server.close()

    async def _when_ready(self, serving: Iterable[asyncio.Event], on_ready: Callable[[], None]) -> None:
        for event in serving:
            await event.wait()
        on_ready()

    async def _keep(self, number: int, serving: asyncio.Event) -> None:
        """Start a worker, again and again."""
        while not self._stopping.is_set():
            worker = self._workers[number] = _Worker(self._start(number))
            # Shielded: the end of this task must not make it look as if the worker had ended.
            if await asyncio.shield(worker.is_serving):
                serving.set()
            status = await asyncio.shield(worker.ended)
            if self._stopping.is_set():
                return
            if not serving.is_set():  # Later what it needs may be away for a while, and the others serve on.
                msg = f"worker {number} has ended with status {status} before it served; the log says why"
                raise WorkerError(msg)
            _LOG.error("a worker has died, and is started again", extra={"worker": number, "status": status})
            await asyncio.sleep(_PAUSE)
            self._restarts += 1

    async def _end(self, keepers: Iterable[asyncio.Task[None]]) -> None:
        """End all workers; kill those that take too long."""
        self._stopping.set()
        for keeper in keepers:
            keeper.cancel()
        self._signal_all("terminate")
        ends = {worker.ended for worker in self._workers.values() if not worker.ended.done()}
        if ends:
            _, late = await asyncio.wait(ends, timeout=self._grace)
            if late:
                self._signal_all("kill")
                await asyncio.wait(late)

    def _problem(self, own_problem: Callable[[], str]) -> str:
        """Which workers do not serve, and what else is wrong; empty if nothing is."""
        missing = [
            number
            for number in range(self._count)
            if (worker := self._workers.get(number)) is None or not worker.is_serving.done() or worker.ended.done()
        ]
        text = f"workers that do not serve: {', '.join(map(str, missing))}" if missing else ""
        return "; ".join(filter(None, (text, own_problem())))

    def _reload(self) -> None:
        for worker in self._workers.values():
            pid = worker.process.pid
            if worker.is_serving.done() and not worker.ended.done() and pid is not None:
                os.kill(pid, signal.SIGHUP)

    def _signal_all(self, name: str) -> None:
        for worker in self._workers.values():
            if not worker.ended.done():
                getattr(worker.process, name)()

    async def _all_metrics(self, own_metrics: Callable[[int, int], str]) -> str:
        """The metrics of the parent and of all workers that answer."""
        numbers = sorted(self._workers)
        texts = await asyncio.gather(*(self._workers[number].metrics() for number in numbers))
        answered = {number: text for number, text in zip(numbers, texts, strict=True) if text}
        return own_metrics(len(answered), self._restarts) + merged_metrics(answered)


def merged_metrics(texts: Mapping[int, str]) -> str:
    """Merge texts of Prometheus, by worker: each family once, each sample with the label ``worker``."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    for number, text in texts.items():
        heads, samples = list[str](), list[str]()
        for line in text.splitlines():
            if line.startswith("# HELP "):
                heads, samples = families.setdefault(line.split(" ", 3)[2], ([], []))
            if line.startswith("#"):
                if line not in heads:
                    heads.append(line)
            elif match := _SAMPLE.fullmatch(line):
                name, labels, value = match.groups()
                samples.append(f'{name}{{{labels + "," if labels else ""}worker="{number}"}} {value}')
    return "".join(f"{line}\n" for heads, samples in families.values() for line in (*heads, *samples))
