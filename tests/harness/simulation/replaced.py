"""Actors of a store that is deleted, and created again at its URL, while processes have it open."""

from __future__ import annotations

from collections.abc import Iterator

from tests.harness.simulation.actor import Actor
from tests.harness.simulation.runtime import EPOCH_MS, simulated_runtime
from tests.harness.simulation.site import Site
from tests.harness.simulation.world import Process, World
from txnstore.chain.identity import CONFIRM_MS
from txnstore.errors import (
    CorruptionError,
    ProducerFencedError,
    StorageError,
    StoreNotFoundError,
    TxnStoreError,
    UnsoundStoreError,
    UploadExpiredError,
)
from txnstore.producer import Producer
from txnstore.runtime import Runtime
from txnstore.store import Store, create_on

_TOPIC = "t"


class Replacer(Actor):
    """Creates the store, deletes all of its objects, and creates another one. Its requests never fail.

    What a process of the deleted store writes afterwards is left of that: nothing is created over it (design 0025).
    """

    def run(self) -> None:
        while self.next_operation():
            self._create()
            self.pause(self.rng.choice((3_000, 20_000, 100_000)))
            if self.left > 0:
                site = self.world.site
                site.deleted[max(site.sent)] = self.world.scheduler.now
                self._delete_all()
                self.pause(self.rng.choice((1, 3_000, 20_000)))

    def live(self, process: Process) -> None:
        """It has no process."""

    def _create(self) -> None:
        world = self.world
        runtime = simulated_runtime(world.scheduler, self.rng, lambda: EPOCH_MS + world.scheduler.now, Runtime)
        while True:
            try:
                store = create_on(world.site.bucket, 1, runtime=runtime)
            except CorruptionError as error:
                if not str(error).startswith("nothing was created at "):
                    raise
                self._delete_all()
            else:
                break
        store.create_topic(_TOPIC, config={"segment.format": "arrow"})
        world.site.sent[store.store_id] = set()
        world.site.acknowledged[store.store_id] = []

    def _delete_all(self) -> None:
        bucket = self.world.site.bucket
        bucket.delete([item.key for item in bucket.list("")])


class Tenant(Actor):
    """Sends records to the store, reads them, vacuums. It opens the URL again when its store was deleted."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._producer: Producer | None = None

    @property
    def site(self) -> Site:
        return self.world.site

    def open_process(self) -> Process:
        # While there is no store, there may be what processes of the deleted one write. It may also be deleted now.
        deletions = len(self.site.deleted) if self.site.exists else None
        try:
            process = self.world.process(self.name, self.site.bucket, Runtime)
        except (StoreNotFoundError, CorruptionError) as error:
            if isinstance(error, CorruptionError) and len(self.site.deleted) == deletions:
                raise
            raise StorageError("there is no store at the moment") from error
        self._producer = None
        return process

    def live(self, process: Process) -> None:
        store_id = process.store.store_id
        while self.next_operation():
            operation = self.rng.choice((self._send, self._send, self._read, self._vacuum))
            began = self.world.scheduler.now
            try:
                operation(process.store)
            except TxnStoreError as error:
                if store_id not in self.site.deleted:
                    # What a process writes to a deleted store is that of another one from then on.
                    expected = (UploadExpiredError, ProducerFencedError, UnsoundStoreError)
                    self.check_expected(process, "site", error, expected)
                elif isinstance(error, StoreNotFoundError):
                    return
                self._producer = None
            else:
                if began > self.site.deleted.get(store_id, began) + CONFIRM_MS:
                    text = f"{process.name} {operation.__name__} at {began}"
                    self.world.anomalies.append(f"store-was-deleted: {text}, at {self.site.deleted[store_id]}")
            self.breathe()
            if self.rng.random() < 0.5:
                self.pause(5_000)

    def _send(self, store: Store) -> None:
        self._producer = self._producer or store.producer(linger=None)
        value = self.world.next_value()
        self.site.sent[store.store_id].add(value)
        future = self._producer.send(_TOPIC, b"%d" % value, partition=0)
        self._producer.flush()
        future.result()
        self.site.acknowledged[store.store_id].append(value)

    def _read(self, store: Store) -> None:
        store_id, before = store.store_id, list(self.site.acknowledged[store.store_id])
        values = _values(store)
        if store_id not in self.site.deleted:
            self.world.anomalies += _compared(store_id, values, before, self.site.sent[store_id])

    def _vacuum(self, store: Store) -> None:
        """Without a grace period: uploads that are under way may expire, registered ones never."""
        store.vacuum(0.0)


def occupied(world: World) -> Iterator[str]:
    """The store at the URL has the records that were acknowledged in it, and none of another store."""
    if world.site.sent:
        store_id = max(world.site.sent)
        store = world.honest(world.site.bucket)
        if store.store_id != store_id:
            yield f"wrong-store: {store.store_id} instead of {store_id}"
        acknowledged, sent = world.site.acknowledged[store_id], world.site.sent[store_id]
        yield from _compared(store_id, _values(store), acknowledged, sent)


def _values(store: Store) -> list[int]:
    return [int(value) for value in store.scan(_TOPIC).to_table()["value"].to_pylist()]


def _compared(store_id: str, values: list[int], must: list[int], may: set[int]) -> Iterator[str]:
    if len(set(values)) < len(values) or not set(must) <= set(values) <= may:
        yield f"wrong-records: {store_id} has {values}; acknowledged are {must}, sent {sorted(may)}"
