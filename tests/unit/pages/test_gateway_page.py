"""``docs/gateway.md`` names what exists: options, properties with their defaults, codes, metrics."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import click
import kio.schema
from kio.schema.errors import ErrorCode

from txnstore.cli.commands.gateway import gateway
from txnstore.cli.commands.store import init
from txnstore.gateway.apis import VERSIONS
from txnstore.gateway.metrics import FAMILIES, WORKER_FAMILIES
from txnstore.gateway.properties import Properties
from txnstore.monitoring.catalogue import PROCESS

PAGE = (Path(__file__).parents[3] / "docs" / "gateway.md").read_text(encoding="utf-8")


def _section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def _options(command: click.Command) -> set[str]:
    return {name for each in command.params if isinstance(each, click.Option) for name in each.opts}


def test_every_option_is_on_the_page() -> None:
    own = _options(gateway) - _options(init)  # without those that all commands share
    assert len(own) > 8
    assert {name for name in own if not re.search(rf"{name}\b", PAGE)} == set()


def _text(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


def test_properties_have_their_defaults() -> None:
    rows = re.findall(r"^\| (`[a-z][\w.]*`(?:, `[\w.]*`)*) \| ([^|]*) \|", _section("Properties"), re.MULTILINE)
    shown: dict[str, str] = {}
    for names, values in rows:
        quoted = re.findall(r"`([\w.]+)`", names)
        defaults = values.split(" (")[0].split(", ")
        shown.update(zip(quoted, defaults, strict=True))
    properties = {each.name.replace("_", "."): _text(each.default) for each in fields(Properties)}
    assert {name: shown.get(name) for name in properties} == properties
    assert [name for name in shown if name not in properties and not name.startswith("group.consumer.")] == []


def _camel(name: str) -> str:
    return "".join(part.title() for part in name.split("_"))


def test_each_request_of_kafka_is_served_or_said_not_to_be() -> None:
    folders = [Path(path) for path in kio.schema.__path__]
    known = {_camel(path.parents[1].name) for folder in folders for path in folder.glob("*/v*/request.py")}
    served = {_camel(api.name) for api in VERSIONS}
    table = PAGE.split("**Not served.**")[1].split("**Settings.**")[0]
    refused = [
        name for row in re.findall(r"^\| ([A-Z]\w+(?:, \w+)*) \|", table, re.MULTILINE) for name in row.split(", ")
    ]
    assert len(known) > 80
    assert sorted([*served, *refused]) == sorted(known)


def test_codes_are_those_of_kafka() -> None:
    named = re.findall(r"\b([A-Z][A-Z_]{4,}) \((\d+)\)", PAGE)
    assert len(named) > 15
    assert [(name, number) for name, number in named if ErrorCode(int(number)).name.upper() != name] == []


def test_metrics_exist() -> None:
    named = set(re.findall(r"`txnstore_(\w+?)(?:_total)?`", _section("Monitoring")))
    assert len(named) > 4
    assert (
        named
        - {each.name for each in FAMILIES}
        - {name for name, *_ in WORKER_FAMILIES}
        - {each.name for each in PROCESS}
        == set()
    )
