"""A store that is deleted, or deleted and created again, under a process that has it open."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import txnstore
from txnstore.errors import StorageRefusedError
from txnstore.storage.local import LocalStore


def _tree(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def test_commit_into_a_deleted_store_fails(tmp_path: Path) -> None:
    """Nothing is acknowledged into a folder that a write made again."""
    root = tmp_path / "store"
    with txnstore.create(root) as store:
        store.create_topic("t")
        producer = store.producer(linger=None, delivery_timeout=0)
        producer.send("t", b"1").result()
        shutil.rmtree(root)
        with pytest.raises(StorageRefusedError, match="was deleted while it was in use"):
            store.create_topic("u")
        with pytest.raises(StorageRefusedError, match="was deleted while it was in use"):
            producer.send("t", b"2").result()
        with pytest.raises(StorageRefusedError, match="was deleted while it was in use"):
            store.topics()
        assert not root.exists()


def test_commit_into_a_store_that_was_created_again_fails(tmp_path: Path) -> None:
    """The new store has nothing of the old one, and continues."""
    root = tmp_path / "store"
    with txnstore.create(root) as old:
        old.create_topic("t")
        shutil.rmtree(root)
        with txnstore.create(root) as new:
            new.create_topic("t")
            before = _tree(root)
            for call in (lambda: old.create_topic("u"), old.topics, old.producer, old.checkpoint):
                with pytest.raises(StorageRefusedError, match="was deleted and created again"):
                    call()
            assert _tree(root) == before
            with new.producer("id") as producer, producer.transaction() as txn:
                txn.send("t", b"1")
            assert new.scan("t").to_table().num_rows == 1
            assert new.verify(deep=True).ok


_EXIT = """
import atexit, os, sys

def late():
    others = [open(os.devnull) for _ in range(8)]  # They get the numbers of the descriptors that are closed by now.
    print(objects.get("key"))

atexit.register(late)  # Before weakref registers its own, so that it runs after it.
from txnstore.storage.local import LocalStore
objects = LocalStore(sys.argv[1])
objects.put("key", b"value")
"""


def test_the_exit_of_the_interpreter_is_not_taken_for_a_deletion(tmp_path: Path) -> None:
    """A producer ends its transaction then, and a consumer leaves its group: with several threads and files."""
    run = [sys.executable, "-c", _EXIT, str(tmp_path / "store")]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("b'value'\n", "")


def test_closed_store_opens_the_new_one(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with txnstore.create(root) as store:
        first = store.store_id
        shutil.rmtree(root)
        txnstore.create(root).close()
        store.close()
        assert store.store_id != first


def test_pickled_local_store_knows_no_folder(tmp_path: Path) -> None:
    objects = LocalStore(tmp_path / "store")
    objects.put("a", b"1")
    again = pickle.loads(pickle.dumps(objects))  # noqa: S301 - our own bytes
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "store").mkdir()
    with pytest.raises(StorageRefusedError, match="created again"):
        objects.put("a", b"2")
    again.put("a", b"2")
    objects.close()
    assert objects.get("a") == b"2"
