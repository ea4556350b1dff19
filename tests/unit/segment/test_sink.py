"""A large segment is written to a temporary file, whose folder may be full."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from txnstore.errors import NoSpaceError
from txnstore.segment import sink
from txnstore.segment.codec import SegmentWriter
from txnstore.segment.sink import SegmentSink


@contextmanager
def space(size: int) -> Iterator[None]:
    """No file can have more bytes: the system refuses them as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(autouse=True)
def in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "MEMORY_BYTES", 10_000)


def write(fmt: str) -> int:
    data = np.random.default_rng(1).bytes(200_000)
    table = pa.table({"value": [data[start : start + 1000] for start in range(0, len(data), 1000)]})
    with SegmentWriter(table.schema, fmt, row_group_rows=10) as writer:
        for batch in table.to_batches(max_chunksize=10):
            writer.append(batch)
        return writer.finish().size


@pytest.mark.parametrize("fmt", ["parquet", "arrow"])
def test_a_full_temporary_folder_is_named(fmt: str) -> None:
    """Wherever the space ends: in a row group, which Arrow writes, in the footer, and in what is buffered."""
    size = write(fmt)
    for limit in (0, 5_000, 12_000, 100_000, 200_000, size - 1000, size - 1):
        with (
            space(limit),
            pytest.raises(NoSpaceError, match=r"to the temporary folder .* Free space, or set TMPDIR"),
        ):
            write(fmt)
    with space(size):
        assert write(fmt) == size


def test_a_sink_that_found_no_space_can_be_closed() -> None:
    file = SegmentSink()
    file.write(bytes(20_000))
    with space(20_000):
        file.write(b"buffered")
        with pytest.raises(NoSpaceError):
            file.content()
        file.close()
    assert file.closed


def test_a_closed_sink_holds_no_bytes_and_takes_none() -> None:
    file = SegmentSink()
    file.write(bytes(5_000))
    file.close()
    assert bytes(file.content()) == b""
    with pytest.raises(ValueError, match="closed"):
        file.write(b"more")


@pytest.mark.parametrize("size", [0, 1, 9_999, 10_000, 10_001])
def test_content_outlives_the_sink(size: int) -> None:
    """In memory, at its bound, and in a file; and it cannot be changed."""
    data = np.random.default_rng(size).bytes(size)
    with SegmentSink() as file:
        for start in range(0, size, 4_000):
            file.write(data[start : start + 4_000])
        content = file.content()
    assert content[:] == data
    assert len(content) == size
    assert memoryview(content).readonly


def test_no_temporary_folder_is_an_error_of_the_storage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in a container whose file system is read-only."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "absent")])
    with pytest.raises(NoSpaceError, match=r"temporary folder of the system: .*No usable temporary directory"):
        SegmentSink().write(bytes(20_000))
