"""A broker of one node in a process of its own, and the Java virtual machine that its clients run in."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

#: One broker, no replicas, few internal partitions; short intervals for timeouts and deletions (DIF-03).
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "file.delete.delay.ms": "100",
    # Records have the timestamps that a history gives them, which are years old.
    "log.retention.ms": "-1",
    # A cleaner and a retention that look at each topic several times in a second.
    "log.cleaner.backoff.ms": "100",
    "log.retention.check.interval.ms": "100",
    "log.initial.task.delay.ms": "100",
}
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
#: How long an event may take: a wait ends when it happens, so only a busy machine, and an error, need as much.
WAIT_SECONDS = 120.0
#: A virtual machine that ends soon: compiled quickly instead of well, which halves the processor time of a start.
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m")
#: ``ApiVersions``, version 0, after its size: the smallest request that a broker answers. Key, version, correlation id,
#: no client id.
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def release_of(jars: Path) -> str:
    """``4.4.0``: the Kafka release of a folder with jars, from their names. Raises ``ValueError`` if there is none."""
    files = [jar.stem.removeprefix("kafka-clients-") for jar in jars.glob("kafka-clients-*.jar")]
    if len(files) != 1:
        msg = (
            f"{jars} is not the libs folder of a Kafka release: {len(files)} files in it are called kafka-clients-*.jar"
        )
        raise ValueError(msg)
    return files[0]


def credentials(user: str) -> dict[str, str]:
    """The settings of a client that connects to :attr:`Cluster.users_address` as ``User:<user>``."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{_PLAIN} username="{user}" password="{user}";',
    }


class Cluster:
    """A broker on 127.0.0.1 with a new folder; ``jars`` is the ``libs`` folder of a Kafka release.

    With ``users`` it has another listener, on which a client is the user that it names, with its name as the password;
    on the first one, and for the broker itself, everyone is ``User:ANONYMOUS``. ``java`` are the options of its virtual
    machine.
    """

    def __init__(
        self,
        jars: Path,
        settings: Mapping[str, str] | None = None,
        users: Sequence[str] = (),
        java: Sequence[str] = SHORT_LIVED,
        transactions: int = 2,
    ) -> None:
        self._jars = jars
        self._options = java
        self.version = release_of(jars)
        self._folder = Path(tempfile.mkdtemp(prefix="kafka-"))
        self._port, controller, users_port = free_ports(3)
        self.address, self.users_address = f"127.0.0.1:{self._port}", f"127.0.0.1:{users_port}"
        self.data = self._folder / "data"
        lines = {
            **SETTINGS,
            **(settings or {}),
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "log.dirs": str(self.data),
        }
        if users:
            named = "".join(f' user_{user}="{user}"' for user in users)
            lines |= {
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,USERS:SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.users.plain.sasl.jaas.config": f"{_PLAIN}{named};",
                "listeners": f"{lines['listeners']},USERS://{self.users_address}",
                "advertised.listeners": f"{lines['advertised.listeners']},USERS://{self.users_address}",
            }
        self._config = self._folder / "server.properties"
        self._config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        try:
            features = [] if transactions == 2 else ["--feature", f"transaction.version={transactions}"]
            self._java("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._config), *features).wait()
            self._broker = self._start()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def restart(self) -> None:
        """Kill the broker, and start it again on its files."""
        self._stop()
        self._broker = self._start()

    @property
    def pid(self) -> int:
        """The process of the broker."""
        return self._broker.pid

    def close(self) -> None:
        """Stop the broker and remove its folder."""
        self._stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def log_files(self, partition: str, suffix: str) -> list[Path]:
        """The files of a partition's log, in the order of their offsets."""
        return sorted((self.data / partition).glob(f"*{suffix}"))

    def _start(self) -> subprocess.Popen[bytes]:
        broker = self._java("kafka.Kafka", str(self._config))
        try:
            for _ in again(f"the broker should answer on {self.address}"):
                if broker.poll() is not None:
                    msg = f"the broker ended with {broker.returncode}: {self._output.read_text()[-2000:]}"
                    raise RuntimeError(msg)
                if _answers(self._port):
                    break
        except BaseException:
            broker.kill()
            raise
        return broker

    def _stop(self) -> None:
        self._broker.kill()
        self._broker.wait()

    @property
    def _output(self) -> Path:
        return self._folder / "output.log"

    def _java(self, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        with self._output.open("wb") as output:
            return subprocess.Popen(
                ["java", *self._options, "-cp", f"{self._jars}/*", main, *arguments], stdout=output, stderr=output
            )


class VirtualMachine:
    """A JVM with Kafka's own clients in it; ``kafka.clients.producer.KafkaProducer`` is a class of it."""

    def __init__(self, jars: Path) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

        [jar] = Path(sys.prefix).glob("share/py4j/py4j*.jar")
        port, token, self._process = launch_gateway(
            jarpath=str(jar),
            classpath=f"{jars}/*",
            javaopts=list(SHORT_LIVED),
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
        )
        parameters = GatewayParameters(port=port, auth_token=token, auto_convert=True)
        self.gateway: Any = JavaGateway(gateway_parameters=parameters)
        self.java: Any = self.gateway.jvm.java
        self.kafka: Any = self.gateway.jvm.org.apache.kafka

    def close(self) -> None:
        """End the JVM without waiting for its clients.

        Python objects of Java objects that live longer do not try to release them: a garbage collection would call the
        JVM that has ended, and log an error, wherever it happens to run. In the middle of ``ast.parse`` that makes
        Python 3.11 raise ``SystemError``.
        """
        from py4j.finalizer import ThreadSafeFinalizer

        ThreadSafeFinalizer.clear_finalizers(clear_all=True)
        self.gateway.close()
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()

    def properties(self, values: Mapping[str, str]) -> Any:
        """The configuration of a client."""
        configuration = self.java.util.Properties()
        for key, value in values.items():
            configuration.put(key, value)
        return configuration

    def array(self, of: Any, items: list[Any]) -> Any:
        """A Java array."""
        array = self.gateway.new_array(of, len(items))
        for number, item in enumerate(items):
            array[number] = item
        return array

    def field(self, thing: Any, name: str) -> Any:
        """The value of a private field."""
        field = thing.getClass().getDeclaredField(name)
        field.setAccessible(True)
        return field.get(thing)


def again(expectation: str, seconds: float = WAIT_SECONDS) -> Iterator[None]:
    """Repeats with short pauses; then raises a :class:`TimeoutError` that names the missing event."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.02)
    msg = f"{expectation}, and did not in {seconds:.0f} s"
    raise TimeoutError(msg)


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nothing listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def _answers(port: int) -> bool:
    """Whether a broker answers a request: its port is open long before."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(API_VERSIONS)
            return bool(connection.recv(1))
    except OSError:
        return False
