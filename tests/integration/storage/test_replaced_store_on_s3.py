"""A store on S3 that is deleted and created again under a process that has it open."""

from __future__ import annotations

from typing import Any

import pytest

import txnstore
from txnstore.chain.identity import CONFIRM_MS
from txnstore.errors import StoreNotFoundError, UnsoundStoreError
from txnstore.runtime import Runtime
from txnstore.storage.registry import open_store
from txnstore.testing import ManualClock

pytestmark = pytest.mark.s3


def test_old_process_stops_and_the_new_store_is_not_harmed(s3_bucket_url: str, storage_options: dict[str, Any]) -> None:
    url, clock = f"{s3_bucket_url}/events", ManualClock()
    with txnstore.create(url, storage_options=storage_options, runtime=Runtime(monotonic=clock)) as old:
        old.create_topic("t")
        objects = open_store(url, storage_options)
        objects.delete([item.key for item in objects.list("")])
        with txnstore.create(url, storage_options=storage_options) as new:
            new.create_topic("t")
            for number in range(3):
                old.create_topic(f"lost{number}")
            for number in range(3):
                new.create_topic(f"kept{number}")
            clock.advance(CONFIRM_MS + 1)
            for call in (lambda: old.create_topic("refused"), old.topics, old.vacuum):
                with pytest.raises(StoreNotFoundError, match=f"{old.store_id} at .* {new.store_id} was created"):
                    call()
            assert [topic.name for topic in new.topics()] == ["kept0", "kept1", "kept2", "t"]
            report = new.verify(deep=True)
            assert (report.ok, report.foreign) == (True, (f"chains/{old.store_id}/",))
            with pytest.raises(UnsoundStoreError, match=old.store_id):
                new.vacuum()
            assert len(new.vacuum(foreign=[old.store_id]).deleted) == 3
            new.vacuum()
        objects.close()
