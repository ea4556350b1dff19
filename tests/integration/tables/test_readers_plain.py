"""The tables of random histories have the rows of their topics, as a plain reader of Iceberg tables sees them.

``python -m tests.harness readers`` lets other engines read them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.readers.checks import Check, Increments, plain_reader
from tests.readers.compare import canonical, difference
from tests.readers.history import History


# Of 1 and 3 chains; with cuts in new files, merged segments, cleans, topics created again, tables that are disabled.
@pytest.mark.parametrize("seed", [1, 3, 6, 11, 17, 25])
def test_each_published_snapshot_has_the_rows_of_a_scan(seed: int, tmp_path: Path) -> None:
    increments = Increments()
    history = History(seed, tmp_path / "store", on_publication=increments.follow)
    try:
        history.run(50)
        check = Check(history)
        result = check.run(plain_reader(history))
    finally:
        history.close()
    assert increments.problems == []
    assert result.problems == []
    assert result.equal["snapshots"] == result.reads["snapshots"] > 5
    assert result.rows["snapshots"] > increments.rows > 50


def test_a_seed_gives_one_history(tmp_path: Path) -> None:
    published = []
    for name in ("first", "second"):
        history = History(4, tmp_path / name)
        history.run(20)
        history.close()
        cuts = history.publications
        published.append([(each.cut, each.topic_id, each.version, each.snapshot_id, each.heads) for each in cuts])
    assert published[0] == published[1] != []


def test_the_comparison_notices_lost_repeated_and_altered_rows(tmp_path: Path) -> None:
    history = History(3, tmp_path / "store")
    history.run(50)
    table = history.table(history.publications[-1].metadata)
    schema, rows = table.schema(None), table.rows()
    history.close()
    expected = canonical(schema, rows)
    assert len(rows) > 2
    assert difference(expected, canonical(schema, reversed(rows))) is None
    assert "1 rows instead" in str(difference(expected, canonical(schema, rows[:1])))
    assert "repeated: 1" in str(difference(expected, canonical(schema, [*rows, rows[0]])))
    altered = [{**rows[0], "_timestamp": rows[1]["_timestamp"].replace(year=1999)}, *rows[1:]]
    assert "_timestamp" in str(difference(expected, canonical(schema, altered)))
