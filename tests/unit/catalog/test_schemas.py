"""Schemas that some engine could not read are refused, and a change that old segments could not follow, too."""

from __future__ import annotations

import base64
import re
from decimal import Decimal

import pyarrow as pa
import pytest

from txnstore.catalog.schemas import (
    MAX_DEPTH,
    check_schema,
    check_topic_schema,
    evolve_schema,
    schema_from_text,
    schema_to_text,
)
from txnstore.errors import CorruptionError, SchemaMismatchError
from txnstore.segment.convert import conform

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("where", pa.struct([("x", pa.float64()), ("y", pa.float64())])),
        pa.field("more", pa.map_(pa.string(), pa.binary())),
        pa.field("hash", pa.binary(32)),
    ],
)


def test_a_schema_survives_the_chain() -> None:
    text = schema_to_text(SCHEMA)
    assert text.isascii()
    assert schema_from_text(text).equals(SCHEMA)
    assert not schema_from_text(text).field("id").nullable


def test_equal_schemas_have_equal_texts() -> None:
    noisy = SCHEMA.with_metadata({"pandas": "{}"})
    noisy = noisy.set(0, noisy.field(0).with_metadata({"note": "x"}))
    assert schema_to_text(noisy) == schema_to_text(SCHEMA)


@pytest.mark.parametrize("text", ["", "%%%", "ä", base64.b64encode(b"nothing").decode(), schema_to_text(SCHEMA)[:40]])
def test_schema_from_text_rejects_other_text(text: str) -> None:
    with pytest.raises(CorruptionError, match="schema of a topic"):
        schema_from_text(text)


def test_supported_schemas_are_accepted() -> None:
    check_schema(SCHEMA)
    check_topic_schema(SCHEMA, "id", "at")
    check_topic_schema(SCHEMA, None, None)
    check_topic_schema(None, None, None)


def field(data_type: pa.DataType, name: str = "c") -> pa.Schema:
    return pa.schema([pa.field(name, data_type)])


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (pa.schema([]), "at least one column"),
        (field(pa.int64(), ""), "no name"),
        (field(pa.int64(), "_offset"), "column '_offset' has a reserved name"),
        (field(pa.int64(), "_Timestamp_2"), "reserved"),
        (pa.schema([("a", pa.int64()), ("a", pa.int32())]), "'a' is a duplicate"),
        (pa.schema([("a", pa.int64()), ("A", pa.int32())]), "'A' differs from 'a' in case only"),
        (field(pa.uint32()), "use a signed integer"),
        (field(pa.float16()), "use float32"),
        (field(pa.date64()), "use date32"),
        (field(pa.timestamp("ns")), r"use timestamp\('us', 'UTC'\)"),
        (field(pa.timestamp("us", "Europe/Berlin")), "UTC"),
        (field(pa.duration("ms")), "use int64"),
        (field(pa.time64("us")), "timestamp"),
        (field(pa.dictionary(pa.int32(), pa.string())), "value type"),
        (field(pa.string_view()), "use string"),
        (field(pa.decimal256(50, 2)), "decimal128"),
        (field(pa.large_list(pa.int64())), "use list"),
        (field(pa.null()), "plain"),
        (field(pa.struct([])), "without fields"),
        (field(pa.list_(pa.uint8())), r"'c\.item'.*signed"),
        (field(pa.struct([("x", pa.uint8())])), r"'c\.x'"),
        (field(pa.struct([("x", pa.int8()), ("X", pa.int8())])), r"'c\.X' differs from 'c\.x'"),
        (field(pa.map_(pa.string(), pa.null())), r"'c\.value'"),
        (field(pa.map_(pa.uint8(), pa.string())), r"'c\.key'"),
        (field(pa.list_(pa.field("item", pa.int64(), nullable=False))), r"'c\.item' must be nullable"),
        ("id int", "not str"),
    ],
)
def test_unsupported_schemas_are_rejected(schema: object, says: str) -> None:
    with pytest.raises(SchemaMismatchError, match=says):
        check_schema(schema)


@pytest.mark.parametrize(
    ("schema", "key", "timestamp", "says"),
    [
        (None, "id", None, "key='id' needs a schema"),
        (None, None, "at", "timestamp='at' needs a schema"),
        (SCHEMA, "nope", None, "the key column 'nope' is not in the schema"),
        (SCHEMA, None, "nope", "the timestamp column 'nope' is not in the schema"),
        (SCHEMA, "tags", None, "column 'tags' .* cannot be the key"),
        (SCHEMA, "price", None, "column 'price' .* cannot be the key"),
        (SCHEMA, "id", "name", "column 'name' .* cannot be the timestamp"),
    ],
)
def test_unsuitable_key_and_timestamp_columns_are_rejected(
    schema: pa.Schema | None, key: str | None, timestamp: str | None, says: str
) -> None:
    with pytest.raises(SchemaMismatchError, match=says):
        check_topic_schema(schema, key, timestamp)


def changed(column: str, data_type: pa.DataType, nullable: bool = True) -> pa.Schema:
    return SCHEMA.set(SCHEMA.get_field_index(column), pa.field(column, data_type, nullable))


