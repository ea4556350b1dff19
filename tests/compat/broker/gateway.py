"""A gateway in the place of the broker: Kafka's own clients, driven as beside a broker, and a store that they write to.

The gateway runs in a thread of this process, so that its time is a clock that the trace moves: a ``tick`` takes none.
What a broker shows in its files only (markers, the index of aborted transactions) is read from the chains. What is no
request of a client (``sweep``, ``clean``, ``retain``) is done by a second process, as with the command ``txnstore``.
"""

from __future__ import annotations

import math
import random
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.compat.broker.driver import BrokerDriver
from tests.compat.broker.requests import topic_partition
from tests.compat.broker.running import RunningBroker
from tests.compat.broker.view import BrokerView
from tests.harness.differential.store_support import write_epoch
from tests.harness.traces import Op
from tests.helpers import keys
from tests.helpers.gateway import RunningGateway
from tests.helpers.keys import FixedRuntime
from txnstore.chain.payload import decode_entry
from txnstore.core.log.events import MarkerWritten
from txnstore.core.model import TopicPartition
from txnstore.gateway import metadata, server
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing.clock import ManualClock


class GatewayServer:
    """What is called a cluster beside a broker: a gateway on a new store of ``chains`` chains in memory.

    Its clients use transactions of version 1 if it says, as an older broker does, that it has no others.
    """

    def __init__(self, chains: int = 1, transactions: int = 2) -> None:
        self.version = "gateway"
        self._patched = ExitStack()
        self._patched.enter_context(patch.dict(metadata._FEATURES, {"transaction.version": transactions}))
        # On a busy machine a process without its turn is not a suspended one, and a lost answer is another history.
        self._patched.enter_context(patch.object(server, "_SUSPENSION", math.inf))
        self.clock = ManualClock(time.time_ns() // 1_000_000)  # The records of Java's clients have the time of day.
        self._objects = MemoryStore(clock=self.clock)
        self._read = [0] * chains
        self._markers: dict[TopicPartition, list[tuple[int, str, int, int]]] = {}
        self._stores = [create_on(self._objects, chains, runtime=self._runtime(0))]
        self._gateway = RunningGateway(self._stores[0])
        self._gateway.start()
        self.address = self._gateway.bootstrap
        #: Of the second process.
        self.store = self._opened()

    def restart(self) -> None:
        """End the gateway, and start another one at its address."""
        self._gateway.stop()
        bound = socket.create_server(self._gateway.address)
        self._gateway = RunningGateway(self._opened(), bound=bound)
        self._gateway.start()

    def close(self) -> None:
        """End the gateway, and close the store."""
        self._gateway.stop()
        self._patched.close()
        for store in self._stores:
            store.close()

    def markers(self, tp: TopicPartition) -> list[tuple[int, str, int, int]]:
        """The markers in a partition: offset, kind, producer id, epoch. Each entry is read once."""
        for number, read in enumerate(self._read):
            for item in self._objects.list(keys.entries(number), keys.entry(number, read) if read else ""):
                entry = decode_entry(item.key, self._objects.get(item.key))
                self._read[number] = entry.sequence
                for event in entry.events:
                    if isinstance(event, MarkerWritten):
                        row = (event.offset, event.outcome.value, event.producer_id, event.epoch)
                        self._markers.setdefault(TopicPartition(event.topic, event.partition), []).append(row)
        return self._markers.get(tp, [])

    def forget_topic(self, name: str) -> None:
        """A topic was deleted: one that is created again has other markers."""
        self.markers(TopicPartition(name, 0))
        self._markers = {tp: rows for tp, rows in self._markers.items() if tp.topic != name}

    def set_epoch(self, transactional_id: str, epoch: int) -> None:
        """Give a transactional id an epoch, without the transactions that lead to it."""
        write_epoch(self.store, self._objects, transactional_id, epoch, self.clock())

    def _opened(self) -> Store:
        self._stores.append(open_on(self._objects, runtime=self._runtime(len(self._stores))))
        return self._stores[-1]

    def _runtime(self, number: int) -> FixedRuntime:
        return FixedRuntime(clock=self.clock, rng=random.Random(f"gateway/{number}"))


class ServedHistories(RunningBroker):
    """A gateway with the clients that observe it; ``transactions`` is the version that they use (1: before KIP-890)."""

    cluster: GatewayServer

    def __init__(self, jars: Path, chains: int = 1, transactions: int = 2) -> None:
        self._chains = chains
        super().__init__(jars, transactions=transactions)

    def _start(self, jars: Path, settings: Mapping[str, str] | None, users: Sequence[str]) -> Any:
        return GatewayServer(self._chains, self.transactions)


class GatewayView(BrokerView):
    """What clients see of a gateway, and what is in the chains."""

    _cluster: GatewayServer

    def delete_topic(self, name: str) -> None:
        super().delete_topic(name)
        self._cluster.forget_topic(name)

    def _end_of_batches(self, name: str, limit: int) -> int:
        """A gateway has a control batch for each gap, so a consumer comes to the end."""
        return limit

    def _markers(self, name: str) -> list[list[Any]]:
        rows = self._cluster.markers(TopicPartition(*topic_partition(name)))
        return [[offset, kind, self._ids.number(producer_id), epoch] for offset, kind, producer_id, epoch in rows]

    def _aborted(self, name: str) -> list[list[int]]:
        log = self._cluster.store._connection.view().partitions[TopicPartition(*topic_partition(name))]
        rows = [(txn.producer_id, txn.first_offset, txn.last_offset, txn.last_stable_offset) for txn in log.aborted]
        return [[self._ids.number(producer_id), *offsets] for producer_id, *offsets in rows]


class GatewayDriver(BrokerDriver):
    """One history at a gateway."""

    cluster: GatewayServer

    def _new_view(self, running: RunningBroker) -> BrokerView:
        return GatewayView(running, self._ids, self._names.suffix)

    def _time_of(self, op: Op) -> int | None:
        return int(op.get("timestamp", self.cluster.clock() - op.get("age_ms", 0)))

    def op_set_epoch(self, op: Op) -> None:
        """Writes an entry directly, with the result of many transactions: so many requests would be as many entries."""
        self.cluster.set_epoch(op["id"], op["epoch"])

    # The environment --------------------------------------------------------------------------------------------------

    def op_create_topic(self, op: Op) -> None:
        config = {"segment.format": "arrow", **op.get("config", {})}  # Small records, which are not compressed.
        self._view.create_topic(op["topic"], op.get("partitions", 1), config)

    def op_tick(self, op: Op) -> None:
        self.cluster.clock.advance(op["ms"])

    def op_sweep(self, op: Op) -> None:
        self.cluster.store.recover()

    def op_compact(self, op: Op) -> None:
        self.cluster.store.compact(op["topic"])

    def op_clean(self, op: Op) -> None:
        """A clean with settings that apply to it only; of everything that is dirty, unless it is ``due``."""
        with self._set(op["topic"], op.get("config", {})):
            self.cluster.store.compact(op["topic"], force=not op.get("due", False))

    def op_retain(self, op: Op) -> None:
        """``keep``: as many bytes as that number of batches like the oldest one."""
        settings = {"retention.ms": op.get("ms", -1)}
        if "keep" in op:
            log = self.cluster.store._connection.view().partitions[TopicPartition(op["topic"], 0)]
            settings["retention.bytes"] = op["keep"] * next(iter(log.batches)).size
        with self._set(op["topic"], settings):
            self.cluster.store.retain(op["topic"])

    @contextmanager
    def _set(self, topic: str, settings: Mapping[str, object]) -> Iterator[None]:
        """Change settings of a topic for a while."""
        if settings:
            self.cluster.store.alter_topic(topic, config=settings)
        yield
        if settings:
            self.cluster.store.alter_topic(topic, config=dict.fromkeys(settings))
