"""Generates the JSON Schemas of the format, ``docs/format/schemas``, from the models that read and write objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from txnstore.chain.backups import BackupDocument
from txnstore.chain.boundary import BoundaryDocument
from txnstore.chain.checkpoints.document import StateDocument
from txnstore.chain.checkpoints.index import IndexDocument
from txnstore.chain.codec import FORMAT_VERSION, Entry, LatestDocument, Stored, StoreDocument
from txnstore.chain.committer.network import CommitterDocument
from txnstore.chain.maintained import MaintenanceDocument
from txnstore.chain.rules import schema_of
from txnstore.compactor.compact.lease import LeaseDocument
from txnstore.core.events import EVENT_TYPES

FOLDER = Path(__file__).parents[2] / "docs" / "format" / "schemas"

#: The model of each kind of object, by the name of its schema.
MODELS: dict[str, type[Stored]] = {
    "store": StoreDocument,
    "entry": Entry,
    "state": StateDocument,
    "index": IndexDocument,
    "hint": LatestDocument,
    "boundary": BoundaryDocument,
    "lease": LeaseDocument,
    "maintenance": MaintenanceDocument,
    "committer": CommitterDocument,
    "backup": BackupDocument,
}


class _Schemas(GenerateJsonSchema):
    """JSON Schemas with bytes in base64, as ``txnstore/chain/rules.py`` says."""

    def bytes_schema(self, schema: core_schema.BytesSchema) -> dict[str, Any]:
        return super().bytes_schema(schema) | {"format": "base64url"}


def schema(name: str) -> dict[str, Any]:
    """The schema of a kind of object: members that it does not name are allowed, and events of later releases."""
    described: dict[str, Any] = _bare(_Schemas().generate(_with_definitions(schema_of(MODELS[name]))))
    definitions = described.get("$defs", {})
    if "UnknownEvent" in definitions:
        del definitions["UnknownEvent"]
        for event in EVENT_TYPES:
            definitions[event]["required"] = ["type", *definitions[event].get("required", [])]
        known = sorted(EVENT_TYPES)
        later = {
            "type": "object",
            "properties": {"type": {"type": "string", "not": {"enum": known}}},
            "required": ["type"],
        }
        described["properties"]["events"]["items"] = {
            "oneOf": [*({"$ref": f"#/$defs/{event}"} for event in known), later]
        }
        described["properties"]["events"]["minItems"] = 1
    described["properties"]["version"] = {"const": FORMAT_VERSION}
    described["properties"]["checksum"] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
    described["required"] = sorted({"version", "checksum", *described.get("required", [])})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name, **described}


def _with_definitions(rules: Any) -> core_schema.CoreSchema:
    """The rules of a document, which name each class of its values, and define it once."""
    definitions: dict[str, Any] = {}

    def named(value: Any) -> Any:
        if isinstance(value, list):
            return [named(each) for each in value]
        if not isinstance(value, dict):
            return value
        match value.get("type"):
            case "dataclass" | "enum":
                name = value["cls"].__name__
            case "function-after":
                name = value["function"]["function"].args[0].__name__
            case _:
                return {key: named(each) for key, each in value.items()}
        if name not in definitions:
            definitions[name] = {key: named(each) for key, each in value.items()} | {"ref": name}
        return core_schema.definition_reference_schema(name)

    return core_schema.definitions_schema(named(rules), [*definitions.values()])


def _bare(value: Any) -> Any:
    """A schema without the titles and docstrings of the models: docs/format.md describes the members."""
    if isinstance(value, list):
        return [_bare(each) for each in value]
    if not isinstance(value, dict):
        return value
    # A member that is named so has a schema, not a text.
    words = {name for name in ("title", "description") if isinstance(value.get(name), str)}
    return {name: _bare(each) for name, each in value.items() if name not in words}


def text(name: str) -> str:
    """The file of a schema."""
    return json.dumps(schema(name), indent=1, sort_keys=True) + "\n"


def write() -> None:
    """Write the files."""
    for name in MODELS:
        (FOLDER / f"{name}.json").write_text(text(name), encoding="utf-8")
