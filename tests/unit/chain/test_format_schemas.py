"""The JSON Schemas of the format are those of the models, and say what the codec says of objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from tests.helpers.damage import sealed
from tests.helpers.documents import store_document
from tests.pages import schemas, vectors
from txnstore.chain.backups import begun
from txnstore.chain.codec import FORMAT_VERSION, decode, encode
from txnstore.chain.committer.network import CommitterDocument
from txnstore.chain.maintained import MaintenanceDocument
from txnstore.chain.payload import line_of
from txnstore.compactor.compact.lease import LeaseDocument
from txnstore.core.model import TopicPartition
from txnstore.errors import CorruptionError

#: What the keys of the objects of each kind have in them.
PLACES = {
    "store": "store.json",
    "entry": "/entries/",
    "state": "/state.json",
    "index": ".index",
    "hint": "chains/latest/",
    "boundary": "/boundaries/",
}


def stored(name: str) -> Iterator[dict[str, Any]]:
    """The objects of a kind in all vectors."""
    if name == "lease":
        lease = LeaseDocument(owner="a", duration_ms=1_000, partitions=[TopicPartition("t", 0)])
        yield json.loads(encode(lease))
        return
    if name == "maintenance":
        yield json.loads(encode(MaintenanceDocument(done={"vacuum": 1_700_000_000_000})))
        return
    if name == "committer":
        yield json.loads(encode(CommitterDocument(host="10.0.0.7", port=7_300, fingerprint="0" * 64)))
        return
    if name == "backup":
        yield json.loads(encode(begun(encode(store_document()), "b", 1)))
        return
    for vector in vectors.STORIES:
        if vector != "refused":
            for key, data in vectors.unpacked(vector).items():
                if PLACES[name] in key:
                    yield json.loads(line_of(data))


def validator(name: str) -> Any:
    return jsonschema.Draft202012Validator(json.loads((schemas.FOLDER / f"{name}.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", schemas.MODELS)
def test_schemas_are_up_to_date(name: str) -> None:
    text = (schemas.FOLDER / f"{name}.json").read_text(encoding="utf-8")
    assert text == schemas.text(name), f"docs/format/schemas/{name}.json is out of date: run `make docs`"
    jsonschema.Draft202012Validator.check_schema(json.loads(text))


def test_each_schema_is_listed() -> None:
    listed = (schemas.FOLDER / "README.md").read_text(encoding="utf-8")
    assert {path.name for path in schemas.FOLDER.glob("*.json")} == {f"{name}.json" for name in schemas.MODELS}
    assert [name for name in schemas.MODELS if f"[{name}.json]({name}.json)" not in listed] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", schemas.MODELS)
def test_stored_objects_fit_their_schema(name: str) -> None:
    objects, check = [*stored(name)], validator(name)
    assert objects
    for document in objects:
        check.validate(document)


@pytest.mark.slow
@pytest.mark.parametrize("name", schemas.MODELS)
def test_schemas_refuse_what_the_codec_refuses(name: str) -> None:
    """A member that is missing, or of another type: the schema and the codec agree; both ignore unknown members."""
    check, model = validator(name), schemas.MODELS[name]
    refused = accepted = 0
    for document in _samples(name):
        for changed in (*_changes(document), {**document, "another": {"member": 1}}):
            valid = check.is_valid({**changed, "checksum": "0" * 64})
            try:
                decode(model, "key", sealed(json.dumps({"version": FORMAT_VERSION, **changed}).encode()))
            except CorruptionError:
                assert not valid, changed
                refused += 1
            else:
                assert valid, changed
                accepted += 1
    assert refused > 1
    assert accepted > 0


def _samples(name: str) -> Iterator[dict[str, Any]]:
    """A few objects without their checksum; of entries one with each event."""
    seen = set[str]()
    for document in stored(name):
        kinds = (
            {event["type"] for event in document["events"]} if name == "entry" else {str(len(seen)) * (len(seen) < 2)}
        )
        if kinds - seen - {""}:
            seen |= kinds
            del document["checksum"]
            yield document


def _changes(value: Any) -> Iterator[Any]:
    """The value without each member that is anywhere in it, and with another type in its place."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name in ("version", "type"):
                continue
            yield {other: item for other, item in value.items() if other != name}
            yield {**value, name: {"of": ["another", "type"]}}
            for changed in _changes(each):
                yield {**value, name: changed}
    elif isinstance(value, list) and value:
        for changed in _changes(value[0]):
            yield [changed, *value[1:]]
