"""docs/format.md and docs/internals/format-writing.md name every event, field, column and hash as they are."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from tests.helpers import format_reader
from tests.helpers.documents import members_of
from txnstore.chain.backups import BackupDocument
from txnstore.chain.boundary import BoundaryDocument
from txnstore.chain.checkpoints.document import GroupDocument, PartitionDocument, StateDocument, TransactionDocument
from txnstore.chain.checkpoints.index import IndexDocument, _schema
from txnstore.chain.codec import Entry, LatestDocument, StoreDocument
from txnstore.chain.committer.network import CommitterDocument
from txnstore.chain.tail import ABSENT
from txnstore.compactor.compact.lease import LeaseDocument
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.events import Event
from txnstore.core.log.model import Batch, Segment
from txnstore.core.model import TopicPartition
from txnstore.core.partitioner import murmur2
from txnstore.core.routing import (
    MAX_CHAINS,
    chain_of_group,
    chain_of_partition,
    chain_of_transactional_id,
    first_producer_id,
)
from txnstore.core.state import UnknownEvent

DOCS = Path(__file__).parents[3] / "docs"
READING, WRITING = ((DOCS / name).read_text(encoding="utf-8") for name in ("format.md", "internals/format-writing.md"))
EVENTS = tuple(event for event in get_args(Event) if event is not UnknownEvent)
NAMES = {event.__name__ for event in EVENTS}


def _section(title: str, page: str = READING) -> str:
    """A section with all below it."""
    (level, rest) = re.split(rf"^(#+) {re.escape(title)}", page, flags=re.MULTILINE)[1:3]
    return re.split(rf"^#{{1,{len(level)}}} ", rest, flags=re.MULTILINE)[0]


def _words(text: str) -> set[str]:
    """What stands between backquotes, word by word."""
    return {word for quoted in re.findall(r"`([^`]+)`", text) for word in re.findall(r"\w+", quoted)}


def _rows(text: str) -> list[list[str]]:
    """The rows of a table of events: the names, and the other cells."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if re.match(r"\| `[A-Z]\w+`[,` ]", line)]
    return [[name, *cells] for first, *cells in rows for name in re.findall(r"\w+", first)]


#: The tables of the fields of events, and of their assignments.
FIELDS = _rows(_section("3. Events").split("### 3.1")[0])
FOLDS = _rows(_section("3.4 Fold table"))


def test_every_event_has_a_row_in_both_tables() -> None:
    """The format is documented completely, so that other readers can be built."""
    for table in (FIELDS, FOLDS):
        assert sorted(row[0] for row in table) == sorted(NAMES)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_every_event_is_described_with_its_fields(event: type) -> None:
    (row,) = [row for row in FIELDS if row[0] == event.__name__]
    assert {field.name for field in fields(event)} - {"type"} <= _words(row[2])


def test_members_that_are_assigned_exist() -> None:
    """What the fold table assigns to is a member of the head, or of what is in it."""
    kinds = (PartitionDocument, TransactionDocument, GroupDocument)
    heads = {"P": kinds[0], "T": kinds[1], "G": kinds[2]}
    for _, _, assignments in FOLDS:
        for letter, name in re.findall(r"\b([PTG])\.(\w+)", assignments):
            assert name in {field.name for field in fields(heads[letter])} | {"batches"}, assignments
        for name in re.findall(r"`(\w+)\[[^]]*\]` :=", assignments):
            assert name in members_of(StateDocument), assignments


def test_events_that_readers_need_are_those_that_the_readers_of_the_tests_fold() -> None:
    """Both tables say the same."""
    for table in (FIELDS, FOLDS):
        assert {row[1] for row in table} == {"yes", "no"}
        assert {row[0] for row in table if row[1] == "yes"} == set(format_reader.READERS)
        assert {row[0] for row in table if row[1] == "no"} == set(format_reader.WRITERS)


def test_rules_of_writers_are_about_events_that_exist() -> None:
    assert {row[0] for row in _rows(_section("3. Events", WRITING))} <= NAMES


def test_every_column_of_index_files_is_listed_with_its_type() -> None:
    types = {"int64": "int64", "boolean": "bool", "string": "string"}
    rows = [line.strip("| ").split(" | ") for line in _section("An index file").splitlines() if line.startswith("| `")]
    columns = {
        name: types[kind.split(",")[0]]
        for names, kind, *_ in rows
        if kind.endswith(("of the batch", "of the segment"))
        for name in _words(names)
    }
    assert columns == {field.name: str(field.type) for field in _schema()}
    assert set(format_reader.SEGMENT) == {field.name for field in fields(Segment)}


def test_the_end_of_a_chain_is_that_of_the_document() -> None:
    assert "names of the next three entries" in _section("An entry")
    assert ABSENT == format_reader.ABSENT == 3


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("store.json", {*members_of(StoreDocument)}),
        ("An entry", {*members_of(Entry)}),
        ("A hint", {*members_of(LatestDocument)}),
        ("A boundary", {*members_of(BoundaryDocument)}),
        ("A backup", {*members_of(BackupDocument)}),
        ("An index file", {*members_of(IndexDocument)} - {"version"}),
        ("A lease", {*members_of(LeaseDocument)}),
        ("An announcement", {*members_of(CommitterDocument)}),
        ("A checkpoint", {*members_of(StateDocument)} - {"version"}),
        ("A checkpoint", {field.name for field in fields(PartitionDocument)}),
        ("A checkpoint", {field.name for field in fields(TransactionDocument)}),
        ("A checkpoint", {field.name for field in fields(GroupDocument)}),
        ("3.1 Topic", {field.name for field in fields(CatalogTopic)}),
        ("3.2 Batch and segment", {field.name for kind in (Batch, Segment) for field in fields(kind)}),
    ],
)
def test_every_field_is_described(section: str, names: set[str]) -> None:
    assert names <= _words(_section(section, WRITING if section in ("A lease", "An announcement") else READING))


def test_the_hashes_are_those_of_the_document() -> None:
    """COORD-01, D14: the same in every language and release."""
    lines = [line.strip("| ").split(" | ") for line in _section("7.1").splitlines() if re.match(r"\| `", line)]
    assert len(lines) == 4
    for name, number, *chains, led in lines:
        text = name.strip("`")
        assert murmur2(text.encode()) == int(number)
        for count, expected in zip((2, 3, 16, 256), chains, strict=True):
            assert chain_of_transactional_id(text, count) == chain_of_group(text, count) == int(expected)
        numbers = [chain_of_partition(TopicPartition(text, partition), 16) for partition in (0, 1, 5)]
        assert numbers == [int(chain) for chain in led.split(", ")]


def test_single_chain_coordinates_everything() -> None:
    assert chain_of_transactional_id("any", 1) == chain_of_group("any", 1) == 0
    assert chain_of_partition(TopicPartition("any", 7), 1) == 0


def test_the_bounds_are_those_of_the_document() -> None:
    assert f"1 to {MAX_CHAINS}" in _section("store.json")
    assert "chain << 32" in _section("7.2", WRITING)
    assert [first_producer_id(chain) for chain in (0, 1, 255)] == [0, 1 << 32, 255 << 32]
