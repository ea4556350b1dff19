"""Checkpoints are written in the background: no commit waits for one, or fails because of one (PST-02)."""

from __future__ import annotations

import logging
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from tests.harness.executors import DeferredExecutor, InlineExecutor
from tests.helpers import keys
from tests.helpers.connections import connection_of
from tests.helpers.shell import GatedStore, names_in_bucket, new_store, runtime, topic
from txnstore.chain.chain import Chain
from txnstore.chain.checkpoints import checkpoint
from txnstore.chain.context import CHECKPOINT_EVERY, ChainContext
from txnstore.core.catalog.model import CreateTopic
from txnstore.core.model import Map
from txnstore.core.state import first_state, replace
from txnstore.core.transactions.commands import InitProducer
from txnstore.errors import StorageError
from txnstore.runtime import Runtime
from txnstore.storage.base import ObjectStore
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import open_on
from txnstore.testing import Fault, FaultStore, ManualClock, no_faults, on

EVERY = 2


def _chain(objects: ObjectStore, background: Executor) -> Chain:
    """A chain whose checkpoints a test executes."""
    context = ChainContext(
        objects, keys.KEYS, runtime(), InlineExecutor(), checkpoint_every=EVERY, background=lambda: background
    )
    chain = Chain(context, 0)
    chain.load(None)
    return chain


def _commit(chain: Chain, *names: str) -> None:
    for name in names:
        chain.submit(CreateTopic(topic(name)))


def _saved(objects: ObjectStore) -> list[int]:
    sequences = (keys.checkpoint_sequence(item.key) for item in objects.list(keys.checkpoints(0)))
    return [sequence for sequence in sequences if sequence is not None]


class _Full(Executor):
    """An executor without room for another thread."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        raise RuntimeError("can't start new thread")


def test_a_large_state_is_saved_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its head has all ids and groups; with twice as many of them the checkpoints are half as frequent."""
    monkeypatch.setattr(checkpoint, "MANY_NAMES", 4)
    bucket = MemoryStore()
    chain = _chain(bucket, InlineExecutor())
    for number in range(100):
        chain.submit(InitProducer(f"id{number}", 60_000))
    assert _saved(bucket) == [2, 4, 8, 16, 32, 64, 96]
    assert _chain(bucket, InlineExecutor()).state == chain.state


def test_a_state_with_many_released_objects_is_saved_less_often() -> None:
    """They are in the head too, for the grace period of a vacuum."""
    names = {f"topics/t/0/{number}.parquet": 1 for number in range(checkpoint.MANY_NAMES)}
    assert checkpoint.interval(first_state(), 64) == 64
    assert checkpoint.interval(replace(first_state(), released=Map(names)), 64) == 128
    assert checkpoint.interval(replace(first_state(), dropped=Map(names)), 64) == 128
    topics = {name: topic(name) for name in names}
    assert checkpoint.interval(replace(first_state(), topics=Map(topics)), 64) == 128


def test_checkpoints_cost_a_twentieth_of_a_request_per_entry() -> None:
    """An index file, the head and the hint for 64 entries; a commit itself is one PUT and nothing else."""
    objects = CountingStore(MemoryStore(), log=True)
    chain = Chain(ChainContext(objects, keys.KEYS, runtime(), InlineExecutor(), background=InlineExecutor), 0)
    chain.load(None)
    objects.reset()
    for _ in range(2_000):
        chain.submit(InitProducer())
    entries = [key for _, key in objects.log if key.startswith(keys.entries(0))]
    assert len(entries) == 2_000
    assert "get" not in [kind for kind, _ in objects.log]
    assert 0 < len(objects.log) - len(entries) <= 0.05 * len(entries)


@pytest.mark.parametrize(
    "error", [MemoryError("parquet"), OSError("arrow"), StorageError("503"), ValueError("a bug")], ids=repr
)
def test_any_failure_of_a_checkpoint_leaves_the_commit_alone(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The entry is stored when the checkpoint begins, so the commit succeeds; an operator sees the failure."""

    def failing(*args: object, **kwargs: object) -> None:
        raise error

    bucket = MemoryStore()
    chain = _chain(bucket, InlineExecutor())
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, logger="txnstore.chain"):
        patch.setattr(checkpoint, "encode_file", failing)
        _commit(chain, "a", "b", "c", "d")
    assert names_in_bucket(bucket) == ["a", "b", "c", "d"]
    assert (chain.metrics.checkpoints, chain.metrics.checkpoint_failures) == (0, 2)
    assert [record.message for record in caplog.records] == ["checkpoint not written"] * 2
    _commit(chain, "e", "f")
    assert _saved(bucket) == [6]
    assert (chain.metrics.checkpoints, chain.metrics.checkpoint_failures) == (1, 2)


def test_missing_thread_for_a_checkpoint_leaves_the_commit_alone() -> None:
    chain = _chain(MemoryStore(), _Full())
    _commit(chain, "a", "b", "c")
    assert chain.state.sequence == 3
    assert chain.metrics.checkpoint_failures == 1


def test_commits_do_not_wait_for_checkpoints() -> None:
    bucket, background = MemoryStore(), DeferredExecutor()
    chain = _chain(bucket, background)
    _commit(chain, "a", "b", "c")
    assert _saved(bucket) == []
    assert background.run_all() == 1
    assert _saved(bucket) == [2]


def test_one_checkpoint_of_a_chain_is_written_at_a_time() -> None:
    """Of those that are due meanwhile only the newest is written."""
    bucket, background = MemoryStore(), DeferredExecutor()
    chain = _chain(bucket, background)
    _commit(chain, *"abcdef")
    assert background.run_all() == 1
    assert _saved(bucket) == [6]
    _commit(chain, "g", "h")
    assert background.run_all() == 1
    assert _saved(bucket) == [6, 8]


def test_close_waits_for_a_running_checkpoint() -> None:
    """With threads: the store is closed while a checkpoint is being written; afterwards it is complete."""
    bucket = MemoryStore()
    new_store(bucket).close()
    gated = GatedStore(bucket)
    store = open_on(gated, runtime=Runtime(ManualClock(), lambda _: None))
    gate = gated.hold("put", ".index")
    chain = connection_of(store).chain
    while chain.state.sequence < CHECKPOINT_EVERY:
        _commit(chain, f"t{chain.state.sequence}")
    gate.wait_for()
    assert _saved(bucket) == []
    gate.open()
    store.close()
    assert _saved(bucket) == [CHECKPOINT_EVERY]


def test_metrics_of_a_store_count_failed_checkpoints() -> None:
    faults = FaultStore(MemoryStore(), no_faults)
    store = new_store(faults)
    faults.plan = on(Fault.UNAVAILABLE_503, "put", key_contains="checkpoints/", times=None)
    chain = connection_of(store).chain
    while chain.state.sequence < CHECKPOINT_EVERY:
        _commit(chain, f"t{chain.state.sequence}")
    assert (store.metrics().checkpoints, store.metrics().checkpoint_failures) == (0, 1)


def test_checkpoint_of_an_empty_chain_writes_nothing(clock: ManualClock) -> None:
    """There is nothing to save, and a writer that dies in between would leave half a checkpoint."""
    objects = MemoryStore(clock=clock)
    chain = _chain(objects, InlineExecutor())
    assert chain.checkpoint() == 0
    assert list(objects.list("")) == []
