"""Erasures in random histories: what is erased is gone from every reader, snapshot, table and object; the rest stays.

The histories, their model and their readers are those of ``tests/harness/readers``.
"""

from __future__ import annotations

import io
import json
import random
import warnings
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.harness.readers.history import CHANGES, READS, DifferenceError, History, Publication, Step
from tests.harness.readers.model import Rec, Topic
from tests.harness.readers.run import _DOES, drawn
from tests.helpers.compaction import lose_leases
from txnstore.chain import keys
from txnstore.errors import SnapshotExpiredError, TxnStoreError, UndecidedRecordsError
from txnstore.storage.base import ObjectStore
from txnstore.store import Store
from txnstore.validation import BlockedReadWarning

#: After so many steps there is an erasure.
_EVERY = 6
#: What another process does before some request of an erasure.
_BESIDE = ("commit", "append", "small", "merge", "compact", "retain", "delete_records", "add_column", "widen", "sync")


def _chosen(topic: Topic, rng: random.Random) -> tuple[str, list[Rec]]:
    """An expression, and the records that it chooses: some of any state, mostly of those that are there."""
    recs = [rec for part in topic.parts for rec in part.past.values() if not rec.erased]
    wanted = rng.sample(recs, min(len(recs), rng.choice([1, 1, 3, 8])))
    if not wanted:
        return "", []
    if topic.schema is not None:
        return f"id in ({', '.join(str(rec.uid) for rec in wanted)})", wanted
    texts = ", ".join(f"'{rec.uid}'::blob" for rec in wanted)
    return f"headers[1].value in ({texts})", wanted


def erase(history: History, store: Store, rng: random.Random) -> None:
    """Erase some records, and look for them in all objects with other eyes."""
    topic = history.topic(rng)
    if topic is None:
        return
    where, wanted = _chosen(topic, rng)
    if not wanted:
        return
    for rec in wanted:
        rec.erased = True  # Also if the erasure fails half way.
    lose_leases(history.objects)
    had_open = any(opened.txn.state == "open" for opened in history._open)
    moment = history.model.moment()
    try:
        report = store.erase(topic.name, where=where, prove=True)
    except UndecidedRecordsError:
        if not had_open:
            raise
        return
    if report.traces:
        raise DifferenceError("erase", f"{where} of {topic.name} leaves {report.traces}")
    gone = {rec.uid for rec in wanted}
    for key, uids in _uids_in_objects(history.objects, topic):
        if found := gone & uids:
            raise DifferenceError("erase", f"{sorted(found)} of {topic.name} are in {key}")
    if report.tables:
        _note_tables(history, topic, moment)
    _look_at_kept(history, topic, gone)


def _note_tables(history: History, topic: Topic, before: object) -> None:
    """The tables were published, and that of the topic has no earlier snapshots."""
    moment = history.model.moment()
    for shown in moment.values():
        for rows in shown.rows.values():
            rows[:] = [placed for placed in rows if not placed[2].erased]
    history.published = [moment]
    versions = {
        name: int(history.objects.get(keys.table_hint(name))) for name, shown in moment.items() if shown.has_table
    }
    history.publications.append(Publication([moment], versions, mixed=False))


def _look_at_kept(history: History, topic: Topic, gone: set[int]) -> None:
    """A snapshot that was kept shows what it showed, or says that it has expired; never an erased record."""
    reader = history._process().store
    column = "headers" if topic.schema is None else "id"
    for kept in [*history.kept]:
        try:
            snapshot = reader.snapshot(kept.snapshot.entry)
            for shown in kept.moment.values():
                table = reader.scan(shown.name, "read_uncommitted", snapshot=snapshot).to_table()
                if len(table) != len(shown.rows["read_uncommitted"]):
                    raise DifferenceError("erase", f"{kept.snapshot} has other rows of {shown.name}")
                if shown.name == topic.name and shown.life == topic.life:
                    values = table.column(column).to_pylist()
                    uids = {int(each[0]["value"]) for each in values} if topic.schema is None else set(values)
                    if uids & gone:
                        raise DifferenceError("erase", f"{kept.snapshot} shows {sorted(uids & gone)}")
        except SnapshotExpiredError:
            history.kept.remove(kept)
    reader.close()


