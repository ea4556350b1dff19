"""The local store when the disk, the rights or the process fail it, and what it leaves behind."""

from __future__ import annotations

import errno
import mmap
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txnstore.errors import (
    ObjectNotFoundError,
    StorageError,
    StorageRefusedError,
    UnknownOutcomeError,
    UnsafeStorageError,
)
from txnstore.sql.local import is_intact
from txnstore.storage import local as local_module
from txnstore.storage.base import Claim, make_durable
from txnstore.storage.counting import CountingStore
from txnstore.storage.local import HOUR_MS, LocalStore
from txnstore.storage.probe import probe_once
from txnstore.storage.retry import RetryingStore


def files_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def fails(monkeypatch: pytest.MonkeyPatch, name: str, code: int, when: Callable[..., bool] = lambda *_: True) -> None:
    """From now on the system call os.<name> fails with this code, as it would on a broken file system."""
    real = getattr(os, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if when(*args):
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    monkeypatch.setattr(os, name, call)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root)


WRITES = ["put", "put_if_absent"]


def test_reading_makes_no_folder(store: LocalStore, root: Path) -> None:
    assert store.list("") == []
    store.delete(["a"])
    assert store.sweep() == 0
    for read in (lambda: store.get("a"), lambda: store.stat("a"), store.now_ms):
        with pytest.raises(ObjectNotFoundError):
            read()
    assert not root.exists()


def test_the_root_is_made_with_its_parents(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "x" / "y" / "store")
    assert store.put_if_absent("a/b/c", b"1")
    assert files_below(tmp_path) == ["x/y/store/a/b/c"]


@pytest.mark.parametrize("write", WRITES)
def test_writes_leave_no_temporary_files(store: LocalStore, root: Path, write: str) -> None:
    for _ in range(2):
        getattr(store, write)("a/b", b"1")
    assert files_below(root) == ["a/b"]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_failed_write_leaves_no_files(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, write: str, code: int, call: str
) -> None:
    store.put("a/old", b"1")
    fails(monkeypatch, call, code)
    with pytest.raises(StorageError) as caught:
        getattr(store, write)("a/new", b"1")
    assert not isinstance(caught.value, UnknownOutcomeError), "nothing happened, and we know it"
    assert isinstance(caught.value, StorageRefusedError) == (code != errno.EIO), "only an I/O error may pass by itself"
    assert str(root / "a/new") in str(caught.value)
    monkeypatch.undo()
    assert files_below(root) == ["a/old"]
    assert getattr(store, write)("a/new", b"1") is not False


def test_full_disk_error_has_advice(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(monkeypatch, "write", errno.ENOSPC)
    with pytest.raises(StorageRefusedError, match=r"the disk is full\. Free some space"):
        store.put("a", b"1")


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.EROFS, "read-only"), (errno.EACCES, "permission denied"), (errno.ENOSPC, "the disk is full")],
)
def test_a_folder_that_cannot_be_made(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, write: str, code: int, words: str
) -> None:
    fails(monkeypatch, "mkdir", code)
    with pytest.raises(StorageRefusedError, match=f"Cannot make the folder {root}: .*{words}.*\\."):
        getattr(store, write)("a/b", b"1")
    assert not root.exists()


@pytest.mark.parametrize("write", WRITES)
def test_a_file_in_place_of_a_folder(store: LocalStore, root: Path, write: str) -> None:
    store.put("a", b"1")
    with pytest.raises(StorageRefusedError, match="is a file"):
        getattr(store, write)("a/b", b"1")
    assert files_below(root) == ["a"]


def test_a_pipe_in_place_of_an_object_is_read_as_damage(store: LocalStore, root: Path) -> None:
    """A read must not wait for a writer of it: it would stop the work on all other objects."""
    store.put("segments/1", b"x")
    (root / "segments/1").unlink()
    os.mkfifo(root / "segments/1")
    assert store.get("segments/1") == b""
    with pytest.raises(StorageError):
        store.get("segments/1", 1, 2)
    assert not is_intact(str(root / "segments/1"), "00" * 32, 1)


