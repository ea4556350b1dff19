"""The doctor: what it finds in sound, busy and damaged stores, and that it only looks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers import keys
from tests.helpers.chains import partitions_of
from tests.helpers.compaction import DAY_MS, abort, begin, commit, new_store, reopen, runtime
from tests.helpers.connections import connection_of
from tests.helpers.damage import sealed
from tests.helpers.documents import hint, store_document
from tests.helpers.shell import ONE_CHAIN
from txnstore.chain.codec import encode
from txnstore.chain.payload import entry_hash
from txnstore.compactor import DoctorReport, Finding, Severity, doctor
from txnstore.compactor.doctor.backlog import _MANY_SEGMENTS
from txnstore.connection import Connection
from txnstore.errors import ReadOnlyError, StorageRefusedError, StoreNotFoundError
from txnstore.storage.base import ObjectInfo
from txnstore.storage.bucket import BucketSettings, LifecycleRule
from txnstore.storage.counting import CountingStore
from txnstore.storage.local import LocalStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import Fault, FaultStore, ManualClock, on


@pytest.fixture
def store(clock: ManualClock, objects: MemoryStore, chains: int) -> Store:
    store = new_store(clock, objects, chains=chains)
    store.create_topic("t", partitions=3)
    commit(store, [b"a"])
    return store


def _finding(report: DoctorReport, name: str) -> Finding:
    (finding,) = [item for item in report.findings if item.name == name]
    return finding


def _severities(report: DoctorReport) -> dict[str, str]:
    return {item.name: str(item.severity) for item in report.findings}


# Looking --------------------------------------------------------------------------------------------------------------


def test_sound_store_needs_nothing(store: Store) -> None:
    report = store.doctor(probe=True)
    assert report.ok
    assert _severities(report) == {
        "read": "ok", "list": "ok", "conditional-create": "ok", "delete": "ok", "clock": "ok", "foreign": "ok",
        "sound": "ok", "checkpoint": "ok", "compaction": "ok", "open": "ok", "members": "ok", "vacuum": "ok",
    }  # fmt: skip


def test_looking_writes_nothing_and_reads_no_segment(store: Store, objects: MemoryStore, clock: ManualClock) -> None:
    """The lists of a vacuum, and about ten requests for each chain; no object of a topic is read."""
    for _ in range(3):
        abort(store, [b"x"], partition=1)
    begin(store, [b"y"])
    clock.advance(10 * DAY_MS)
    before = {item.key: objects.get(item.key) for item in objects.list("")}
    counting = CountingStore(objects, log=True)
    with open_on(counting, read_only=True, runtime=runtime(clock)) as reader:
        chains = len(connection_of(reader).chains)
        counting.reset()
        report = reader.doctor()
    assert {item.key: objects.get(item.key) for item in objects.list("")} == before
    kinds = [kind for kind, _ in counting.log]
    assert not {"put", "put_if_absent", "delete"} & set(kinds)
    assert not [key for kind, key in counting.log if kind in ("get", "stat") and key.startswith(keys.TOPICS)]
    assert kinds.count("list") <= 9 + 6 * chains
    assert kinds.count("get") <= 4 + 9 * chains
    assert not report.ok, "the open transaction is past its timeout"


def test_probe_of_a_store_that_was_opened_read_only_is_refused(store: Store, clock: ManualClock) -> None:
    with open_on(connection_of(store).counts.inner, read_only=True, runtime=runtime(clock)) as reader:
        assert reader.doctor().ok
        with pytest.raises(ReadOnlyError, match="probed"):
            reader.doctor(probe=True)


def test_missing_store_is_an_error(clock: ManualClock) -> None:
    with pytest.raises(StoreNotFoundError):
        doctor(Connection(MemoryStore(clock=clock), read_only=True))


# Storage --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hours", "words"), [(2, "2 h ahead of"), (-2, "2 h behind")])
def test_clock_that_differs_from_the_storage_is_a_warning(clock: ManualClock, hours: int, words: str) -> None:
    there = ManualClock(clock() - hours * DAY_MS // 24)
    store = create_on(MemoryStore(clock=there), runtime=runtime(clock))
    finding = _finding(store.doctor(), "clock")
    assert finding.severity is Severity.WARN
    assert words in finding.message


class _Refusing(MemoryStore):
    """Refuses the operations that a test names, once it has."""

    refused: frozenset[str] = frozenset()

    def _check(self, operation: str) -> None:
        if operation in self.refused:
            raise StorageRefusedError(f"access denied to {operation}")

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._check("put")
        return super().put_if_absent(key, data)

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        self._check("list")
        return super().list(prefix, start_after, limit)

    def delete(self, keys: Sequence[str]) -> None:
        self._check("delete")
        super().delete(keys)

    def now_ms(self) -> int:
        self._check("clock")
        return super().now_ms()


def test_missing_permissions_are_findings(clock: ManualClock) -> None:
    objects = _Refusing(clock=clock)
    store = new_store(clock, objects)
    store.create_topic("t")
    objects.refused = frozenset({"put", "list", "delete", "clock"})
    report = store.doctor(probe=True)
    severities = _severities(report)
    assert {name: severities[name] for name in ("read", "list", "conditional-create", "delete", "clock", "vacuum")} == {
        "read": "ok", "list": "warn", "conditional-create": "warn", "delete": "warn", "clock": "note", "vacuum": "note",
    }  # fmt: skip
    assert "access denied to put" in _finding(report, "conditional-create").message


@pytest.mark.parametrize(
    ("free", "whole", "severity", "words"),
    [
        (50 << 30, 100 << 30, Severity.OK, "53,687,091,200 of 107,374,182,400 bytes of the file system are free"),
        (5 << 30, 100 << 30, Severity.OK, "are free"),
        ((5 << 30) - 1, 100 << 30, Severity.WARN, "a compaction writes new segments before"),
        (32 << 20, 64 << 20, Severity.OK, "are free"),
        ((32 << 20) - 1, 64 << 20, Severity.BAD, "commits, compactions and checkpoints fail"),
        (0, 100 << 30, Severity.BAD, "commits, compactions and checkpoints fail"),
    ],
)
def test_a_full_disk_is_found(tmp_path: Path, free: int, whole: int, severity: Severity, words: str) -> None:
    class Disk(LocalStore):
        def space(self) -> tuple[int, int]:
            return free, whole

    finding = _finding(create_on(CountingStore(Disk(tmp_path / "store"))).doctor(), "space")
    assert (finding.severity, words in finding.message) == (severity, True), finding


def test_the_space_of_a_folder_is_that_of_its_file_system(tmp_path: Path, store: Store) -> None:
    create_on(LocalStore(tmp_path / "store"))
    free, whole = LocalStore(tmp_path / "store").space()
    assert 0 < free <= whole
    assert "space" not in _severities(store.doctor())


def test_storage_that_creates_a_name_twice_is_bad(clock: ManualClock) -> None:
    class Unsafe(MemoryStore):
        def put_if_absent(self, key: str, data: bytes) -> bool:
            self.put(key, data)
            return True

    inner = MemoryStore(clock=clock)
    new_store(clock, inner)
    unsafe = Unsafe(clock=clock)
    for item in inner.list(""):
        unsafe.put(item.key, inner.get(item.key))
    report = doctor(Connection(unsafe, runtime=runtime(clock)), probe=True)
    assert _finding(report, "conditional-create").severity is Severity.BAD
    assert not report.ok


class _Bucket(MemoryStore):
    """Says that it is a bucket with these settings."""

    settings = BucketSettings("root/", versioning="Off", rules=())

    def bucket_settings(self) -> BucketSettings:
        return self.settings


_ENDS_UPLOADS = LifecycleRule("uploads", "", ends_uploads=True)


@pytest.mark.parametrize(
    ("changes", "severities"),
    [
        ({}, {"versioning": "ok", "lifecycle": "ok", "uploads": "note"}),
        ({"rules": (_ENDS_UPLOADS,)}, {"versioning": "ok", "lifecycle": "ok"}),
        ({"versioning": "Enabled", "rules": (_ENDS_UPLOADS,)}, {"versioning": "warn", "lifecycle": "ok"}),
        (
            {"versioning": "Enabled", "rules": (replace(_ENDS_UPLOADS, deletes_versions=True),)},
            {"versioning": "ok", "lifecycle": "ok"},
        ),
        ({"rules": (replace(_ENDS_UPLOADS, deletes=True),)}, {"versioning": "ok", "lifecycle": "bad"}),
        (
            {"rules": (_ENDS_UPLOADS, LifecycleRule("ice", "root/topics/x/", archives=True))},
            {"versioning": "ok", "lifecycle": "bad"},
        ),
        (
            {"rules": (_ENDS_UPLOADS, LifecycleRule("else", "other/", deletes=True))},
            {"versioning": "ok", "lifecycle": "ok"},
        ),
        ({"versioning": None, "rules": None}, {"versioning": "note", "lifecycle": "note"}),
    ],
)  # fmt: skip
def test_settings_of_the_bucket_are_judged(
    clock: ManualClock, changes: dict[str, object], severities: dict[str, str]
) -> None:
    objects = _Bucket(clock=clock)
    objects.settings = replace(_Bucket.settings, **changes)  # type: ignore[arg-type]
    judged = _severities(new_store(clock, objects).doctor())
    assert {name: judged[name] for name in ("versioning", "lifecycle", "uploads") if name in judged} == severities


# Chains ---------------------------------------------------------------------------------------------------------------


def test_store_that_cannot_be_opened_is_bad(store: Store, objects: MemoryStore) -> None:
    name = connection_of(store).keys.entry(0, 1)
    objects.delete([name])
    commit(store, [b"b"])
    report = doctor(Connection(objects, read_only=True))
    finding = _finding(report, "opens")
    assert (finding.severity, finding.command) == (Severity.BAD, "txnstore recover")
    assert name in finding.message
    assert _finding(report, "read").severity is Severity.OK


def _bad(objects: MemoryStore) -> list[tuple[str, str]]:
    report = doctor(Connection(objects, read_only=True))
    return [(item.name, item.command) for item in report.findings if item.severity is Severity.BAD]


@ONE_CHAIN
@pytest.mark.parametrize("damage", [None, b'{"version":1,"store'])
def test_lost_or_damaged_identity_is_named_once(store: Store, objects: MemoryStore, damage: bytes | None) -> None:
    """With the command that writes it again, which must be given the number of chains without a checkpoint."""
    objects.delete([keys.STORE]) if damage is None else objects.put(keys.STORE, damage)
    assert _bad(objects) == [("read", f"txnstore recover --identity {store.store_id} --chains N")]
    objects.put(keys.STORE, encode(store_document(store.store_id)))
    store.checkpoint()
    objects.delete([keys.STORE]) if damage is None else objects.put(keys.STORE, damage)
    assert _bad(objects) == [("read", "txnstore recover")]


@ONE_CHAIN
def test_identity_of_another_store_has_the_command_that_chooses(store: Store, objects: MemoryStore) -> None:
    other, third = "018bcfe5-6800-7259-8652-237b4f65d4d9", "018bcfe5-6800-7259-8652-237b4f65d4da"
    store.checkpoint()
    objects.put(keys.STORE, encode(store_document(other)))
    assert _bad(objects) == [("opens", f"txnstore recover --identity {store.store_id}")]
    objects.put(f"chains/{third}/0000/entries/00000000000000000001.json", b"x")
    assert _bad(objects) == [("opens", "txnstore recover --dry-run")]


def test_identity_of_a_newer_format_has_no_command(store: Store, objects: MemoryStore) -> None:
    document = json.loads(objects.get(keys.STORE)) | {"version": 99}
    del document["checksum"]
    objects.put(keys.STORE, sealed(json.dumps(document, separators=(",", ":")).encode()))
    assert _bad(objects) == [("read", "")]


def test_storage_that_does_not_answer_is_a_finding(store: Store, objects: MemoryStore) -> None:
    faults = FaultStore(objects, on(Fault.ERROR_BEFORE, "get", key_contains="entries/", times=None))
    finding = _finding(doctor(Connection(faults, read_only=True)), "opens")
    assert (finding.severity, finding.command) == (Severity.BAD, "")


@pytest.mark.slow
@ONE_CHAIN
def test_hints_and_checkpoints_are_judged(store: Store, objects: MemoryStore, clock: ManualClock) -> None:
    for number in range(40):
        commit(store, [b"%d" % number])
    assert _severities(store.doctor())["checkpoint"] == "ok"
    sound = objects.get(keys.latest(0))
    for damage, words in (
        (None, "is missing"),
        (b"garbage", "truncated or altered"),
        (encode(hint(7, entry_hash(objects.get(keys.entry(0, 7))))), "does not exist"),
    ):
        objects.delete([keys.latest(0)]) if damage is None else objects.put(keys.latest(0), damage)
        finding = _finding(reopen(store, clock).doctor(), "hint")
        assert (finding.severity, finding.command) == (Severity.WARN, "txnstore recover")
        assert words in finding.message
    objects.put(keys.latest(0), sound)
    faults = FaultStore(objects, on(Fault.ERROR_BEFORE, "put", key_contains="checkpoints/", times=None))
    behind = open_on(faults, runtime=runtime(clock))
    for number in range(140):
        commit(behind, [b"%d" % number])
    finding = _finding(behind.doctor(), "checkpoint")
    assert (finding.severity, finding.command) == (Severity.WARN, "txnstore checkpoint")


@ONE_CHAIN
@pytest.mark.parametrize("part", ["head", "index"])
@pytest.mark.parametrize("altered", [False, True])
def test_damaged_newest_checkpoint_is_found(
    store: Store, objects: MemoryStore, clock: ManualClock, part: str, altered: bool
) -> None:
    """An open continues with an older one, or folds all entries; the doctor says why it is slow."""
    number = store.checkpoint()
    damaged = keys.checkpoint_state(0, number) if part == "head" else keys.checkpoint_index(0, number)
    objects.put(damaged, objects.get(damaged)[:-9]) if altered else objects.delete([damaged])
    finding = _finding(reopen(store, clock).doctor(), "hint")
    assert (finding.severity, finding.command) == (Severity.WARN, "txnstore recover")
    assert f"the checkpoint of entry {number}, which " in finding.message
    assert damaged in finding.message


# Debt -----------------------------------------------------------------------------------------------------------------


def test_compaction_debt_is_counted_as_its_dry_run_counts_it(store: Store) -> None:
    commit(store, [b"b"])
    abort(store, [b"x"], partition=1)
    report, plan = store.doctor(), store.compact(dry_run=True)
    finding = _finding(report, "compaction")
    assert (finding.severity, finding.command) == (Severity.NOTE, "txnstore compact")
    assert f"{plan.segments_before} segments of 2 partitions into {plan.segments_after}" in finding.message
    assert _finding(report, "aborted-data").message.startswith("1 aborted batch of ")
    store.compact()
    assert _finding(store.doctor(), "compaction").severity is Severity.OK


def test_records_past_their_retention_are_counted(store: Store, clock: ManualClock) -> None:
    store.alter_topic("t", config={"retention.ms": 1_000})
    clock.advance(DAY_MS)
    finding = _finding(store.doctor(), "retention")
    assert (finding.severity, finding.command) == (Severity.NOTE, "txnstore retain")
    assert finding.message.startswith("1 record in 1 partition, ")
    store.retain()
    assert "retention" not in _severities(store.doctor())


@pytest.mark.usefixtures("unmerged")
@ONE_CHAIN
def test_many_small_segments_are_a_warning(store: Store) -> None:
    with store.producer("writer") as producer:
        for _ in range(_MANY_SEGMENTS):
            with producer.transaction():
                producer.send("t", b"v", partition=0)
    report = store.doctor()
    assert _finding(report, "compaction").severity is Severity.WARN
    assert not report.ok


def test_open_transaction_is_a_note_and_a_warning_past_its_timeout(store: Store, clock: ManualClock) -> None:
    begin(store, [b"open"], writer="slow")
    commit(store, [b"behind"])
    finding = _finding(store.doctor(), "open")
    assert (finding.severity, finding.command) == (Severity.NOTE, "txnstore txn show slow")
    assert "behind it: 1 committed record" in finding.message
    clock.advance(DAY_MS)
    finding = _finding(reopen(store, clock).doctor(), "expired")
    assert (finding.severity, finding.command) == (Severity.WARN, "txnstore recover")
    store.recover()
    assert _finding(store.doctor(), "open").severity is Severity.OK


def test_prepared_transaction_has_no_timeout(store: Store, clock: ManualClock) -> None:
    begin(store, [b"held"], writer="held").prepare_transaction()
    clock.advance(DAY_MS)
    finding = _finding(store.doctor(), "prepared")
    assert (finding.severity, finding.command) == (Severity.NOTE, "txnstore txn show held")
    commit(store, [b"behind"])
    assert _finding(store.doctor(), "prepared").severity is Severity.WARN


def test_members_past_their_session_are_found(store: Store, clock: ManualClock) -> None:
    first, second = (store.consumer("t", "g", session_timeout=10.0) for _ in range(2))
    first.poll(0)
    clock.advance(1)
    assert _severities(store.doctor())["members"] == "ok"
    second.poll(0)
    finding = _finding(store.doctor(), "waiting")
    assert (finding.severity, finding.command) == (Severity.NOTE, "txnstore group show g")
    clock.advance(8_000)
    second.poll(0)  # Renews its lease.
    clock.advance(8_000)
    finding = _finding(reopen(store, clock).doctor(), "expired_members")
    assert "1 member past the session timeout" in finding.message
    assert finding.message.endswith("with 3 partitions and 1 live member")
    assert finding.severity is Severity.WARN
    clock.advance(60_000)
    finding = _finding(reopen(store, clock).doctor(), "expired_members")
    assert "2 members past the session timeout" in finding.message
    assert finding.severity is Severity.NOTE, "there is no live member that needs the partitions"


# Garbage --------------------------------------------------------------------------------------------------------------


def test_garbage_is_counted_as_the_dry_run_of_a_vacuum_counts_it(store: Store, clock: ManualClock) -> None:
    partition = partitions_of(store, 0)[0]
    connection_of(store).objects.put(f"topics/t/{partition}/018bcfe5-6800-7259-8652-237b4f65d4d9.parquet", b"abandoned")
    assert "1 unreferenced object younger" in _finding(store.doctor(), "vacuum").message
    clock.advance(2 * DAY_MS)
    finding = _finding(store.doctor(), "vacuum")
    assert (finding.severity, finding.command) == (Severity.NOTE, "txnstore vacuum")
    assert "1 object of 9 bytes" in finding.message


@ONE_CHAIN
def test_chains_of_another_store_are_bad(store: Store, objects: MemoryStore) -> None:
    """What of the segments belongs to them cannot be known, so a vacuum would not run."""
    other = "018bcfe5-6800-7259-8652-237b4f65d4d9"
    objects.put(f"chains/{other}/0000/entries/00000000000000000001.json", b"x")
    report = store.doctor()
    finding = _finding(report, "foreign")
    assert (report.ok, finding.severity, finding.command) == (False, Severity.BAD, "txnstore recover --dry-run")
    assert f"recover --identity {other}" in finding.message
    assert "vacuum" not in _severities(report)
