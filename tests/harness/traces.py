"""What was recorded in ``tests/traces``, as JSON that a person can read and review.

A trace has operations and the observations after each: those of the folder ``model`` come from the model, of ``kafka``
from a broker, of ``kafka_transactions_v1`` from a broker whose clients use transactions of version 1. The files of
``wire`` have the responses of a broker to the requests of a scenario, one in each line.

An observation contains only the changes since the previous one: a list replaces the previous list, a mapping is merged,
and null removes. A trace of another source may omit fields that it could not observe; they are not compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "traces"

#: One step of the language: ``{"op": name, ...}``.
Op = dict[str, Any]
#: ``{"answer": ...}`` or ``{"error": name}``, and ``{"state": ...}``.
Observation = dict[str, Any]

#: The source of observations that do not come from a broker.
MODEL = "model"


@dataclass
class Trace:
    """A recorded run. ``items`` are the conformance items that it proves; ``source`` is the origin of the observations.

    ``needs``: operations that not every store supports; a store without them cannot replay the trace.
    """

    name: str
    about: str
    items: list[str]
    ops: list[Op]
    observations: list[Observation]
    source: str = MODEL
    needs: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Read a trace."""
        trace = cls(**json.loads(path.read_text()))
        if len(trace.ops) != len(trace.observations):
            msg = f"{path}: {len(trace.ops)} operations, but {len(trace.observations)} observations"
            raise ValueError(msg)
        return trace

    def save(self, path: Path) -> None:
        """Write it, with one operation or observation per line."""
        path.write_text(self.dumps())

    def dumps(self) -> str:
        """The JSON text."""
        head = {"name": self.name, "about": self.about, "items": self.items, "source": self.source, "needs": self.needs}
        lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
        for key, values in (("ops", self.ops), ("observations", self.observations)):
            rows = ",\n".join(f"  {json.dumps(value, ensure_ascii=False)}" for value in values)
            lines.append(f"{json.dumps(key)}: [\n{rows}\n]")
        return "{\n" + ",\n".join(lines) + "\n}\n"


def traces(source: str, pattern: str = "*") -> dict[str, Trace]:
    """The traces of a folder whose names fit, by folder and name: ``kafka/02_undecided_blocks``."""
    paths = sorted((FOLDER / source).glob(f"{pattern}.json"))
    return {f"{source}/{path.stem}": Trace.load(path) for path in paths}


def responses(scenario: str) -> list[tuple[str, Any]]:
    """The responses of a broker in a scenario, by label."""
    return [(label, value) for label, value in json.loads((FOLDER / "wire" / f"{scenario}.json").read_text())]


def responses_text(rows: Sequence[tuple[str, Any]]) -> str:
    """The text of a file of responses."""
    lines = ",\n".join(json.dumps([label, value], ensure_ascii=False) for label, value in rows)
    return f"[\n{lines}\n]\n"


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The changes that turn ``before`` into ``after``."""
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        earlier = before.get(key)
        if isinstance(value, dict) and isinstance(earlier, dict):
            inner = changes(earlier, value)
            if inner:
                patch[key] = inner
        elif key not in before or earlier != value:
            patch[key] = value
    return patch


def merged(before: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """``before`` with the changes in it."""
    result = dict(before)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            earlier = result.get(key)
            result[key] = merged(earlier if isinstance(earlier, dict) else {}, value)
        else:
            result[key] = value
    return result
