"""How the driver of a write opens its store: what it opened is closed if the store cannot be written."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import txnstore
from txnstore.errors import StorageRefusedError
from txnstore.spark.options import Location
from txnstore.spark.stores import open_to_write
from txnstore.storage import probe
from txnstore.storage.local import LocalStore


@pytest.fixture
def location(tmp_path: Path) -> Location:
    url = str(tmp_path / "store")
    with txnstore.create(url) as store:
        store.create_topic("t")
    return Location(url)


@pytest.mark.parametrize("error", [StorageRefusedError("access denied"), KeyboardInterrupt()])
def test_a_failed_probe_leaves_no_thread(
    location: Location, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """The driver of an application may try again for days."""

    def fail(*_: object) -> bool:
        raise error

    monkeypatch.setattr(LocalStore, "put_if_absent", fail)
    monkeypatch.setattr(probe, "_proven", {None})
    before = set(threading.enumerate())
    with pytest.raises(type(error)) as caught:
        open_to_write(location)
    # Until here the error keeps the frames, and with them a connection that was not closed.
    assert (set(threading.enumerate()) - before, caught.type) == (set(), type(error))
