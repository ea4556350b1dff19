"""A signal handler that raises an ordinary exception, such as a timeout: the outcome of a call is never guessed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.helpers.interrupts import Interrupter, everywhere, places
from txnstore.chain.chain import Chain
from txnstore.errors import UnknownOutcomeError
from txnstore.producer.sender import Sender
from txnstore.runtime import Runtime
from txnstore.storage.base import Claim
from txnstore.storage.local import LocalStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on


class Alarm(MemoryStore):
    """A handler raises after an entry is written, before the call that writes it returns."""

    error: Exception | None = None

    def put_if_absent(self, key: str, data: bytes) -> bool:
        written = super().put_if_absent(key, data)
        error, self.error = self.error, None
        if error is not None:
            raise error
        return written


def new_store(objects: MemoryStore) -> Store:
    store = create_on(objects, runtime=Runtime(clock=lambda: 1_700_000_000_000, sleep=lambda _: None))
    store.create_topic("t")
    return store


def values(store: Store) -> list[bytes]:
    return sorted(store.scan("t").to_table()["value"].to_pylist())


@pytest.mark.parametrize("error", [TimeoutError("alarm"), RuntimeError("alarm")], ids=repr)
def test_alarm_in_a_commit_is_no_refusal(error: Exception) -> None:
    """API-08: the commit landed; the repeated call finds out."""
    objects = Alarm()
    with new_store(objects) as store:
        producer = store.producer("id")
        producer.begin_transaction()
        producer.send("t", b"a")
        objects.error = error
        with pytest.raises((type(error), UnknownOutcomeError)):
            producer.commit_transaction()
        producer.commit_transaction()
        assert values(store) == [b"a"]
        with producer.transaction() as txn:
            txn.send("t", b"b")
        assert values(store) == [b"a", b"b"]
        producer.close()


@pytest.mark.parametrize("error", [TimeoutError("alarm"), RuntimeError("alarm")], ids=repr)
def test_alarm_in_a_flush_doubles_no_record(error: Exception) -> None:
    """SEQ-14: the batch is in the log; the next flush settles its future."""
    objects = Alarm()
    with new_store(objects) as store:
        producer = store.producer(linger=None)
        future = producer.send("t", b"a")
        objects.error = error
        with pytest.raises((type(error), UnknownOutcomeError)):
            future.result()
        producer.flush()
        assert future.result(0).offset == 0
        assert values(store) == [b"a"]
        producer.close()


@pytest.mark.slow
def test_alarm_anywhere_in_a_commit_is_no_refusal() -> None:
    """Also while the thread waits for another one, which may commit the command after the alarm."""

    def attempt(interrupter: Interrupter) -> bool:
        with new_store(MemoryStore()) as store:
            producer = store.producer("id")
            producer.begin_transaction()
            producer.send("t", b"a")
            try:
                alarmed = interrupter.run(producer.commit_transaction)
            except UnknownOutcomeError:
                alarmed = interrupter.struck
            store.producer("other").close()  # It commits what waits.
            if alarmed:
                producer.commit_transaction()
            assert values(store) == [b"a"]
            producer.close()
            return alarmed

    submitting = places(Sender._submit, Chain.submit, Chain._commit_round, Chain._commit, Chain._offer, Claim.resolve)
    assert len(list(everywhere(submitting, attempt, TimeoutError("alarm")))) > 30


def test_alarm_after_a_file_was_linked_is_not_the_error_of_the_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object exists, so the storage has refused nothing."""
    link, objects = os.link, LocalStore(tmp_path)

    def alarm(source: str, target: str) -> None:
        link(source, target)
        raise TimeoutError

    monkeypatch.setattr(os, "link", alarm)
    claim = Claim("entry", b"ours")
    with pytest.raises(TimeoutError):
        claim.resolve(objects, lambda _: None)
    monkeypatch.setattr(os, "link", link)
    assert claim.doubtful
    assert claim.resolve(objects, lambda _: None) == b"ours"
