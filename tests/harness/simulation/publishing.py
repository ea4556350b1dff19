"""Topics as Iceberg tables: processes that publish them, engines that read them, and what must be left at the end.

An engine knows nothing of the store but the names of its tables. It may hold what it has loaded for the grace period of
the vacuums of the run: all files exist until then, and have the rows of the closed cut that the snapshot names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tests.harness.simulation.actor import Actor
from tests.harness.simulation.engine_tables import (
    Look,
    Rows,
    Truth,
    current_snapshot,
    heads_of,
    judged,
    read_json,
    read_rows,
)
from tests.harness.simulation.journal import Journal
from tests.harness.simulation.maintenance import GRACE
from tests.harness.simulation.world import KEYED, PASSING, SIDE, SOURCE, TARGET, Process, World
from txnstore.chain import keys
from txnstore.errors import (
    ObjectNotFoundError,
    SnapshotExpiredError,
    TablesChangedError,
    TopicExistsError,
    TxnStoreError,
    UnknownTopicOrPartitionError,
    UnsoundStoreError,
)
from txnstore.store import Store

_GRACE_MS = int(GRACE * 1000)
#: How often publishers and engines do something at least.
_ROUNDS = 8
#: More than the versions that a table has in a run.
_LATER = 200
_NAMES = (SOURCE, SIDE, TARGET, PASSING, KEYED)


class Publisher(Actor):
    """Publishes the tables; now and then takes the table of a topic away, or gives it one."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.left = max(self.left, _ROUNDS)

    def live(self, process: Process) -> None:
        while self.next_operation():
            operation = self._toggle if self.rng.random() < 0.15 else self._sync
            try:
                operation(process)
            except TxnStoreError as error:
                # A publisher that sleeps may find that segments of its view were deleted.
                self.check_expected(process, "sync", error, (SnapshotExpiredError, TablesChangedError))
            self.breathe()
            if self.rng.random() < 0.2:
                self.pause(self.rng.choice((60_000, 700_000)))

    def _sync(self, process: Process) -> None:
        heads = dict(self.world.bucket.heads)
        report = process.store.tables.sync()
        self.check_fresh(process, heads)
        if report.foreign and not self.world.settings.elsewhere:
            self.unexpected(process, "sync", ValueError(f"{report.foreign} are not of publishers"))
        known = self.world.cuts.setdefault(report.cut, report.heads)
        if known != report.heads:
            self.unexpected(process, "sync", ValueError(f"cut {report.cut} is at {report.heads} and at {known}"))

    def _toggle(self, process: Process) -> None:
        topic = self.rng.choice(_NAMES)
        change = self.rng.choice((process.store.tables.enable, process.store.tables.disable))
        with suppress(UnknownTopicOrPartitionError, TopicExistsError):
            change(topic)


class _TooLate(Exception):  # noqa: N818 - no error: an engine stops reading
    """The grace period has passed, or the power was lost, since an engine has loaded a table."""


class _Missing(Exception):  # noqa: N818 - caught where the anomaly is reported
    """An object that an engine needs does not exist."""


