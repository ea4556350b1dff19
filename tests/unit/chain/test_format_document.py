"""docs/format.md names every event, every field and the hashes as they are."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from txnstore.chain.boundary import BoundaryDocument
from txnstore.chain.checkpoints.document import GroupDocument, HeadDocument, PartitionDocument, TransactionDocument
from txnstore.chain.codec import Entry, LatestDocument, StoreDocument
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

TEXT = (Path(__file__).parents[3] / "docs" / "format.md").read_text(encoding="utf-8")
EVENTS = tuple(event for event in get_args(Event) if event is not UnknownEvent)


def _section(title: str) -> str:
    """A section with all below it."""
    (level, rest) = re.split(rf"^(#+) {re.escape(title)}", TEXT, flags=re.MULTILINE)[1:3]
    return re.split(rf"^#{{1,{len(level)}}} ", rest, flags=re.MULTILINE)[0]


def _words(text: str) -> set[str]:
    """What stands between backquotes, word by word."""
    return {word for quoted in re.findall(r"`([^`]+)`", text) for word in re.findall(r"\w+", quoted)}


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_every_event_has_a_row_with_its_fields(event: type) -> None:
    """The format is documented completely, so that other readers can be built."""
    rows = [line for line in _section("3. Events").splitlines() if line.startswith("|")]
    rows = [row for row in rows if f"`{event.__name__}`" in row.split(" | ")[0]]
    assert len(rows) == 1
    assert {field.name for field in fields(event)} - {"type"} <= _words(rows[0])


def test_no_event_is_described_that_does_not_exist() -> None:
    described = re.findall(r"^\| ((?:`[A-Z]\w+`(?:, )?)+) \|", _section("3. Events"), re.MULTILINE)
    assert {name for cell in described for name in _words(cell)} == {event.__name__ for event in EVENTS}


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("store.json", set(StoreDocument.model_fields)),
        ("An entry", set(Entry.model_fields)),
        ("A hint", set(LatestDocument.model_fields)),
        ("A boundary", set(BoundaryDocument.model_fields)),
        ("A checkpoint", set(HeadDocument.model_fields) - {"version"}),
        ("A checkpoint", {field.name for field in fields(PartitionDocument)}),
        ("A checkpoint", {field.name for field in fields(TransactionDocument)}),
        ("A checkpoint", {field.name for field in fields(GroupDocument)}),
        ("3.1 Topic", {field.name for field in fields(CatalogTopic)}),
        ("3.2 Batch and segment", {field.name for kind in (Batch, Segment) for field in fields(kind)}),
    ],
)
def test_every_field_is_described(section: str, names: set[str]) -> None:
    assert names <= _words(_section(section))


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
    assert "chain << 32" in _section("7.2")
    assert [first_producer_id(chain) for chain in (0, 1, 255)] == [0, 1 << 32, 255 << 32]
