"""The items of persistent maps, listed without their iterators."""

from __future__ import annotations

from typing import Any

import pytest

from txnstore.core.model import Map, TopicPartition, items_of, sorted_items


@pytest.mark.parametrize(
    "values",
    [{}, {1: "a"}, {number: str(number) for number in range(5_000)}, {TopicPartition("t", 1): 5}],
    ids=["empty", "one", "many", "partition"],
)
def test_items_of_a_map_are_its_items(values: dict[Any, Any]) -> None:
    """They are read from what the map is pickled as."""
    map_of_values = Map(values)
    assert dict(items_of(map_of_values)) == dict(map_of_values.items()) == values
    assert items_of(values) == list(values.items())
    assert sorted_items(map_of_values) == sorted_items(values) == sorted(values.items())


def test_values_are_not_compared() -> None:
    assert sorted_items(Map({"b": object, "a": object})) == [("a", object), ("b", object)]