class Engine(Actor):
    """Reads tables: by path, or all of the newest cut; the current snapshot, or an older one that is retained."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.left = max(self.left, _ROUNDS) * 2
        self._until = self._losses = 0

    def run(self) -> None:
        while self.next_operation():
            self.breathe()
            self._until = self.world.scheduler.now + _GRACE_MS
            self._losses = self.world.bucket.power_losses
            read = self.rng.choice((self._read_by_path, self._read_by_path, self._read_by_cut))
            try:
                read()
            except _TooLate:
                continue
            except (_Missing, ValueError, KeyError) as error:
                self.world.anomalies.append(f"unreadable-table: {self.name} {type(error).__name__} {error}")

    def live(self, process: Process) -> None:
        """It has no process."""

    def _read_by_path(self) -> None:
        topic = self.rng.choice(_NAMES)
        found = self._find(keys.table_hint(topic))
        if found is None:
            return
        number = int(found)
        if self._is_set_back(topic, number):
            return
        while self.rng.random() < 0.5 and self._find(keys.table_version(topic, number + 1)) is not None:
            number += 1  # As Spark does, which takes the hint for old.
        key = keys.table_version(topic, number)
        self._look(f"{self.name} {key}", topic, read_json(self._get, key))

    def _is_set_back(self, topic: str, number: int) -> bool:
        """Whether a publisher that slept longer than the grace period has set the hint back to a deleted version."""
        names = {item.key for item in self.world.bucket.list(keys.table(topic))}
        later = (keys.table_version(topic, each) for each in range(number + 1, number + _LATER))
        return keys.table_version(topic, number) not in names and any(key in names for key in later)

    def _read_by_cut(self) -> None:
        numbers = [keys.cut_number(item.key) or 0 for item in self.world.bucket.list(keys.CUTS)]
        if not any(numbers):
            return
        cut = read_json(self._get, keys.cut(max(numbers)))
        tables = [(topic, table) for topic, table in cut["tables"].items() if not table.get("dropped")]
        for topic, table in self.rng.sample(tables, len(tables)):
            who = f"{self.name} cut {cut['number']}"
            shown = table.get("moment") or cut
            self._look(who, topic, read_json(self._get, table["metadata"]), tuple(shown["heads"]))

    def _look(self, who: str, topic: str, metadata: Mapping[str, Any], heads: Sequence[int] | None = None) -> None:
        """Read a snapshot; ``heads``: what the current one shows, where its table has not changed since."""
        snapshot = current_snapshot(metadata)
        retained = metadata["snapshots"]
        if snapshot is not None and self.rng.random() < 0.3:
            snapshot, heads = self.rng.choice(retained), None
        self._hold()
        if snapshot is None:
            if heads is not None:
                self.world.looks.append(Look(who, topic, metadata["table-uuid"], tuple(heads), {}))
            return
        rows = read_rows(self._get, snapshot)
        if snapshot["snapshot-id"] in {each["snapshot-id"] for each in metadata["snapshot-log"]}:
            # Else it is one of several snapshots of a publication: no cut.
            shown = heads_of(snapshot) if heads is None else tuple(heads)
            self.world.looks.append(Look(who, topic, metadata["table-uuid"], shown, rows))

    def _hold(self) -> None:
        """Wait, within the grace period, mostly for a short time."""
        left = self._until - self.world.scheduler.now - 1
        if left > 0 and self.rng.random() < 0.5:
            self.world.scheduler.sleep(min(left, self.rng.choice((1_000, 60_000, 500_000, left))))

    def _find(self, key: str) -> bytes | None:
        self.pause(20)
        if self.world.scheduler.now >= self._until or self.world.bucket.power_losses != self._losses:
            raise _TooLate
        try:
            return self.world.bucket.get(key)
        except ObjectNotFoundError:
            return None

    def _get(self, key: str) -> bytes:
        data = self._find(key)
        if data is None:
            msg = f"{key} does not exist"
            raise _Missing(msg)
        return data


def has_tables(world: World) -> bool:
    """Whether tables are published in a run."""
    return any(name.startswith("publish:") for name in world.settings.actors)


def judged_tables(world: World, store: Store, journal: Journal) -> Iterator[str]:
    """The tables at the end, and what engines have read of them; at last a vacuum, which leaves them readable."""
    if not has_tables(world):
        return
    truth = Truth(world.bucket.archive, journal, world.settings.chains)
    yield from judged(world.looks, truth)
    yield from _last_publication(world, store, truth)
    if not any(name.startswith("operate:") for name in world.settings.actors):
        with suppress(UnsoundStoreError):  # Of a checkpoint that cannot be read, which other checks judge.
            store.vacuum(GRACE)
        yield from _last_publication(world, store, truth)


def _last_publication(world: World, store: Store, truth: Truth) -> Iterator[str]:
    report = store.tables.sync()
    if report.foreign and not world.settings.elsewhere:
        yield f"foreign-versions: {report.foreign}"
    checked = store.tables.check(deep=True)
    for problem in checked.problems:
        yield f"damaged-table: {problem.topic}: {problem.message}"
    if checked.skipped and not any(name.startswith("forget:") for name in world.settings.actors):
        yield f"unchecked-tables: {checked.skipped}"
    for description in store.tables.list():
        topic = description.topic
        try:
            metadata = read_json(world.bucket.get, keys.table_version(topic, int(_hint(world.bucket.get, topic))))
            snapshot = current_snapshot(metadata)
            rows = read_rows(world.bucket.get, snapshot) if snapshot is not None else {}
        except (ObjectNotFoundError, ValueError, KeyError) as error:
            yield f"unreadable-table: {topic} at the end: {type(error).__name__}: {error}"
            continue
        if rows != _scanned(store, topic):
            yield f"not-as-scanned: {topic} has the rows {sorted(rows)}"
        look = Look("the end", topic, metadata["table-uuid"], report.heads, rows)
        yield from judged([look], truth)


def _hint(get: Callable[[str], bytes], topic: str) -> bytes:
    return get(keys.table_hint(topic))


def _scanned(store: Store, topic: str) -> Rows:
    table = store.scan(topic, "read_committed").to_table().select(["_partition", "_offset", "key", "value"])
    return {
        (row["_partition"], row["_offset"]): (row["key"], int(row["value"]) if row["value"] is not None else None)
        for row in table.to_pylist()
    }
