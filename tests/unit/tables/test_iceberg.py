"""What manifests, metadata and columns say is read as it was written; what is damaged is refused."""

from __future__ import annotations

import json
import re
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnstore.catalog.iceberg.columns import TableColumns, check_columns, leading_columns, table_columns
from txnstore.catalog.iceberg.files import DataFile, DeleteFile
from txnstore.catalog.iceberg.groups import Group, files_of, next_groups
from txnstore.catalog.iceberg.manifest import (
    ManifestEntry,
    Status,
    decode_manifest,
    decode_manifest_list,
    describe_manifest,
    encode_manifest,
    encode_manifest_list,
)
from txnstore.catalog.iceberg.metadata import PUBLISHED, TableMetadata, TableSnapshot, decode_metadata
from txnstore.core.catalog.model import CatalogTopic
from txnstore.errors import CorruptionError, InvalidConfigError
from txnstore.segment.codec import SegmentWriter
from txnstore.segment.field_ids import field_id
from txnstore.segment.schema import HORIZON_FIELD, OFFSET_FIELD, TIMESTAMP_FIELD, schema_to_text

_MARKER = bytes(16)
_NUMBERS = st.integers(0, 2**53)
_DATA = st.builds(
    DataFile,
    path=st.text(min_size=1, max_size=9),
    partition=st.integers(0, 2**31 - 1),
    **dict.fromkeys(("first", "last", "rows", "size", "oldest", "newest"), _NUMBERS),
)
_DELETES = st.builds(
    DeleteFile,
    path=st.text(min_size=1, max_size=9),
    partition=st.integers(0, 2**31 - 1),
    data_path=st.text(min_size=1, max_size=9),
    rows=_NUMBERS,
    size=_NUMBERS,
)


def _entries(files: st.SearchStrategy[DataFile | DeleteFile]) -> st.SearchStrategy[list[ManifestEntry]]:
    entry = st.builds(ManifestEntry, st.sampled_from(Status), _NUMBERS, _NUMBERS, files)
    return st.lists(entry, min_size=1, max_size=4)


@given(_entries(_DATA) | _entries(_DELETES))
def test_manifests_are_read_as_they_were_written(entries: list[ManifestEntry]) -> None:
    data = encode_manifest(entries, leading_columns(), 0, _MARKER)
    assert decode_manifest("m.avro", data) == entries
    manifest = describe_manifest("m.avro", len(data), 7, 11, entries)
    listed = encode_manifest_list([manifest], 11, None, 7, _MARKER)
    assert decode_manifest_list("l.avro", listed) == [manifest]
    assert manifest.files[Status.EXISTING] + manifest.files[Status.ADDED] == sum(entry.live for entry in entries)


@given(st.binary(max_size=60))
def test_other_bytes_are_no_manifest(data: bytes) -> None:
    for decode in (decode_manifest, decode_manifest_list, decode_metadata):
        with pytest.raises(CorruptionError, match=r"^name is no "):
            decode("name", data)


def test_a_manifest_that_is_cut_off_is_refused() -> None:
    entry = ManifestEntry(Status.ADDED, 1, 1, DataFile("p", 0, 0, 1, 2, 3, 4, 5))
    data = encode_manifest([entry], leading_columns(), 0, _MARKER)
    for size in (len(data) - 1, len(data) - 17, 40, 4):
        with pytest.raises(CorruptionError):
            decode_manifest("name", data[:size])


def _data_file(number: int) -> DataFile:
    return DataFile(f"d{number}", 0, number, number, 1, 1, 0, 0)


