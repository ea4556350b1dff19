"""Topics that are altered while compactors plan: one gets columns, and the settings of another one let records go.

No other actor sends to them. What is compacted, merged, cleaned and deleted by plans of earlier versions must lose
neither the value of a column, nor a record that was there when a setting that keeps it was acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from tests.harness.simulation.actor import Actor
from tests.harness.simulation.creates import Interrupted
from tests.harness.simulation.world import GOVERNED, WIDENED, Process, World
from tests.helpers.connections import connection_of
from txnstore.errors import ProducerFencedError, SchemaMismatchError, TxnStoreError, UploadExpiredError
from txnstore.segment.schema import schema_from_text
from txnstore.store import Store

#: How often each of them does something at least.
_ROUNDS = 12
#: The most columns that a topic gets.
_COLUMNS = 8
#: What makes records go, and what keeps all of them.
_LIMITS: tuple[Mapping[str, object], ...] = (
    {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0"},
    {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.0", "retention.bytes": "0"},
    {"retention.bytes": "0"},
)
_KEEPS: Mapping[str, object] = {"cleanup.policy": None, "min.cleanable.dirty.ratio": None, "retention.bytes": None}
#: Errors that a producer may get after the event that caused them, as elsewhere.
_LATE = (ProducerFencedError, UploadExpiredError)


class _Alterer(Actor):
    """An actor that works often, and pauses long enough for plans to be made."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.left = max(self.left, _ROUNDS)

    def send(self, process: Process, topic: str, rows: list[dict[str, Any]]) -> bool:
        """Send rows, each in a batch of its own; whether all were acknowledged."""
        try:
            with process.store.producer(linger=None) as producer:
                for row in rows:
                    if topic == GOVERNED:
                        producer.send(topic, row["value"], key=row["key"], partition=0)
                    else:
                        producer.send(topic, row, partition=0)
                    self.insist(producer.flush)
        except Interrupted:
            return False
        except TxnStoreError as error:
            self.check_expected(process, "send", error, _LATE)
            return False
        return True


class Widener(_Alterer):
    """Adds columns, and sends rows that have a value in each column that its process knows."""

    def live(self, process: Process) -> None:
        while self.next_operation():
            try:
                if self.rng.random() < 0.4:
                    self._widen(process)
            except TxnStoreError as error:  # Another process has added a column meanwhile, which this would drop.
                self.check_expected(process, "alter_topic", error, (SchemaMismatchError,))
            self._write(process)
            self.breathe()

    def _widen(self, process: Process) -> None:
        schema = self._schema(process, refresh=True)
        if len(schema) < _COLUMNS:
            wider = schema.append(pa.field(f"c{len(schema)}", pa.string()))
            process.store.alter_topic(WIDENED, schema=wider)

    def _schema(self, process: Process, *, refresh: bool = False) -> pa.Schema:
        schema = connection_of(process.store).view(refresh=refresh).topics[WIDENED].schema
        assert schema is not None
        return schema_from_text(schema)

    def _write(self, process: Process) -> None:
        names = self._schema(process).names[2:]
        sent = {self.world.next_value() for _ in range(self.rng.randint(1, 3))}
        self.world.widened |= dict.fromkeys(sent, names)
        rows = [{"key": b"k", "value": b"%d" % value, **dict.fromkeys(names, str(value))} for value in sorted(sent)]
        losses = self.world.bucket.power_losses
        if self.send(process, WIDENED, rows) and losses == self.world.bucket.power_losses:
            self.world.acknowledged |= sent


class Governor(_Alterer):
    """Lets records go by a setting, takes it back, and looks that nothing goes from then on."""

    def live(self, process: Process) -> None:
        while self.next_operation():
            try:
                process.store.alter_topic(GOVERNED, config=dict(self.rng.choice(_LIMITS)))
                self._write(process)
                self.pause(self.rng.choice((10, 500, 5_000)))
                process.store.alter_topic(GOVERNED, config=dict(_KEEPS))
                losses, kept = self.world.bucket.power_losses, self._values(process)
                self._write(process)
                self.pause(self.rng.choice((500, 5_000, 60_000)))
                missing = kept - self._values(process)
            except TxnStoreError as error:
                self.check_expected(process, "alter_topic", error, ())
                continue
            if missing and losses == self.world.bucket.power_losses:
                self.world.anomalies.append(f"deleted-by-old-settings: {sorted(missing)} of {GOVERNED}")
            self.world.governed += len(kept)

    def _write(self, process: Process) -> None:
        rows = [{"key": b"k%d" % (each % 2), "value": b"%d" % self.world.next_value()} for each in range(4)]
        self.send(process, GOVERNED, rows)

    def _values(self, process: Process) -> set[int]:
        table = process.store.scan(GOVERNED).to_table()
        return {int(value) for value in table.column("value").to_pylist()}


def altered(world: World, store: Store) -> Iterator[str]:
    """Each row has the values that it was sent with, and without a loss of power no acknowledged one is missing."""
    if not any(name.startswith("widen:") for name in world.settings.actors):
        return
    store.compact(WIDENED)
    found = {int(row["value"]): row for row in store.scan(WIDENED).to_table().to_pylist()}
    for value, row in found.items():
        lost = [name for name in world.widened[value] if row.get(name) != str(value)]
        if lost:
            yield f"lost-values: of {value} in the columns {lost}"
    missing = world.acknowledged - set(found)
    if missing and not world.bucket.power_losses:
        yield f"lost-rows: {sorted(missing)} of {WIDENED}"
