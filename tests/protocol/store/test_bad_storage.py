"""A storage that is away, refuses, or is full: distinguished, without secrets, and nothing half done."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txnstore
from tests.harness.s3.servers import storage_options
from tests.harness.s3.wire import Break, RequestLog, WireFault
from txnstore.errors import StorageError, StorageFullError, StorageRefusedError, UnsafeStorageError
from txnstore.storage import probe
from txnstore.storage.local import LocalStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on, open_on

# S3 -------------------------------------------------------------------------------------------------------------------


def test_an_unreachable_endpoint() -> None:
    """Retriable, and naming the URL; no secret in it."""
    options = storage_options("http://127.0.0.1:9")
    calls: list[Callable[[], object]] = [
        lambda: txnstore.open("s3://bucket/x", options),
        lambda: txnstore.create("s3://b/x", 1, options),
    ]
    for call in calls:
        with pytest.raises(StorageError, match=r"s3://b.*cannot reach the server") as raised:
            call()
        assert type(raised.value) is StorageError
        assert raised.value.retriable
        assert options["secret"] not in str(raised.value)


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (403, "InvalidAccessKeyId", "the access key is unknown there"),
        (403, "SignatureDoesNotMatch", "the secret key is wrong"),
        (403, "AccessDenied", "s3://bucket"),
        (404, "NoSuchBucket", "bucket"),
    ],
)
def test_wrong_credentials(status: int, code: str, says: str) -> None:
    """As S3 answers; asked once, because asking again would not help. The key and its secret are not repeated."""
    with RequestLog("http://127.0.0.1:9", lambda _: WireFault(Break.STATUS, status, code)) as wire:
        options = storage_options(wire.url)
        with pytest.raises(StorageRefusedError, match=says) as raised:
            txnstore.open("s3://bucket/x", options)
        assert not raised.value.retriable
        assert options["secret"] not in str(raised.value)
        assert options["key"] not in str(raised.value)
        # Both are read at a time: the second one may be on its way when the refusal of the first one is raised.
        assert Counter(request.key for request in wire.requests) <= Counter(
            ["x/store.json", "x/chains/latest/0000.json"]
        )


# Disks ----------------------------------------------------------------------------------------------------------------


class Quota:
    """A disk with ``left`` free bytes: the system call writes what fits, and then fails as the kernel's does."""

    def __init__(self, left: int) -> None:
        self.left = left
        self._write = os.write

    def __call__(self, descriptor: int, data: Any) -> int:
        if not self.left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._write(descriptor, bytes(data)[: self.left])
        self.left -= written
        return written


