"""The newest record of each key within bounded memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from txnstore.compactor.compact.memory import MIN_MEMORY
from txnstore.compactor.compact.newest import NewestByKey
from txnstore.errors import InvalidConfigError, NoSpaceError

_RECORDS, _STEP = 800_000, 200_000


def _fill(newest: NewestByKey) -> list[int]:
    """Two records of each key, of 100 bytes; the offsets of the newest ones."""
    for start in range(0, _RECORDS, _STEP):
        offsets = np.arange(start, start + _STEP)
        keys = pa.array([b"%0100d" % (offset // 2) for offset in offsets.tolist()])
        newest.add(pa.chunked_array([keys]), pa.chunked_array([pa.array(offsets)]))
    assert newest.count() == _RECORDS // 2
    return [int(offset) for offsets in newest.offsets() for offset in offsets]


@pytest.mark.slow
def test_keys_that_do_not_fit_are_spilled(tmp_path: Path) -> None:
    """A quarter of the least memory limit, for more bytes of keys; the folder is deleted at the end."""
    with NewestByKey(MIN_MEMORY // 4, str(tmp_path)) as newest:
        assert _fill(newest) == list(range(1, _RECORDS, 2))
        assert list(tmp_path.iterdir()) != []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_too_little_memory_and_no_space_are_clear_errors(tmp_path: Path) -> None:
    with (
        NewestByKey(4 << 20, str(tmp_path)) as newest,
        pytest.raises(InvalidConfigError, match="memory_limit is too small"),
    ):
        _fill(newest)
    with NewestByKey(MIN_MEMORY // 4, str(tmp_path)) as newest:
        newest._execute("SET max_temp_directory_size = '1MB'")
        with pytest.raises(NoSpaceError, match="cannot spill to"):
            _fill(newest)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(NoSpaceError, match="cannot create a folder to spill to"):
        NewestByKey(MIN_MEMORY, str(tmp_path / "missing"))


def test_no_records_have_no_newest() -> None:
    with NewestByKey(MIN_MEMORY) as newest:
        newest.add(pa.chunked_array([], pa.binary()), pa.chunked_array([], pa.int64()))
        assert newest.count() == 0
        assert list(newest.offsets()) == []


def test_nothing_is_drawn_on_standard_output() -> None:
    """In a process without a main file, DuckDB draws a progress bar there after 2 seconds."""
    with NewestByKey(MIN_MEMORY) as newest:
        assert newest._execute("SELECT current_setting('enable_progress_bar')") == [(False,)]