@pytest.mark.parametrize(
    "new",
    [
        SCHEMA,
        pa.schema(list(SCHEMA)[::-1]),
        SCHEMA.append(pa.field("new", pa.string())),
        changed("id", pa.int64()),
        changed("name", pa.large_string()),
        changed("price", pa.decimal128(12, 2)),
    ],
)
def test_compatible_changes_are_accepted(new: pa.Schema) -> None:
    evolve_schema(SCHEMA, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pa.int8(), pa.int16()),
        (pa.int8(), pa.int64()),
        (pa.int16(), pa.int32()),
        (pa.int32(), pa.int64()),
        (pa.float32(), pa.float64()),
        (pa.binary(), pa.large_binary()),
        (pa.decimal128(5, 2), pa.decimal128(38, 2)),
    ],
)
def test_old_rows_can_be_read_after_a_widening(old: pa.DataType, new: pa.DataType) -> None:
    evolve_schema(field(old), field(new))
    value = {pa.binary(): b"1", pa.decimal128(5, 2): Decimal("1.50")}.get(old, 1)
    rows = pa.table({"c": pa.array([value, None], old)})
    assert conform(rows, field(new))["c"].to_pylist() == [value, None]
    with pytest.raises(SchemaMismatchError, match="'c' cannot change"):
        evolve_schema(field(new), field(old))


@pytest.mark.parametrize(
    ("new", "says"),
    [
        (SCHEMA.remove(1), "column 'name' cannot be dropped"),
        (changed("name", pa.string(), nullable=False), "column 'name' cannot become not null"),
        (changed("name", pa.binary()), "column 'name' cannot change from string to binary"),
        (changed("at", pa.timestamp("ms", "UTC")), "column 'at' cannot change"),
        (changed("price", pa.decimal128(12, 3)), "column 'price' cannot change"),
        (changed("price", pa.decimal128(9, 2)), "column 'price' cannot change"),
        (changed("tags", pa.list_(pa.large_string())), "column 'tags' cannot change"),
        (SCHEMA.append(pa.field("new", pa.string(), nullable=False)), "column 'new' is new and not null"),
    ],
)
def test_incompatible_changes_are_rejected_with_allowed_ones(new: pa.Schema, says: str) -> None:
    with pytest.raises(SchemaMismatchError, match=f"{says}.*allowed are: new nullable columns"):
        evolve_schema(SCHEMA, new)


def test_key_type_cannot_change() -> None:
    with pytest.raises(SchemaMismatchError, match="'c' is the key"):
        evolve_schema(field(pa.int32()), field(pa.int64()), key="c")
    evolve_schema(field(pa.int32()), field(pa.int64()), key=None)
    evolve_schema(field(pa.string()), field(pa.large_string()), key="c")


def nested(kind: str, depth: int) -> pa.DataType:
    """A type of the given depth: an int64 inside lists, structs or maps."""
    data_type: pa.DataType = pa.int64()
    for _ in range(depth - 1):
        if kind == "list":
            data_type = pa.list_(data_type)
        elif kind == "struct":
            data_type = pa.struct([("x", data_type)])
        else:
            data_type = pa.map_(pa.string(), data_type)
    return data_type


@pytest.mark.parametrize("kind", ["list", "struct", "map"])
def test_types_up_to_the_maximum_depth_are_accepted(kind: str) -> None:
    check_schema(pa.schema([("a", nested(kind, MAX_DEPTH))]))
    for depth in (MAX_DEPTH + 1, 50, 2000):
        with pytest.raises(SchemaMismatchError, match="column 'a' is nested more than 16 levels deep"):
            check_schema(pa.schema([("a", nested(kind, depth))]))


@pytest.mark.parametrize("data_type", [pa.decimal128(5, -2), pa.decimal128(2, 4), pa.list_(pa.decimal128(2, 4))])
def test_decimals_with_a_scale_outside_their_precision_are_refused(data_type: pa.DataType) -> None:
    with pytest.raises(SchemaMismatchError, match="the scale of a decimal is from 0 to its precision"):
        check_schema(pa.schema([("a", data_type)]))
    check_schema(pa.schema([("a", pa.decimal128(4, 4)), ("b", pa.decimal128(4, 0))]))


def test_all_columns_that_are_not_allowed_are_named() -> None:
    with pytest.raises(SchemaMismatchError) as raised:
        check_schema(pa.schema([("a", pa.uint8()), ("b", pa.int64()), ("_offset", pa.int64()), ("c", pa.float16())]))
    assert re.findall(r"column '(\w+)'", str(raised.value)) == ["a", "_offset", "c"]


def test_all_changes_that_are_not_allowed_are_named_with_what_is() -> None:
    old = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.int32())])
    new = pa.schema([("a", pa.int32()), ("c", pa.int64()), pa.field("d", pa.int64(), nullable=False)])
    with pytest.raises(SchemaMismatchError) as raised:
        evolve_schema(old, new)
    text = str(raised.value)
    assert re.findall(r"column '(\w+)'", text) == ["a", "b", "d"]
    assert text.count("allowed are:") == 1
