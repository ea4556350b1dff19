"""Rules of a line or two, at their limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import keys as names
from txnstore.consumer import GroupMetadata
from txnstore.core.log.model import Segment
from txnstore.errors import InvalidConfigError, StorageError, StorageRefusedError
from txnstore.sql.local import is_intact
from txnstore.storage.os_errors import map_os_error
from txnstore.validation import check_query


def test_metadata_of_a_consumer_that_is_no_member_has_kafkas_values() -> None:
    """KIP-447: the generation -1 and an empty id are not compared with the group's."""
    metadata = GroupMetadata("g")
    assert (metadata.generation, metadata.member_id, metadata.instance_id) == (-1, "", None)


def test_only_a_range_of_an_entry_is_an_inlined_segment() -> None:
    entry, shared = names.entry(0, 7), "topics/t/0/018bcfe5-8311-7417-8ac5-c9472b1defda.parquet"
    ranges = [Segment(key, "arrow_stream", 1, "", 1, first_byte=0) for key in (entry, shared)]
    assert [(segment.is_range, segment.inlined) for segment in ranges] == [(True, True), (True, False)]
    whole = Segment("topics/t/0/a.parquet", "parquet", 1, "", 1)
    assert (whole.is_range, whole.inlined, whole.key) == (False, False, whole.object)
    assert ranges[0].key == f"{entry}#0"


def test_error_of_the_system_without_a_number_may_pass() -> None:
    error = map_os_error(OSError("odd"), "read", "/x")
    assert type(error) is StorageError
    assert isinstance(map_os_error(PermissionError(13, "denied"), "read", "/x"), StorageRefusedError)


def test_missing_file_is_not_intact(tmp_path: Path) -> None:
    assert not is_intact(str(tmp_path / "missing"), "0" * 64, 0)


@pytest.mark.parametrize("query", [5, None, b"SELECT 1"])
def test_query_that_is_no_text_is_refused(query: object) -> None:
    with pytest.raises(InvalidConfigError, match="a query must be a string of SQL"):
        check_query(query)