@pytest.mark.parametrize("left", [0, 100, 2_500])
def test_a_full_disk(tmp_path: Path, left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full before the segment, in the middle of it, or between it and the entry: the transaction did not happen."""
    with txnstore.create(tmp_path / "store") as store:
        store.create_topic("t")
        producer = store.producer("id")
        producer.begin_transaction()
        producer.send("t", random.Random(0).randbytes(1_000))
        with monkeypatch.context() as full:
            full.setattr(os, "write", Quota(left))
            with pytest.raises(StorageRefusedError, match=r"Cannot write .*: the disk is full\. Free some space"):
                producer.commit_transaction()
        assert values_in(tmp_path / "store") == []
        assert not [path for path in (tmp_path / "store").rglob("*") if path.name.startswith(".")]
        # There is space again: the producer continues, and so do others.
        producer.abort_transaction()
        with producer.transaction() as txn:
            txn.send("t", b"later")
        assert values_in(tmp_path / "store") == [b"later"]
        producer.close()


class Disk(Quota):
    """A full disk that another process looks at, which has not probed it: deletions free their bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(0)
        self._unlink = os.unlink
        monkeypatch.setattr(os, "write", self)
        monkeypatch.setattr(os, "unlink", self.unlink)
        monkeypatch.setattr(probe, "_proven", set())

    def unlink(self, path: str) -> None:
        status = Path(path).stat()
        self._unlink(path)
        self.left += status.st_size if status.st_nlink == 1 else 0


def _with_garbage(path: Path) -> Path:
    """A store with four checkpoints, and an object that no chain names."""
    with txnstore.create(path) as store:
        store.create_topic("t", config={"inline.bytes": 0})
        for number in range(4):
            with store.producer() as producer:
                producer.send("t", b"%d" % number, partition=0)
            store.checkpoint()
    orphan = path / "topics" / "t" / "0" / "orphan.parquet"
    orphan.write_bytes(bytes(100_000))
    return orphan


def test_vacuum_frees_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The store opens; old checkpoints need no entry, and make the space for the entry that announces segments."""
    orphan = _with_garbage(tmp_path / "store")
    with monkeypatch.context() as full:
        disk = Disk(full)
        with txnstore.open(tmp_path / "store") as store:
            assert "opened on a full disk" in caplog.text
            assert store.scan("t").to_table().num_rows == 4
            with pytest.raises(StorageFullError, match="the disk is full"):
                store.create_topic("u")
            report = store.vacuum(0, history=0)
            assert {kind.kind.split("/")[0] for kind in report.kinds} == {"chains", "topics"}
            assert not orphan.exists()
            assert disk.left > 100_000
            store.create_topic("u")
    assert values_in(tmp_path / "store") == [b"0", b"1", b"2", b"3"]


def test_vacuum_that_cannot_announce_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that needs an announcement is deleted without it."""
    orphan = _with_garbage(tmp_path / "store")
    with monkeypatch.context() as full:
        disk = Disk(full)
        with txnstore.open(tmp_path / "store") as store:
            full.setattr(os, "unlink", disk._unlink)  # What it deletes frees nothing: snapshots of the disk keep it.
            with pytest.raises(StorageFullError, match=r"The vacuum has deleted \d+ objects? of .*a few kilobytes"):
                store.vacuum(0, history=0)
            assert orphan.exists()
    assert values_in(tmp_path / "store") == [b"0", b"1", b"2", b"3"]


class Unproven(MemoryStore):
    """Full, or one that lets a name be created twice."""

    identity = None
    state = "sound"

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if self.state == "full":
            raise StorageFullError("the disk is full")
        if self.state == "unsafe":
            self.put(key, data)
            return True
        return super().put_if_absent(key, data)


def test_store_that_was_opened_on_a_full_disk_is_not_written_to_before_it_is_probed() -> None:
    objects = Unproven()
    create_on(objects).create_topic("t")
    objects.state = "full"
    store = open_on(objects)
    entries = len(objects.list("chains/"))
    objects.state = "unsafe"
    calls: list[Callable[[], object]] = [lambda: store.create_topic("u"), store.checkpoint]
    for call in calls:
        with pytest.raises(UnsafeStorageError):
            call()
    assert len(objects.list("chains/")) == entries
    objects.state = "sound"
    store.create_topic("u")
    assert [topic.name for topic in open_on(objects).topics()] == ["t", "u"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_clock_of_a_disk_that_takes_no_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    store = LocalStore(tmp_path)
    before = store.now_ms()

    def full(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        now = store.now_ms()
    assert before <= now <= store.now_ms()


def test_clock_of_a_full_disk_whose_root_belongs_to_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its owner may touch a folder: the error is that of the full disk, not one of Python."""
    store = LocalStore(tmp_path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def denied(_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        patch.setattr(os, "utime", denied)
        with pytest.raises(StorageFullError, match="the disk is full"):
            store.now_ms()


def values_in(path: Path) -> list[bytes]:
    with txnstore.open(path) as store:
        values: list[bytes] = store.scan("t").to_table()["value"].to_pylist()
        assert store.verify(deep=True).ok
        return values


LIMITED = """
import os, resource, sys
import txnstore
from txnstore.errors import StorageRefusedError

with txnstore.open(sys.argv[1]) as store:
    producer = store.producer("id")
    producer.begin_transaction()
    producer.send("t", os.urandom(100_000))
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    try:
        producer.commit_transaction()
    except StorageRefusedError as error:
        print(error)
    producer.abort_transaction()
    with producer.transaction() as txn:
        txn.send("t", b"small")
"""


@pytest.mark.slow
def test_file_size_limit_of_the_kernel(tmp_path: Path) -> None:
    """A process that may not write files of this size: the same as a full disk, refused by the kernel itself."""
    with txnstore.create(tmp_path / "store") as store:
        store.create_topic("t")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert "the file is too large for this file system or for the limit of this process" in done.stdout
    assert str(tmp_path / "store" / "topics") in done.stdout
    assert done.stderr == ""
    assert values_in(tmp_path / "store") == [b"small"]
