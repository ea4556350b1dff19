"""The rules of stored types are those that pydantic derives, without its import."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from pydantic import ConfigDict, TypeAdapter

from tests.unit.segment.test_wrong_types import sample
from txnstore.chain.rules import schema_of, serializer_of, validator_of
from txnstore.core.commands import COMMANDS
from txnstore.core.events import Event


@dataclass(frozen=True, slots=True)
class Unknown:
    """A dataclass with a member of a type without rules."""

    member: frozenset[int]


@pytest.mark.parametrize("kind", [*get_args(Event), *COMMANDS], ids=lambda kind: kind.__name__)
def test_values_are_written_and_read_as_pydantic_does(kind: type) -> None:
    of: Any = kind
    rules = TypeAdapter(tuple[of], config=ConfigDict(strict=True, ser_json_bytes="base64", val_json_bytes="base64"))
    value = sample(kind)
    written = serializer_of(kind).to_json(value)
    assert b"[%b]" % written == rules.dump_json((value,))
    assert validator_of(kind).validate_json(written) == rules.validate_json(b"[%b]" % written)[0] == value


@pytest.mark.parametrize("kind", [frozenset[int], set, object, complex], ids=str)
def test_a_type_without_rules_is_refused_where_it_is_declared(kind: Any) -> None:
    with pytest.raises(TypeError, match=re.escape(f"no rules for {kind}")):
        schema_of(kind)
    with pytest.raises(TypeError, match="no rules for frozenset"):
        schema_of(Unknown)
