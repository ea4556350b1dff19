"""Concurrent alterations of a topic."""

from __future__ import annotations

from pathlib import Path

import txnstore
from tests.helpers.connections import connection_of


def test_concurrent_changes_are_both_applied(tmp_path: Path) -> None:
    """The second one finds the first, and is applied to what that made."""
    url = str(tmp_path / "store")
    with txnstore.create(url) as one, txnstore.open(url) as two:
        one.create_topic("t", config={"retention.ms": 5})
        two.topic("t")
        submit = connection_of(one).chain.submit

        def late(command: object) -> object:
            connection_of(one).chain.submit = submit  # type: ignore[method-assign]
            two.alter_topic("t", partitions=3)
            return submit(command)  # type: ignore[arg-type]

        connection_of(one).chain.submit = late  # type: ignore[method-assign]
        altered = one.alter_topic("t", config={"retention.ms": None, "segment.bytes": 1 << 20})
        assert (altered.partitions, altered.config, altered.version) == (3, {"segment.bytes": "1048576"}, 2)
        assert two.topic("t") == altered
