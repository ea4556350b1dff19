"""Generates the state diagram of ``docs/protocol.md`` from the transition table that the core checks."""

from __future__ import annotations

import re
from pathlib import Path

from txnstore.core.transactions.machine import KAFKA_ONLY, VALID_PREVIOUS_STATES
from txnstore.core.transactions.model import TxnState

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"

_PLACE = re.compile(r"(?<=<!-- states: written by `make docs` -->\n).*?(?=<!-- /states -->)", re.DOTALL)


def diagram() -> str:
    """A table of the states with their stored ids, and a Mermaid diagram of all valid transitions."""
    lines = ["| id | state | entered from |", "|---|---|---|"]
    for state in sorted(TxnState, key=lambda state: state.value):
        previous = sorted(VALID_PREVIOUS_STATES[state], key=lambda state: state.value)
        name = f"`{state.name}`" + (" (Kafka only)" if state in KAFKA_ONLY else "")
        lines.append(f"| {state.value} | {name} | {', '.join(f'`{one.name}`' for one in previous)} |")
    lines += ["", "```mermaid", "stateDiagram-v2", "    [*] --> EMPTY: init"]
    for before in sorted(TxnState, key=lambda state: state.value):
        for after in sorted(TxnState, key=lambda state: state.value):
            if before in VALID_PREVIOUS_STATES[after]:
                only = " : Kafka only" if KAFKA_ONLY & {before, after} else ""
                lines.append(f"    {before.name} --> {after.name}{only}")
    lines += ["    DEAD --> [*]", "```"]
    return "\n".join(lines) + "\n"


def with_diagram(text: str) -> str:
    """The page with its diagram replaced by the current one."""
    page, count = _PLACE.subn(lambda _: diagram(), text)
    assert count == 1, f"{PAGE} has no place for the diagram"
    return page
