"""Uploads of a Spark job after a writer had a clock days ahead."""

from __future__ import annotations

import random

from tests.helpers.connections import connection_of
from tests.helpers.shell import new_store
from txnstore.core.log.model import NewBatch, Segment
from txnstore.spark.writes import jobs

DAY = 86_400_000


def test_a_job_commits_although_the_chain_is_ahead_of_all_clocks() -> None:
    """The workers upload 'ten days before' the newest entry: by the chain's own time that was just now."""
    store = new_store()
    topic = store.topic("t")
    job = jobs.begin(connection_of(store), "loader", (("", 1),), {topic.name: topic.topic_id})
    early = connection_of(store).chain.state.timestamp - 10 * DAY
    segment = Segment(f"topics/t/0/{random.Random(1).random()}.parquet", "parquet", 10, "0" * 64, 3)
    batch = NewBatch("t", 0, segment, 0, 0, uploaded_at=early, topic_id=topic.topic_id)
    ended = jobs.commit(connection_of(store), job, [batch])
    assert ended is not None
    assert [(landed.base_offset, landed.limit) for landed in ended.appended] == [(0, 3)]