@pytest.mark.parametrize("write", WRITES)
def test_a_folder_in_place_of_an_object(store: LocalStore, root: Path, write: str) -> None:
    store.put("a/b", b"1")
    with pytest.raises(StorageRefusedError, match="a folder has this name"):
        getattr(store, write)("a", b"1")
    store.delete(["a"])
    assert files_below(root) == ["a/b"]


def test_a_file_in_place_of_the_root(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    store = LocalStore(tmp_path / "file")
    calls: list[Callable[[], object]] = [
        lambda: store.get("a"),
        lambda: store.stat("a"),
        lambda: store.list(""),
        lambda: store.put("a", b"1"),
        lambda: store.put_if_absent("a", b"1"),
        store.now_ms,
    ]
    for call in calls:
        with pytest.raises(StorageRefusedError, match="file, not a folder"):
            call()


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.EMLINK])
def test_a_file_system_without_hard_links_is_unsafe(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """OBJ-01."""
    fails(monkeypatch, "link", code)
    with pytest.raises(UnsafeStorageError, match="hard links"):
        store.put_if_absent("a", b"1")
    assert files_below(root) == []


def test_an_io_error_of_the_link_is_unknown(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(monkeypatch, "link", errno.EIO)
    with pytest.raises(UnknownOutcomeError):
        store.put_if_absent("a", b"1")


@pytest.mark.parametrize("write", WRITES)
def test_a_name_that_cannot_be_flushed_is_unknown(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    """The object is there now, but a power cut may take it: neither success nor failure (OBJ-02)."""
    store.put("other", b"1")

    def broken(path: str) -> None:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(local_module, "fsync_folder", broken)
    with pytest.raises(UnknownOutcomeError):
        getattr(store, write)("a", b"1")
    monkeypatch.undo()
    assert files_below(root) == ["a", "other"]


class Flushes:
    """The flushes of a disk: those that succeed are recorded, the others raise an I/O error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, broken: Callable[[str], bool] = lambda _: False) -> None:
        self.done: list[str] = []
        self.broken = broken
        monkeypatch.setattr(local_module, "fsync_folder", self._flush)
        monkeypatch.setattr(local_module, "fsync_file", lambda descriptor: self._flush(_path_of(descriptor)))

    def _flush(self, path: str) -> None:
        if self.broken(path):
            raise OSError(errno.EIO, "I/O error")
        if ".tmp-" not in path:
            self.done.append(path)


def _path_of(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


def test_losing_create_flushes_the_existing_object(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its content and its name: the caller continues to depend on it (OBJ-02)."""
    store.put_if_absent("a/b", b"1")
    flushes = Flushes(monkeypatch)
    assert store.put_if_absent("a/b", b"2") is False
    assert flushes.done == [f"{store.root}/a/b", f"{store.root}/a"]
    flushes.broken = lambda path: path.endswith("/a/b")
    with pytest.raises(UnknownOutcomeError, match="survives a crash"):
        store.put_if_absent("a/b", b"2")


def test_create_of_a_taken_name_writes_nothing(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that comes late pays for the flush of the winner's bytes and of its folders, not of its own bytes."""
    store.put_if_absent("a/b/c", b"1")
    created, flushes = list[str](), Flushes(monkeypatch)
    monkeypatch.setattr("txnstore.storage.local._create_file", created.append)
    assert LocalStore(store.root).put_if_absent("a/b/c", b"2") is False
    assert created == []
    flushed = {f"{store.root}{name}" for name in ("", "/a", "/a/b", "/a/b/c")}
    assert flushed <= {*flushes.done}, "a process that has just opened the store knows of no folder that is flushed"
    with pytest.raises(StorageRefusedError, match="a folder has this name"):
        store.put_if_absent("a/b", b"2")


def test_create_of_a_taken_name_reports_a_failing_flush_of_its_folders(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_if_absent("a/b/c", b"1")
    Flushes(monkeypatch, lambda path: path == f"{store.root}/a")
    with pytest.raises(UnknownOutcomeError, match="survives a crash"):
        LocalStore(store.root).put_if_absent("a/b/c", b"2")


def test_claim_is_won_only_when_its_name_is_flushed(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """OBJ-02: after a flush that failed our bytes are visible, and a power cut may still take them."""
    store.put_if_absent("a/old", b"1")
    flushes, pauses = Flushes(monkeypatch, lambda path: path.endswith("/a")), list[int]()
    claim = Claim("a/new", b"ours")
    with pytest.raises(UnknownOutcomeError, match="did not confirm"):
        claim.resolve(store, pauses.append)
    assert store.get("a/new") == b"ours"
    assert claim.doubtful
    flushes.broken = lambda _: len(pauses) < 11
    assert claim.resolve(store, pauses.append) == b"ours"
    assert flushes.done[-1] == f"{store.root}/a"
    assert pauses == [*range(1, 9), *range(1, 4)]


def test_sync_flushes_objects_and_the_names_of_their_folders(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a/b/1", b"1")
    flushes = Flushes(monkeypatch)
    make_durable(CountingStore(RetryingStore(store)), ["a/b/1", "a/b/missing", "nowhere/x"])
    root = store.root
    assert flushes.done == [f"{root}/a/b/1", root, f"{root}/a", f"{root}/a/b", f"{root}/nowhere"]
    flushes.broken = lambda path: path.endswith("/a")
    with pytest.raises(UnknownOutcomeError):
        store.sync(["a/b/1"])


def test_repeated_deletion_flushes_what_the_first_one_could_not(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object is not visible any more, and a power cut may bring it back: a repetition must not succeed for that."""
    store.put("a/1", b"1")
    flushes = Flushes(monkeypatch, lambda path: path.endswith("/a"))
    for _ in range(2):
        with pytest.raises(UnknownOutcomeError, match="survives a crash"):
            store.delete(["a/1"])
    flushes.broken = lambda _: False
    store.delete(["a/1", "nowhere/x", "a/file/y"])
    assert f"{store.root}/a" in flushes.done


def test_repeated_deletion_flushes_what_was_deleted_before_another_one_failed(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("a/1", "b/1"):
        store.put(key, b"1")
    flushes, unlink = Flushes(monkeypatch), os.unlink

    def failing(path: str) -> None:
        if path.endswith("/b/1"):
            raise OSError(errno.EIO, "I/O error")
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", failing)
        with pytest.raises(StorageError):
            store.delete(["a/1", "b/1"])
    store.delete(["a/1", "b/1"])
    assert flushes.done == [f"{store.root}/a", f"{store.root}/b"]


def test_folder_above_the_root_that_was_not_flushed_is_flushed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt makes it and fails; the second one finds it, and must not take it for an old one."""
    flushes = Flushes(monkeypatch, lambda path: path == str(tmp_path))
    store = LocalStore(tmp_path / "x" / "store")
    with pytest.raises(StorageError):
        store.put("a", b"1")
    flushes.broken = lambda _: False
    store.put("a", b"1")
    assert str(tmp_path) in flushes.done


def test_content_is_flushed_before_the_name_exists_and_the_name_after(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OBJ-06: the order of system calls on which crash safety rests."""
    store.put("a/old", b"1")
    calls: list[str] = []
    real_fsync_file, real_fsync_folder, real_link = local_module.fsync_file, local_module.fsync_folder, os.link

    def flush_file(descriptor: int) -> None:
        calls.append(f"flush content, name exists: {(root / 'a/new').exists()}")
        real_fsync_file(descriptor)

    def flush_folder(path: str) -> None:
        calls.append(
            f"flush folder {path}, temporary files: {sum('.tmp-' in name.name for name in Path(path).iterdir())}"
        )
        real_fsync_folder(path)

    def link(source: str, target: str) -> None:
        calls.append("link")
        assert Path(source).read_bytes() == b"12345"
        real_link(source, target)

    monkeypatch.setattr(local_module, "fsync_file", flush_file)
    monkeypatch.setattr(local_module, "fsync_folder", flush_folder)
    monkeypatch.setattr(os, "link", link)
    assert store.put_if_absent("a/new", b"12345")
    assert calls == [
        "flush content, name exists: False",
        "link",
        f"flush folder {root}/a, temporary files: 0",
    ]


def test_new_folders_are_flushed_into_their_parents_once(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(local_module, "fsync_folder", flushed.append)
    store.put("a/b/1", b"")
    above = str(root.parent)
    assert flushed == [above, f"{root}", f"{root}/a", f"{root}/a/b"]
    flushed.clear()
    store.put("a/b/2", b"")
    assert flushed == [f"{root}/a/b"]
    # Another process cannot know whether the maker of the folders lived to flush them.
    flushed.clear()
    LocalStore(root).put("a/b/3", b"")
    assert flushed == [above, f"{root}", f"{root}/a", f"{root}/a/b"]


def test_a_short_write_is_continued(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:7]))
    store.put("a", b"0123456789" * 10)
    assert store.get("a") == b"0123456789" * 10


def test_deleted_folder_is_created_again(store: LocalStore, root: Path) -> None:
    store.put("a/b/1", b"1")
    (root / "a/b/1").unlink()
    (root / "a/b").rmdir()
    assert store.put_if_absent("a/b/1", b"2")
    assert store.get("a/b/1") == b"2"


def test_killed_writer_leaves_only_unlisted_files(root: Path) -> None:
    """SIGKILL in the middle of a create: no torn object, the name is free, and the sweep removes the rest."""
    script = (
        "import os, signal, sys\n"
        "from txnstore.storage import local\n"
        "local.fsync_file = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)\n"
        "local.LocalStore(sys.argv[1]).put_if_absent('a/b', b'x' * 100_000)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(root)], check=False, cwd=Path(__file__).parents[3])
    assert done.returncode == -9
    store = LocalStore(root)
    assert len(files_below(root)) == 1, "the temporary file is still there"
    assert store.list("") == []
    with pytest.raises(ObjectNotFoundError):
        store.get("a/b")
    assert store.put_if_absent("a/b", b"2") is True
    assert store.sweep() == 0, "too young"
    assert store.sweep(older_than_ms=-1) == 1
    assert files_below(root) == ["a/b"]


def test_sweep_deletes_only_old_temporary_files(store: LocalStore, root: Path) -> None:
    store.put("a/b", b"1")
    now_s = store.now_ms() / 1000
    for name, age_s in (("a/.tmp-old", 3601), ("a/.tmp-young", 3500), ("a/tmp-old", 9999)):
        (root / name).write_bytes(b"")
        os.utime(root / name, (now_s - age_s, now_s - age_s))
    assert store.sweep(HOUR_MS) == 1
    assert files_below(root) == ["a/.tmp-young", "a/b", "a/tmp-old"]
    assert [info.key for info in store.list("")] == ["a/b", "a/tmp-old"]


def test_a_list_walks_only_below_the_folder_of_the_prefix(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("entries/1", "entries/2", "other/1", "entries/deep/1", "entries/deeper/1"):
        store.put(key, b"")
    scanned: list[str] = []
    real = os.scandir

    def scandir(path: str) -> Any:
        scanned.append(os.path.relpath(path, store.root))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert [info.key for info in store.list("entries/", "entries/2", 1)] == ["entries/deep/1"]
    assert scanned == ["entries", "entries/deep"]
    scanned.clear()
    assert [info.key for info in store.list("entries/", "entries/deep/1")] == ["entries/deeper/1"]
    assert scanned == ["entries", "entries/deep", "entries/deeper"]


def test_illegal_file_names_are_not_listed(store: LocalStore, root: Path) -> None:
    store.put("a", b"")
    for name in (b"line\nfeed", b"back\\slash", b"not-utf8-\xff", b".tmp-x"):
        Path(os.fsdecode(os.fsencode(root) + b"/" + name)).write_bytes(b"")
    assert [info.key for info in store.list("")] == ["a"]


def test_an_unreadable_object(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("a", b"1")
    fails(monkeypatch, "stat", errno.EACCES, lambda path: str(path).endswith("/a"))
    with pytest.raises(StorageRefusedError, match="permission denied"):
        store.stat("a")


def test_the_root_is_absolute_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = LocalStore("relative")
    store.put("a", b"1")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert store.get("a") == b"1"
    assert store.url == f"file://{tmp_path}/relative"


@pytest.mark.parametrize("path", ["", "nul\0byte"])
def test_invalid_root_is_refused(path: str) -> None:
    with pytest.raises(StorageRefusedError, match="not the path of a folder"):
        LocalStore(path)


def test_deletion_removes_folders_that_it_empties(store: LocalStore, root: Path) -> None:
    """A vacuum would walk one empty folder for each old checkpoint; folders of the first level stay."""
    for key in ("chains/0/checkpoints/1/head", "chains/0/checkpoints/2/head", "_probe/1"):
        store.put(key, b"")
    store.delete(["chains/0/checkpoints/1/head", "_probe/1"])
    assert sorted(path.name for path in (root / "chains/0/checkpoints").iterdir()) == ["2"]
    assert (root / "_probe").is_dir()
    store.delete(["chains/0/checkpoints/2/head"])
    assert [path.name for path in (root / "chains").iterdir()] == []
    store.put("chains/0/checkpoints/3/head", b"")
    assert [info.key for info in store.list("chains/")] == ["chains/0/checkpoints/3/head"]


def test_write_survives_deletions_that_remove_its_folder(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real, times = os.open, iter(range(3))

    def removes_first(path: str, *arguments: Any) -> int:
        if "topics/t/0/" in path and next(times, None) is not None:
            Path(path).parent.rmdir()
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", removes_first)
    assert store.put_if_absent("topics/t/0/a", b"1")
    assert store.get("topics/t/0/a") == b"1"


@pytest.mark.parametrize("write", WRITES)
def test_write_survives_deletions_of_others_above_its_folder(root: Path, store: LocalStore, write: str) -> None:
    """A vacuum in another process removes a deleted topic's folders, which this process knows to exist."""
    store.put("topics/t/0/a", b"1")
    LocalStore(root).delete(["topics/t/0/a"])
    assert not (root / "topics/t").exists()
    getattr(store, write)("topics/t/1/b", b"2")
    assert store.get("topics/t/1/b") == b"2"


def test_a_mapped_file_is_written_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pages leave the memory of the process; pieces need not begin with a page."""
    monkeypatch.setattr(local_module, "_WRITE_BYTES", 5_000)
    content = random.Random(1).randbytes(23_456)
    (tmp_path / "file").write_bytes(content)
    with (tmp_path / "file").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        store = LocalStore(tmp_path / "store")
        store.put("mapped", mapped)  # type: ignore[arg-type]
        assert store.put_if_absent("again", mapped)  # type: ignore[arg-type]
    assert store.get("mapped") == store.get("again") == content


def test_file_system_that_changes_names_is_unsafe(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share of Windows cuts the dot at the end; one that ignores case keeps it as it was given."""
    probe_once(store, lambda: "probe")
    assert files_below(root) == []
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: [name.rstrip(".") for name in real(path)])
    with pytest.raises(UnsafeStorageError, match="changes the names of files"):
        LocalStore(root).check_names()
    with pytest.raises(UnsafeStorageError, match="changes the names of files"):
        probe_once(LocalStore(root.parent / "another"), lambda: "probe")
    assert files_below(root.parent) == []
