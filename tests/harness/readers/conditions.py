"""Random conditions of pyiceberg, and what they mean to it: not a number is neither below nor above anything."""

from __future__ import annotations

import itertools
import math
import operator
import random
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from tests.harness.readers import values
from tests.harness.readers.filters import Truth, and_, not_, order

#: A condition as tuples: ``("and", one, two)``, ``("or", one, two)``, ``("not", one)``, ``("null", column)``,
#: ``("nan", column)``, ``("in", column, values)``, ``("prefix", column, text)``, or a sign, a column and a value.
Tree = tuple[Any, ...]
_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Condition:
    """A condition on rows; None: all rows.

    Attributes:
        tree: What is sent to pyiceberg.
        names: The columns that it reads.
    """

    tree: Tree | None

    @property
    def names(self) -> frozenset[str]:
        return frozenset() if self.tree is None else _names(self.tree)

    def chooses(self, row: Mapping[str, Any], lacking: Collection[str], found: bool) -> bool:
        """Whether a row is to be returned.

        Args:
            row: The values of its columns.
            lacking: The columns without which it was sent: its file may have them, as nulls, or not.
            found: Whether it was returned, which is right if it depends on that.
        """
        if self.tree is None:
            return True
        unknown = sorted(self.names & {*lacking})
        subsets = (set(chosen) for size in range(len(unknown) + 1) for chosen in itertools.combinations(unknown, size))
        truths = {_truth(self.tree, row, subset) is True for subset in subsets}
        return found if len(truths) > 1 else truths.pop()

    def __str__(self) -> str:
        return str(self.tree)


def draw(rng: random.Random, schema: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> Condition:
    """A condition, or none.

    Args:
        rng: The source of randomness.
        schema: The columns.
        rows: What is there, of whose values literals are taken.
    """
    return Condition(None if rng.random() < 0.15 else _draw(rng, _readable(schema), rows, 2))


def _readable(schema: pa.Schema) -> list[pa.Field]:
    """The columns that pyiceberg has conditions on: no lists, no maps, and no names with a dot, as if of a struct."""
    return [
        field for field in schema if "." not in field.name and not pt.is_list(field.type) and not pt.is_map(field.type)
    ]


def _draw(rng: random.Random, fields: Sequence[pa.Field], rows: Sequence[Mapping[str, Any]], depth: int) -> Tree:
    kind = rng.random()
    if depth and kind < 0.2:
        return ("not", _draw(rng, fields, rows, depth - 1))
    if depth and kind < 0.4:
        one, two = (_draw(rng, fields, rows, depth - 1) for _ in range(2))
        return ("and" if kind < 0.3 else "or", one, two)
    field = rng.choice(fields)
    return _leaf(rng, field, [value for row in rows if (value := row.get(field.name)) is not None])


def _leaf(rng: random.Random, field: pa.Field, there: Sequence[Any]) -> Tree:
    kind = rng.choice(["null", "compare", "compare", "compare", "in", "special"])
    data_type = field.type
    if kind == "null" or pt.is_nested(data_type):
        return ("null", field.name)
    if kind == "special" and pt.is_floating(data_type):
        return ("nan", field.name)
    if kind == "special" and (pt.is_string(data_type) or pt.is_large_string(data_type)):
        return ("prefix", field.name, rng.choice(["a", "n", "n1", "zz", "日", "\x01"]))
    if kind == "in" and not pt.is_floating(data_type):
        return ("in", field.name, [_chosen(rng, data_type, there) for _ in range(rng.randint(1, 3))])
    sign = rng.choice(["==", "!="] if pt.is_boolean(data_type) else [*_SIGNS])
    return (sign, field.name, _chosen(rng, data_type, there))


def _chosen(rng: random.Random, data_type: pa.DataType, there: Sequence[Any]) -> Any:
    """A value to compare with: one that is there, most often."""
    usable = [each for each in there if _is_literal(each)]
    if usable and rng.random() < 0.7:
        return rng.choice(usable)
    while True:
        value = pa.array([values.value(rng, data_type)], data_type).to_pylist()[0]
        if _is_literal(value):
            return value


def _is_literal(value: Any) -> bool:
    """Whether pyiceberg compares with a number as it is.

    It has no literal for not a number, and takes others for values of the type that the column has in the file, which
    may be narrower than that of the table. Of such a type all values are below what is larger than its largest one,
    nulls too.
    """
    if isinstance(value, float):
        return math.isfinite(value) and struct.unpack("f", struct.pack("f", value)) == (value,)
    return not isinstance(value, int) or -(1 << 31) <= value < 1 << 31


def _names(tree: Tree) -> frozenset[str]:
    if tree[0] in {"and", "or", "not"}:
        return frozenset[str]().union(*map(_names, tree[1:]))
    return frozenset({tree[1]})


def _truth(tree: Tree, row: Mapping[str, Any], absent: Collection[str]) -> Truth:
    """What a condition is of a row, from a file without the columns ``absent``."""
    match tree:
        case ("not", one):
            return not_(_truth(one, row, absent))
        case ("and", one, two):
            return and_(_truth(one, row, absent), _truth(two, row, absent))
        case ("or", one, two):
            return not_(and_(not_(_truth(one, row, absent)), not_(_truth(two, row, absent))))
        case ("null", name):
            return row[name] is None
        case ("nan", name):
            return _of_null(tree, absent) if row[name] is None else math.isnan(row[name])
        case ("in", name, listed) if len({*map(_key, listed)}) == 1:
            return _truth(("==", name, listed[0]), row, absent)
        case ("in", name, listed):
            return row[name] is not None and _key(row[name]) in [*map(_key, listed)]
        case ("prefix", name, text):
            return _of_null(tree, absent) if row[name] is None else bool(row[name].startswith(text))
    sign, name, literal = tree
    return _of_null(tree, absent) if row[name] is None else _SIGNS[sign](_key(row[name]), _key(literal))


def _of_null(tree: Tree, absent: Collection[str]) -> Truth:
    """What a condition is of a null: unknown; of a column that a file lacks only ``!=`` is true."""
    return tree[0] == "!=" if tree[1] in absent else None


def _key(value: Any) -> Any:
    return value if isinstance(value, float) else order(value)