@pytest.mark.slow
@given(st.randoms(use_true_random=False))
def test_manifests_have_the_files_that_snapshots_added_and_not_those_that_they_removed(rng: Random) -> None:
    groups: list[Group] = []
    expected: set[str] = set()
    for sequence in range(1, 45):
        data = [_data_file(100 * sequence + number) for number in range(rng.randrange(3))]
        deletes = [DeleteFile(f"x{each.path}", 0, each.path, 1, 1) for each in data if rng.random() < 0.2]
        removed = {path for path in sorted(expected) if rng.random() < 0.1}
        added: list[DataFile | DeleteFile] = [*data, *deletes]
        groups = next_groups(groups, added, removed, sequence, sequence)
        expected = expected - removed | {each.path for each in added}
        files = files_of(groups)
        assert {*files.data, *(each.path for each in files.deletes.values())} == expected
        for group in groups:
            assert len({isinstance(entry.file, DeleteFile) for entry in group.entries}) == 1
            assert all(entry.sequence == int(entry.file.path.strip("xd")) // 100 for entry in group.entries)
        listed = [entry for group in groups if group.manifest is None for entry in group.entries]
        assert {entry.file.path for entry in listed if entry.status is Status.DELETED} == removed
        assert {entry.file.path for entry in listed if entry.status is Status.ADDED} == {each.path for each in added}
        groups = [_written(group, sequence) for group in groups]
        assert len(groups) < 32 + 44


def _written(group: Group, sequence: int) -> Group:
    if group.manifest is not None:
        return group
    return Group(describe_manifest("m", 1, sequence, sequence, group.entries), group.entries)


def test_many_small_manifests_are_joined_and_their_files_stay_those_of_their_snapshots() -> None:
    groups: list[Group] = []
    for sequence in range(1, 33):
        added, removed = [_data_file(sequence), _data_file(100 * sequence)], ["d100"] if sequence == 9 else []
        following = next_groups(groups, added, removed, sequence, sequence)
        groups = [_written(group, sequence) for group in following]
    assert len(groups) == 32
    joined = next_groups(groups, [_data_file(33)], ("d3",), 33, 33)
    assert len(joined) == 2
    statuses = {entry.file.path: (entry.status, entry.snapshot_id) for entry in joined[0].entries}
    assert statuses["d3"] == (Status.DELETED, 33)
    assert statuses["d4"] == (Status.EXISTING, 4)
    assert "d100" not in statuses  # An earlier snapshot has removed it.
    assert len(statuses) == 63


def test_the_other_files_of_a_manifest_that_loses_one_were_there_before() -> None:
    """An engine that reads what a snapshot has added must not read them again."""
    (group,) = next_groups([], [_data_file(1), _data_file(2)], (), 1, 1)
    (changed,) = next_groups([_written(group, 1)], [], ("d1",), 2, 2)
    statuses = {entry.file.path: (entry.status, entry.snapshot_id) for entry in changed.entries}
    assert statuses == {"d1": (Status.DELETED, 2), "d2": (Status.EXISTING, 1)}


def test_metadata_is_read_as_it_was_written() -> None:
    columns = TableColumns((*leading_columns().fields, {"id": 12, "name": "a", "required": False, "type": "int"}))
    metadata = TableMetadata("id", "s3://b/t", "t", (leading_columns(), columns), updated=5)
    for number in range(1, 4):
        summary = {"operation": "append", "txnstore.heads": "1,2"}
        snapshot = TableSnapshot(number, number - 1 or None, number, 100 * number, f"l{number}", 1, summary)
        metadata = metadata.with_snapshots((snapshot,)).after(f"m{number}", 100 * number)
    again = decode_metadata("name", metadata.encode())
    assert again == metadata
    assert again.columns.last_id == 12
    assert again.current is not None
    assert again.current.numbers("txnstore.heads") == (1, 2)


def test_old_snapshots_are_removed_and_the_current_one_stays() -> None:
    snapshots = tuple(
        TableSnapshot(number, None, number, number, "", 0, {PUBLISHED: str(10 * number)}) for number in range(1, 9)
    )
    metadata = TableMetadata("id", "", "t", (leading_columns(),)).with_snapshots(snapshots)
    kept = metadata.with_history(replaced_since=50, max_snapshots=3)
    assert [each.snapshot_id for each in kept.snapshots] == [6, 7, 8]
    # The fourth one was the current one until the fifth was published.
    assert [each.snapshot_id for each in metadata.with_history(replaced_since=50, max_snapshots=9).snapshots] == [
        4,
        5,
        6,
        7,
        8,
    ]
    assert [each.snapshot_id for each in metadata.with_history(replaced_since=99, max_snapshots=9).snapshots] == [8]
    assert kept.cuts == ((8, 8),)
    assert kept.oldest_replaced == 70
    assert kept.with_history(replaced_since=99, max_snapshots=3).oldest_replaced is None


def test_metadata_names_a_limited_number_of_earlier_ones() -> None:
    metadata = TableMetadata("id", "", "t", (leading_columns(),), updated=9)
    for number in range(30):
        metadata = metadata.after(f"m{number}", number)
    assert [path for _, path in metadata.earlier] == [f"m{number}" for number in range(10, 30)]
    assert metadata.updated == 29


def _topic(schema: pa.Schema) -> CatalogTopic:
    return CatalogTopic("t", "id", 1, schema=schema_to_text(schema))


def test_columns_keep_their_ids_whatever_comes_and_goes_around_them() -> None:
    first = table_columns(_topic(pa.schema([("a", pa.int32()), ("m", pa.map_(pa.string(), pa.int8()))])))
    wider = pa.schema([("new", pa.list_(pa.date32())), ("m", pa.map_(pa.string(), pa.int8())), ("a", pa.int64())])
    second = table_columns(_topic(wider))
    assert dict(first.ids()).items() <= dict(second.ids()).items()
    assert len({number for _, number in second.ids()}) == 3 + 2 + 3 + 1
    assert [field["name"] for field in second.fields][:3] == ["_partition_id", "_offset", "_timestamp"]
    assert second.last_id == max(number for _, number in second.ids()) < 2**30 + 11


def test_columns_with_the_same_id_are_refused() -> None:
    """The first two of ``c0``, ``c1``, … that share one."""
    assert field_id(["c25927"]) == field_id(["c31084"])
    schema = pa.schema([("c25927", pa.int32()), ("c31084", pa.int32())])
    with pytest.raises(InvalidConfigError, match=r"'c25927' and 'c31084' get the same field id"):
        check_columns(_topic(schema))


def test_a_file_has_the_ids_of_the_table_at_all_levels() -> None:
    inner = pa.struct([("x", pa.int8()), ("y", pa.list_(pa.float32()))])
    schema = pa.schema([("a", pa.int32()), ("m", pa.map_(pa.string(), pa.list_(inner))), ("s", inner)])
    stored = pa.schema([OFFSET_FIELD, TIMESTAMP_FIELD, *schema, HORIZON_FIELD])
    with SegmentWriter(stored, for_table=True) as writer:
        writer.append(stored.empty_table())
        data = writer.finish().data
    ids = dict(table_columns(_topic(schema)).ids())
    del ids["_partition_id",]
    assert _ids_of_file(data) == sorted([*ids.values(), 5])
    with SegmentWriter(stored) as writer:
        assert _ids_of_file(writer.finish().data) == []
    assert [each["field-id"] for each in json.loads(table_columns(_topic(schema)).name_mapping())][-2:] == [4, 5]


def _ids_of_file(data: bytes) -> list[int]:
    text = str(pq.ParquetFile(pa.BufferReader(data)).schema)
    return sorted(int(number) for number in re.findall(r"field_id=(\d+)", text))
