"""Lets a broker clean a topic or apply its retention exactly once, between a change of its settings and the next."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.compat.broker.client import ClientProducer
from tests.compat.broker.cluster import again
from tests.compat.broker.running import RunningBroker
from tests.compat.broker.view import BrokerView, batches
from tests.harness.differential.names import ProducerIds

#: What a topic has until an operation asks for something: the cleaner leaves it alone, and retention deletes nothing.
REST = {"min.cleanable.dirty.ratio": "1.0", "retention.ms": "-1", "retention.bytes": "-1"}
#: Files are small in tests; the public setting has a minimum of 1 MiB (KIP-1030).
SEGMENT_BYTES = "internal.segment.bytes"
#: A setting without an effect on a broker of one node, by which it is seen that an earlier change has been applied.
WITHOUT_EFFECT = "follower.replication.throttled.replicas"


def settings_of(config: Mapping[str, str]) -> dict[str, str]:
    """The settings of a new topic, for a broker: a topic of the language is at rest."""
    settings = {SEGMENT_BYTES if name == "segment.bytes" else name: value for name, value in config.items()}
    return {**REST, **settings} if settings else {}


class Upkeep:
    """The cleaner and the retention of a broker, for one history; ``suffix`` makes names unique."""

    def __init__(self, running: RunningBroker, view: BrokerView, suffix: str) -> None:
        self._running = running
        self._view = view
        self._own = BrokerView(running, ProducerIds(), suffix)
        self._suffix = suffix
        self._changes = 0
        self._canaries: dict[str, ClientProducer] = {}

    def clean(self, topic: str, settings: Mapping[str, str], *, due: bool) -> None:
        """Let the cleaner pass once over each partition, with settings that apply until it has.

        ``due``: these settings make it due; otherwise the dirty ratio does.
        """
        with self._set(topic, settings if due else {"min.cleanable.dirty.ratio": "0.0", **settings}):
            names = [name for name in self._view.partitions if name.rpartition("-")[0] == topic]
            for _ in again(f"the cleaner should clean {topic}"):
                if all(self._is_clean(name, int(settings.get("min.compaction.lag.ms", "0"))) for name in names):
                    return

    def retain(self, topic: str, ms: int, keep: int | None) -> None:
        """Let the broker delete what is older than ``ms``, or all but ``keep`` segments of the size of the oldest one.

        A canary of the same policy shows that it has: a broker passes over all topics, one after the other. Its second
        deletion belongs to a pass that began after the first one, and so after the settings were known.
        """
        settings = {"retention.ms": str(ms)}
        if keep is not None:
            sizes = [path.stat().st_size for path in self._running.cluster.log_files(f"{topic}-0", ".log")]
            settings["retention.bytes"] = str(keep * sizes[0])
        policy = self._config(topic)["cleanup.policy"]
        policy = policy if "delete" in policy else "delete"
        canary = f"canary-{policy.replace(',', '-')}{self._suffix}"
        if canary not in self._canaries:
            self._own.create_topic(canary, 1, {**REST, SEGMENT_BYTES: "200", "cleanup.policy": policy})
            producer = ClientProducer(self._running.machine, self._running.cluster, None, 60_000)
            self._canaries[canary] = producer
        with self._set(topic, settings), self._set(canary, {"retention.ms": "1"}):
            for _ in range(2):
                self._delete_one(canary)

    def close(self) -> None:
        """Delete the canaries."""
        for producer in self._canaries.values():
            producer.kill()
        self._own.delete_topics()

    # The cleaner ------------------------------------------------------------------------------------------------------

    def _is_clean(self, name: str, lag_ms: int) -> bool:
        start = max(self._checkpoint(name), self._view.offsets("earliest")[name])
        try:
            return start >= self._first_uncleanable(name, start, lag_ms)
        except FileNotFoundError:  # The cleaner replaces the files now.
            return False

    def _checkpoint(self, name: str) -> int:
        """The cleaner checkpoint of a partition. The file has two lines before the partitions: version and number."""
        file = self._running.cluster.data / "cleaner-offset-checkpoint"
        lines = file.read_text().splitlines()[2:] if file.exists() else []
        checkpoints = dict(line.rsplit(" ", 1) for line in lines)
        topic, _, number = name.rpartition("-")
        return int(checkpoints.get(f"{topic} {number}", 0))

    def _first_uncleanable(self, name: str, start: int, lag_ms: int) -> int:
        """The LSO, the active segment, or the first new segment with a record that is too young (CMP-02)."""
        *others, active = self._running.cluster.log_files(name, ".log")
        oldest = int(time.time() * 1000) - lag_ms
        young = [
            int(path.stem)
            for path in others
            if int(path.stem) >= start and newest_timestamp(path.read_bytes()) > oldest
        ]
        return min([self._view.end_offsets("read_committed")[name], int(active.stem), *(young if lag_ms else [])])

    # Retention --------------------------------------------------------------------------------------------------------

    def _delete_one(self, canary: str) -> None:
        producer, name = self._canaries[canary], f"{canary}-0"
        producer.send({"partition": name, "key": "k", "value": "v", "timestamp": 1})
        producer.flush()
        end = self._own.end_offsets("read_uncommitted")[name]
        for _ in again(f"the broker should delete the records of {canary}"):
            if self._own.offsets("earliest")[name] == end:
                return

    # Settings ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def _set(self, topic: str, settings: Mapping[str, str]) -> Iterator[None]:
        before = self._config(topic)
        self._alter(topic, settings)
        try:
            yield
        finally:
            self._alter(topic, {name: before[name] for name in settings})

    def _alter(self, topic: str, settings: Mapping[str, str]) -> None:
        """Change settings, and wait until the broker has applied them.

        A broker shows a change before it has applied it, but applies one before it shows the next one.
        """
        self._changes += 1
        for change in (settings, {WITHOUT_EFFECT: f"{self._changes}:1"}):
            api = self._running.machine.kafka.clients.admin
            ops = self._running.machine.java.util.ArrayList()
            for name, value in change.items():
                entry = api.ConfigEntry(name, value)
                ops.add(api.AlterConfigOp(entry, api.AlterConfigOp.OpType.SET))
            request = self._running.machine.java.util.HashMap()
            request.put(self._resource(topic), ops)
            self._running.admin.incrementalAlterConfigs(request).all().get()
            for _ in again(f"the broker should know the settings of {topic}"):
                applied = self._config(topic)
                if all(applied.get(name) == value for name, value in change.items()):
                    break

    def _config(self, topic: str) -> dict[str, str]:
        resource = self._resource(topic)
        description = self._running.admin.describeConfigs([resource]).values().get(resource).get()
        return {str(entry.name()): str(entry.value()) for entry in description.entries().iterator()}

    def _resource(self, topic: str) -> Any:
        config = self._running.machine.kafka.common.config.ConfigResource
        return config(config.Type.TOPIC, topic)


def newest_timestamp(log: bytes) -> int:
    """The newest timestamp of the batches in a log file; -1 if it has none."""
    return max((row[8] for _, row in batches(log)), default=-1)
