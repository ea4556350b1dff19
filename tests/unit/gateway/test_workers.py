"""The metrics of several workers as one text."""

from __future__ import annotations

from txnstore.gateway.workers import merged_metrics


def test_each_family_is_there_once_with_the_samples_of_all_workers() -> None:
    first = '# HELP a Text.\n# TYPE a counter\na{store="x"} 1\n# HELP b More.\n# TYPE b gauge\nb 2\n'
    second = '# HELP a Text.\n# TYPE a counter\na{store="x",api="}"} 3\n'
    assert merged_metrics({0: first, 3: second}) == (
        '# HELP a Text.\n# TYPE a counter\na{store="x",worker="0"} 1\na{store="x",api="}",worker="3"} 3\n'
        '# HELP b More.\n# TYPE b gauge\nb{worker="0"} 2\n'
    )
    assert merged_metrics({}) == ""
