"""A response as a value that can be compared and stored: names of errors, numbers in the place of ids."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from enum import Enum
from typing import Any
from uuid import UUID

#: Fields that name a machine, a time or a text: they differ from run to run, or need not be the same.
LEFT_OUT = frozenset(
    {
        "broker_id", "cluster_id", "controller_id", "coordinator_id", "error_message", "host", "last_timestamp",
        "leader", "leader_id", "message", "node_endpoints", "node_id", "port", "rack", "replica_nodes", "isr_nodes",
        "batch_index_error_message", "transaction_start_time", "brokers", "eligible_leader_replicas", "last_known_elr",
    }
)  # fmt: skip
_IDS = {"producer_id": "producer", "member_id": "member", "leader_member": "member"}


class Shown:
    """Responses of one run: the same id is the same number in all of them, and names come without the prefix."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._numbers: dict[tuple[str, Any], int] = {}

    def value(self, value: Any, name: str = "") -> Any:
        """A value of a response; ``name`` is that of its field."""
        kind = _IDS.get(name)
        if kind is not None and value not in {-1, ""} and not str(value).startswith(kind):
            return f"{kind} {self._number(kind, value)}"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
            return {key: self.value(item, key) for key, item in fields.items() if key not in LEFT_OUT}
        if isinstance(value, dict):
            return {key: self.value(item, key) for key, item in value.items()}
        if isinstance(value, tuple | list):
            return [self.value(item, name) for item in value]
        return self._plain(value)

    def _plain(self, value: Any) -> Any:
        match value:
            case Enum():
                return value.name
            case UUID():
                return f"id {self._number('id', value)}" if value.int else None
            case timedelta():
                return int(value.total_seconds() * 1000)
            case datetime():
                return int(value.timestamp() * 1000)
            case bytes() | memoryview():
                return bytes(value).hex()
            case str():
                return value.replace(self._prefix, "") if self._prefix else value
            case int() | float() | None:
                return value
        return str(value)

    def _number(self, kind: str, value: Any) -> int:
        numbered = [each for each in self._numbers if each[0] == kind]
        return self._numbers.setdefault((kind, value), len(numbered))
