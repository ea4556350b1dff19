"""Background work on a transaction: at most one at a time for an id, and who asks for its commands."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.harness.executors import DeferredExecutor
from txnstore.chain.principals import asking, asking_principal, with_principal
from txnstore.connection import Connection
from txnstore.coordinator.completion import Completions
from txnstore.core.authorization.model import ANONYMOUS
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on
from txnstore.testing import ManualClock


def _connection() -> Connection:
    return create_on(MemoryStore(clock=ManualClock()))._connection


def test_work_that_a_caller_runs_is_asked_for_by_the_process() -> None:
    """As the same work in a thread of the executor: entries do not name a client whose later request waits for it."""
    connection, executor, asked = _connection(), DeferredExecutor(), list[str]()
    completions = Completions(connection.chains, lambda: executor, lambda _: None)
    completions.in_background("orders", lambda: asked.append(asking_principal(ANONYMOUS)))
    with asking("User:alice"):
        completions.wait_for("orders")
    assert asked == [ANONYMOUS]
    assert executor.run_all() == 0


def test_work_in_another_thread_is_asked_for_by_the_same_client() -> None:
    def ask() -> str:
        return asking_principal(ANONYMOUS)

    with asking("User:alice"):
        work = with_principal(ask)
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(work).result() == "User:alice"
        assert thread.submit(with_principal(ask)).result() == ANONYMOUS
