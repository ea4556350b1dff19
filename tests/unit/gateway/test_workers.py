"""The metrics of several workers as one text, and a worker that cannot serve."""

from __future__ import annotations

import asyncio
import multiprocessing
import sys

import pytest

from txnstore.gateway.workers import Started, WorkerError, Workers, merged_metrics


def test_each_family_is_there_once_with_the_samples_of_all_workers() -> None:
    first = '# HELP a Text.\n# TYPE a counter\na{store="x"} 1\n# HELP b More.\n# TYPE b gauge\nb 2\n'
    second = '# HELP a Text.\n# TYPE a counter\na{store="x",api="}"} 3\n'
    assert merged_metrics({0: first, 3: second}) == (
        '# HELP a Text.\n# TYPE a counter\na{store="x",worker="0"} 1\na{store="x",api="}",worker="3"} 3\n'
        '# HELP b More.\n# TYPE b gauge\nb{worker="0"} 2\n'
    )
    assert merged_metrics({}) == ""


def test_a_worker_that_ends_before_it_has_served_once_ends_all() -> None:
    spawn = multiprocessing.get_context("spawn")

    def start(_number: int) -> Started:
        own_end, other_end = spawn.Pipe()
        process = spawn.Process(target=sys.exit, args=(3,))
        process.start()
        other_end.close()
        return Started(process, own_end)

    with pytest.raises(WorkerError, match="worker 0 has ended with status 3 before it served"):
        asyncio.run(Workers(start, 1, 60).run(lambda: None))
