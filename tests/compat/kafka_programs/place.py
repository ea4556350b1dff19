"""Where a step runs: gateways that serve a store, a folder, and Java programs that are started in it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import txnstore
from tests.compat.broker.cluster import SHORT_LIVED, free_ports

_ROOT = Path(__file__).parents[3]
_PROPERTIES = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.heartbeat.interval.ms": "500",
    "auto.create.topics.enable": "false",
}
#: How long a program, or an event, may take on a busy machine.
PATIENCE = 300.0


class UnexpectedError(Exception):
    """A program did something else than it should."""


@dataclass(frozen=True)
class Jars:
    """Folders with jars and classes.

    Attributes:
        kafka: Kafka's tools, Streams and Connect.
        classes: The compiled classes of ``java``.
        spark: Spark's source and sink for Kafka.
    """

    kafka: Path
    classes: Path
    spark: Path

    @property
    def class_path(self) -> str:
        """The class path of a program."""
        return f"{self.classes}:{self.kafka}/*"


@dataclass(frozen=True)
class Place:
    """Where a step runs.

    Attributes:
        url: The store.
        bootstrap: The addresses of the gateways, as clients write them.
        brokers: How many gateways there are.
        folder: For files of the step.
        jars: The programs.
    """

    url: str
    bootstrap: str
    brokers: int
    folder: Path
    jars: Jars

    def run(
        self,
        program: str,
        *arguments: str,
        status: int = 0,
        text: str = "",
        seconds: float = PATIENCE,
        contains: str = "",
    ) -> str:
        """What a program prints, with its errors.

        Args:
            program: Its class, under ``org.apache.kafka.tools`` unless the name has a package.
            arguments: What it gets.
            status: The exit status that it must have.
            text: Its standard input.
            seconds: How long it may take.
            contains: What its output must contain.

        Raises:
            UnexpectedError: It ended otherwise.
        """
        done = subprocess.run(
            self.command(program, *arguments),
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=seconds,
            cwd=self.folder,
        )
        if done.returncode != status or contains not in done.stdout:
            wanted = f"status {status} and {contains!r}"
            msg = f"{program} {' '.join(arguments)}: status {done.returncode}, not {wanted}: {done.stdout}"
            raise UnexpectedError(msg)
        return done.stdout

    def tool(self, program: str, *arguments: str, status: int = 0, text: str = "", contains: str = "") -> str:
        """:meth:`run` with ``--bootstrap-server``."""
        return self.run(
            program, "--bootstrap-server", self.bootstrap, *arguments, status=status, text=text, contains=contains
        )

    @contextmanager
    def program(self, program: str, *arguments: str) -> Iterator[Running]:
        """A program that runs in the block, and is killed at its end."""
        log = self.folder / f"{program.rpartition('.')[2]}-{time.time_ns()}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command(program, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
            )
        try:
            yield Running(process, log)
        finally:
            process.kill()
            process.wait()

    def command(self, program: str, *arguments: str) -> list[str]:
        """The command line of a program."""
        name = program if "." in program else f"org.apache.kafka.tools.{program}"
        options = [*SHORT_LIVED, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        return ["java", *options, "-cp", self.jars.class_path, name, *arguments]

    def query(self, query: str) -> list[tuple[object, ...]]:
        """The answer of the store itself, beside the gateways."""
        with txnstore.open(self.url) as store:
            rows: list[tuple[object, ...]] = store.sql(query).fetchall()
        return rows

    def count(self, topic: str) -> int:
        """The committed records of a topic; 0 if it does not exist."""
        with txnstore.open(self.url) as store:
            if topic not in {each.name for each in store.topics()}:
                return 0
            [(number,)] = store.sql(f'select count(*) from "{topic}"').fetchall()
        assert isinstance(number, int)
        return number

    def committed(self, group: str) -> int:
        """The sum of the offsets that a group has committed; 0 if there is no such group."""
        with txnstore.open(self.url) as store:
            known = group in {each.group for each in store.groups()}
            return sum(each.offset or 0 for each in store.group(group).positions) if known else 0

    def topic(self, name: str, partitions: int = 1, *options: str) -> None:
        """Create a topic."""
        self.tool("TopicCommand", "--create", "--topic", name, "--partitions", str(partitions), *options)


@dataclass(frozen=True)
class Running:
    """A program that runs.

    Attributes:
        process: Its process.
        log: What it prints.
    """

    process: subprocess.Popen[bytes]
    log: Path

    def output(self) -> str:
        """What it has printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
        """Wait for an event while the program runs.

        Raises:
            UnexpectedError: The program ended, or the event did not come.
        """
        end = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None:
                msg = f"the program ended with {self.process.returncode} before {what}: {self.output()[-4000:]}"
                raise UnexpectedError(msg)
            if time.monotonic() > end:
                msg = f"no {what} in {seconds:.0f} s: {self.output()[-4000:]}"
                raise UnexpectedError(msg)
            time.sleep(0.2)

    def end(self, seconds: float = PATIENCE) -> str:
        """Wait until it has ended by itself, with status 0; returns what it has printed."""
        self._ended(seconds, 0)
        return self.output()

    def terminate(self, seconds: float = PATIENCE) -> str:
        """End it by SIGTERM, whose status a virtual machine has as 143; returns what it has printed."""
        self.process.send_signal(signal.SIGTERM)
        self._ended(seconds, 143)
        return self.output()

    def kill(self) -> None:
        """End it without any notice."""
        self.process.kill()
        self.process.wait()

    def _ended(self, seconds: float, status: int) -> None:
        if self.process.wait(seconds) != status:
            msg = f"the program ended with {self.process.returncode}, not {status}: {self.output()[-4000:]}"
            raise UnexpectedError(msg)


@contextmanager
def serving(folder: Path, jars: Jars, gateways: int, arguments: Sequence[str] = ()) -> Iterator[Place]:
    """In the block gateways serve a new store of three chains, each with these further arguments."""
    url = str(folder / "store")
    txnstore.create(url, chains=3).close()
    addresses = [f"127.0.0.1:{port}" for port in free_ports(gateways)]
    peers = ["--peers", ",".join(addresses)] if gateways > 1 else []
    options = [f"--property={name}={setting}" for name, setting in _PROPERTIES.items()]
    with contextlib.ExitStack() as stack:
        for number, address in enumerate(addresses):
            command = ["gateway", "--store", url, "--listen", address, *peers, *options, *arguments]
            stack.enter_context(_gateway(command, folder / f"gateway-{number}.log"))
        yield Place(url, ",".join(addresses), gateways, folder, jars)


@contextmanager
def _gateway(arguments: Sequence[str], log: Path) -> Iterator[None]:
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "txnstore.cli", *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    try:
        assert process.stdout is not None
        with process.stdout:
            if not process.stdout.readline():
                raise UnexpectedError(log.read_text())
            yield
    finally:
        process.terminate()
        process.wait(30)
    if "Traceback" in (text := log.read_text()):
        msg = f"a gateway logged an error: {text[-4000:]}"
        raise UnexpectedError(msg)
