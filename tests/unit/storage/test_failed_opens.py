"""A store that is not opened leaves no thread: a service may try again for days."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import txnstore
from txnstore.errors import CorruptionError, InvalidConfigError, StorageRefusedError, TxnStoreError
from txnstore.storage import probe
from txnstore.storage.local import LocalStore


def _refuse(*_: object) -> bool:
    msg = "access denied"
    raise StorageRefusedError(msg)


def refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStore, "put_if_absent", _refuse)
    monkeypatch.setattr(probe, "_proven", {None})
    txnstore.open(url)


def damaged(url: str, _: pytest.MonkeyPatch) -> None:
    newest = max(path for path in Path(url).glob("chains/**/*.json") if "latest" not in path.parts)
    newest.write_bytes(b"damaged")
    txnstore.open(url)


def other_chains(url: str, _: pytest.MonkeyPatch) -> None:
    txnstore.create(url, chains=3, exist_ok=True)


@pytest.mark.parametrize(
    ("attempt", "error"),
    [(refused, StorageRefusedError), (damaged, CorruptionError), (other_chains, InvalidConfigError)],
)
def test_a_failed_open_leaves_no_thread(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    attempt: Callable[[str, pytest.MonkeyPatch], None],
    error: type[TxnStoreError],
) -> None:
    url = str(tmp_path / "store")
    with txnstore.create(url) as store:
        for name in ("t", "u"):
            store.create_topic(name)
    before = set(threading.enumerate())
    with pytest.raises(error) as caught:
        attempt(url, monkeypatch)
    # Until here the error keeps the frames, and with them a connection that was not closed.
    assert (set(threading.enumerate()) - before, caught.type) == (set(), error)
