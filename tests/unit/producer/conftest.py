"""What tests of sending share: a store whose storage does what a test says, and a producer on it."""

from __future__ import annotations

import pytest

from tests.helpers.producing import Bench
from txnstore.producer import Producer


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def producer(bench: Bench) -> Producer:
    return bench.store.producer(linger=None)
