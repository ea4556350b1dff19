"""What the recorder of a broker's traces does without a broker: reading its files, and saying what it was not given."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.compat.broker.cluster import again, release_of
from tests.compat.broker.upkeep import REST, newest_timestamp, settings_of
from tests.compat.broker.view import ABORTED, BATCH, CONTROL, OVERHEAD, batches, markers
from tests.harness.differential.__main__ import main

#: A partition of Kafka 4.4: one record and a commit, one record and an abort. Producer id 0, epochs 0 and 1.
LOG = bytes.fromhex(
    "00000000000000000000003a0000000002b8876c89001000000000000001a1fe98ad69000001a1fe98ad6900000000000000000000000000"
    "000000000110000000026b02760000000000000000010000004200000000022049a195003000000000000001a1fe98aec4000001a1fe98ae"
    "c400000000000000000001ffffffff000000012000000008000000010c0000000000000000000000000000020000003a0000000002918fd2"
    "55001000000000000001a1fe98af79000001a1fe98af7900000000000000000001000000000000000110000000026b027600000000000000"
    "000300000042000000000257fac6ae003000000000000001a1fe98aff1000001a1fe98aff100000000000000000002ffffffff0000000120"
    "00000008000000000c00000000000000"
)
INDEX = bytes.fromhex("00000000000000000000000000000000000200000000000000030000000000000004")


def test_markers_are_read_from_a_log_file() -> None:
    """Their epochs are raised (TV2-01); records are passed over, and so is a batch that is not all there yet."""
    assert list(markers(LOG)) == [(1, "COMMIT", 0, 1), (3, "ABORT", 0, 2)]
    assert list(markers(LOG[:-20])) == [(1, "COMMIT", 0, 1)]
    assert list(markers(b"")) == []


def test_a_cleaned_log_file_is_read() -> None:
    """CMP-08: a clean puts a delete horizon in the place of the first timestamp, or leaves a batch without record."""
    stamped = b"\x10\x00" + b"\x9f\xd0\xff\xb4\x0a" + b"\x00\x08" + struct.pack(">hh", 0, 1) + b"\x00\x00"
    log = _cleaned(1, stamped, 1) + _cleaned(3, b"", 0) + LOG
    assert list(markers(log)) == [(1, "COMMIT", 7, 2), *markers(LOG)]
    assert [row[0] for _, row in batches(log)] == [1, 3, 0, 1, 2, 3]
    assert newest_timestamp(_cleaned(1, stamped, 1)) == 2_000
    assert newest_timestamp(b"") == -1


def _cleaned(offset: int, records: bytes, count: int) -> bytes:
    """A batch of control: its delete horizon is 1,000, its newest timestamp 2,000."""
    length = BATCH.size - OVERHEAD + len(records)
    return BATCH.pack(offset, length, 0, 2, 0, CONTROL, 0, 1_000, 2_000, 7, 2, -1, count) + records


def test_topics_of_a_trace_with_settings_are_at_rest() -> None:
    """DIF-08: neither the cleaner nor a retention comes by itself; topics without settings are as they were."""
    assert settings_of({}) == {}
    assert settings_of({"cleanup.policy": "compact", "segment.bytes": "130"}) == {
        **REST,
        "cleanup.policy": "compact",
        "internal.segment.bytes": "130",
    }


def test_the_index_of_aborted_transactions_is_read() -> None:
    """LSO-05: version, producer id, first and last offset, last stable offset."""
    assert list(ABORTED.iter_unpack(INDEX)) == [(0, 0, 2, 3, 4)]


def test_a_release_is_known_by_its_jars(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not the libs folder of a Kafka release: 0 files"):
        release_of(tmp_path)
    (tmp_path / "kafka-clients-4.4.0.jar").touch()
    assert release_of(tmp_path) == "4.4.0"


def test_a_folder_without_kafka_is_refused_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["record", str(tmp_path / "ops.jsonl"), "--kafka", str(tmp_path)])
    assert stopped.value.code == 2
    assert "is not the libs folder of a Kafka release" in capsys.readouterr().err


def test_timeout_error_names_missing_event() -> None:
    with pytest.raises(TimeoutError, match=r"the broker should answer, and did not in 0 s"):
        for _ in again("the broker should answer", seconds=0.0):
            pass
