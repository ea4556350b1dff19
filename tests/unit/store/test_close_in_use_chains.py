"""A store of several chains that is closed, or whose threads end, in the middle of what others do with it."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from tests.helpers.chains import ids_of, value_counts, write_everywhere
from txnstore.runtime import threads
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import Fault, FaultStore

CHAINS, PARTITIONS = 4, 8


def test_executor_runs_tasks_in_the_caller_after_shutdown() -> None:
    pool = threads()
    pool.shutdown(wait=True)
    assert pool.submit(int, "11", base=2).result() == 3
    assert list(pool.map(abs, [-1, -2])) == [1, 2]
    failed = pool.submit(int, "x")
    with pytest.raises(ValueError, match="invalid literal"):
        failed.result()


def _closed_at(number: int) -> tuple[bool, dict[bytes, int]]:
    """Commit, and close the store right before the n-th PUT that the committing thread makes itself.

    Whether it came to that, and what another process sees.
    """
    faults = FaultStore(MemoryStore())
    store: Store = create_on(faults, CHAINS)
    store.create_topic("t", partitions=PARTITIONS)
    producer = store.producer(ids_of(store, 1))
    left = number

    def plan(n: int, operation: str, key: str) -> Fault | None:
        nonlocal left
        if operation == "put_if_absent" and own in key:
            left -= 1
            if left == 0:
                store.close()
        return None

    own = "/0001/entries/"  # The coordinator's: what is put there before the commit returns, this thread puts.
    producer.begin_transaction()
    write_everywhere(producer, b"value", partitions=PARTITIONS)
    producer.flush()
    faults.plan = plan
    producer.commit_transaction()
    with producer.transaction() as txn:
        write_everywhere(txn, b"again", partitions=PARTITIONS)
    producer.close()
    store.close()
    return left <= 0, value_counts(open_on(faults.inner))


def test_commit_completes_when_the_store_is_closed_at_the_decision() -> None:
    """The decision is stored: the call must not fail for what comes after it (API-08)."""
    assert _closed_at(1) == (True, {b"again": PARTITIONS, b"value": PARTITIONS})


@pytest.mark.slow
def test_thread_commits_during_interpreter_exit() -> None:
    """When the main thread has ended, Python's pools take nothing any more; other threads may still be at work."""
    script = """
        import threading
        from txnstore.storage.memory import MemoryStore
        from txnstore.store import create_on

        store = create_on(MemoryStore(), 4)
        store.create_topic("t", 8)
        producer = store.producer("p")

        def work():
            threading.main_thread().join()
            for _ in range(2):
                with producer.transaction():
                    for number in range(8):
                        producer.send("t", b"value", partition=number)
            print(store.scan("t").to_table().num_rows)

        threading.Thread(target=work).start()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (done.stdout.strip(), done.returncode) == ("16", 0), done.stderr