def _uids_in_objects(objects: ObjectStore, topic: Topic) -> Iterator[tuple[str, set[int]]]:
    """The numbers of all records of a life of a topic in each object, read without the library."""
    for item in objects.list(""):
        data = objects.get(item.key)
        tables: list[pa.Table] = []
        if item.key.startswith((f"topics/{topic.name}/", f"tables/{topic.name}/data/")):
            if item.key.endswith(".parquet"):
                tables = [pq.read_table(io.BytesIO(data))]
            else:
                tables = [pa.ipc.open_file(io.BytesIO(data)).read_all()]
        elif "/entries/" in item.key and b"\n" in data:
            payload, _, line = data.rpartition(b"\n")
            for event in json.loads(line)["events"]:
                if event["type"] == "BatchesAppended" and event["topic"] == topic.name:
                    segment = event["segment"]
                    if segment["object"] == item.key:
                        part = payload[segment["first_byte"] :][: segment["size"]]
                        if segment["format"] == "parquet":
                            tables.append(pq.read_table(io.BytesIO(part)))
                        else:
                            tables.append(pa.ipc.open_stream(io.BytesIO(part)).read_all())
        uids: set[int] = set()
        for table in tables:
            if topic.schema is None and "headers" in table.column_names:
                uids |= {int(headers[0]["value"]) for headers in table.column("headers").to_pylist()}
            elif topic.schema is not None and "id" in table.column_names:
                uids |= set(table.column("id").to_pylist())
        yield item.key, uids


def run(seed: int, count: int = 26) -> int:
    """Run a history with erasures; returns how many there were."""
    rng = random.Random(f"erasures {seed}")
    erasures = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BlockedReadWarning)
        history = History(seed)
        try:
            for place, step in enumerate(drawn(seed, count)):
                try:
                    history.take(step, READS[step.name] if step.name in READS else _DOES[step.name])
                    if place >= 4 and (place % _EVERY == 0 or place == count - 1):
                        erasures += 1
                        extra = Step(500 + place, "erase", rng.getrandbits(32))
                        if rng.random() < 0.5 and place != count - 1:
                            beside = (rng.choice(_BESIDE),)
                            extra = replace(extra, injected=beside, at=int(2 ** rng.uniform(0, 6)))
                        history.take(extra, erase)
                except (DifferenceError, TxnStoreError, AssertionError) as error:
                    error.add_note(f"seed {seed}, after step {step}")
                    raise
        finally:
            history.close()
    return erasures


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_scans_and_consumers_read_on_beside_erasures(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They show what was there before, or after; a query that is running may fail, as beside a vacuum."""
    monkeypatch.setitem(CHANGES, "erase", erase)
    rng, reads = random.Random(f"beside {seed}"), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BlockedReadWarning)
        history = History(seed)
        for place, step in enumerate(step for step in drawn(seed) if step.name in _DOES):
            history.take(step, _DOES[step.name])
            if place > 5:
                name, at = rng.choice(["consume", "consume", "scan"]), rng.choice([1, 2, 3, 4, 6, 9])
                # With a second step, so that a reader may look between two entries.
                read = Step(600 + place, name, rng.getrandbits(32), ("erase", "checkpoint"), at)
                try:
                    history.take(read, READS[name])
                except DifferenceError as error:
                    if name == "consume" or not isinstance(error.__cause__, SnapshotExpiredError):
                        raise
                reads += history.coverage.pairs[name, "erase"] > 0
        history.close()
    assert reads > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_nothing_erased_is_found_again_in_a_random_history(seed: int) -> None:
    assert run(seed) > 3
