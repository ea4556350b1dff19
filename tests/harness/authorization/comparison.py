"""Runs a history on several sides, and compares what each answers and shows after every step."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.harness.authorization.history import CLUSTER, History, Op
from tests.harness.authorization.on_store import OnStore


class Side(Protocol):
    """Where a history runs."""

    def apply(self, op: Op) -> dict[str, Any]:
        """The answer to an operation."""

    def observe(self) -> dict[str, Any]:
        """What is visible."""


class Difference(AssertionError):  # noqa: N818 - it is what a comparison finds
    """Two sides differ after a step."""

    def __init__(self, seed: int, ops: list[Op], side: str, what: str) -> None:
        lines = "\n".join(json.dumps(op) for op in ops[-25:])
        super().__init__(f"seed {seed}, step {len(ops)}, {side}: {what}\n{lines}")


@dataclass
class Run:
    """What came of a history.

    Attributes:
        steps: How many steps it had.
        refusals: How often which error was raised, by operation and error.
        allowed: How often the sides differed as docs/kafka-differences.md says, by the reason.
        named: How often another side, too, named resources that were refused, by the side.
    """

    steps: int = 0
    refusals: Counter[tuple[str, str]] = field(default_factory=Counter)
    allowed: Counter[str] = field(default_factory=Counter)
    named: Counter[str] = field(default_factory=Counter)


def run_history(seed: int, reference: OnStore, others: Mapping[str, Side], length: int = 40) -> Run:
    """Run a history; the first side is a store, whose answers the history continues from.

    Raises:
        Difference: Two sides differ, or a refused operation has changed something.
    """
    history, run, ops = History(seed, length), Run(), list[Op]()
    before = reference.observe()
    while (op := history.next()) is not None:
        if (reason := _of_the_cluster(reference, op)) is not None:
            run.allowed[reason] += 1
            continue
        ops.append(op)
        needed = _missing(reference, op, history)
        answer, visible = reference.apply(op), reference.observe()
        run.steps += 1
        if answer["error"] is not None:
            run.refusals[op["op"], answer["error"]] += 1
            if visible != before and "outcomes" not in answer:
                raise Difference(
                    seed, ops, "store", f"refused with {answer['error']}, and changed {before} to {visible}"
                )
        forgotten, seen = False, list[tuple[str, dict[str, Any]]]()
        for name, side in others.items():
            other = side.apply(op)
            reason = _allowed(op, answer, other, needed)
            if reason is not None:
                run.allowed[reason] += 1
                forgotten = forgotten or other.get("state") != answer.get("state")
            elif (mismatch := _mismatch(answer, other, needed)) is not None:
                raise Difference(seed, ops, name, f"{mismatch}: {other} instead of {answer}; missing {needed}")
            run.named[name] += bool(answer["refused"] and other["refused"])
            seen.append((name, side.observe()))
        opened = history.open_of(op.get("producer", ""))
        history.learn(op, answer, visible)
        if forgotten:
            history.give_up(op["producer"], opened)
        for name, shown in seen:
            expected = _as_far_as_shown(visible, shown, history.held_back)
            if shown != expected:
                differing = {key: (expected[key], shown[key]) for key in expected if shown[key] != expected[key]}
                raise Difference(seed, ops, name, f"after {answer}: {differing}")
        before = visible
    return run


def _as_far_as_shown(visible: dict[str, Any], shown: Mapping[str, Any], held_back: set[str]) -> dict[str, Any]:
    """What is visible, of some topics only as much as the other side shows: undecided records hold back the rest."""
    records = {
        name: values[: len(shown["records"].get(name, []))] if name.rpartition(".")[0] in held_back else values
        for name, values in visible["records"].items()
    }
    return {**visible, "records": {name: values for name, values in records.items() if values}}


def _of_the_cluster(store: OnStore, op: Op) -> str | None:
    """Why a step is left out: a right to the cluster decides, and another one in Kafka."""
    if op["op"] not in {"delete_topic", "delete_records"}:
        return None
    principal = op["principal"]
    if store.allows(principal, "DELETE", "TOPIC", op["topic"]):
        return None
    if op["op"] == "delete_topic" and store.allows(principal, "DELETE", "CLUSTER", CLUSTER):
        return "left out: in Kafka, who may do all to the cluster may delete topics"
    if op["op"] == "delete_records" and store.allows(principal, "CLUSTER_ACTION", "CLUSTER", CLUSTER):
        return "left out: CLUSTER_ACTION allows to delete records"
    return None


#: The message of Java's producer for an error that it does not expect.
UNEXPECTED = "Unexpected error in TxnOffsetCommitResponse: Topic authorization failed."
#: What an error says that is missing.
_ERRORS = {
    "TOPIC": "TOPIC_AUTHORIZATION_FAILED",
    "GROUP": "GROUP_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID": "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
}


def _missing(store: OnStore, op: Op, history: History) -> dict[str, list[str]]:
    """The resources that an operation has no right to, by the error that names them; of operations on several."""
    kind = op["op"]
    principal, transactional_id = op.get("principal"), None
    if "producer" in op and kind != "init":
        principal, transactional_id = history.owner(op["producer"])
    rights: list[tuple[str, str, str]] = []
    if transactional_id is not None:
        rights.append(("WRITE", "TRANSACTIONAL_ID", transactional_id))
    if kind == "send":
        rights += [("WRITE", "TOPIC", topic) for topic, _, _ in op["records"]]
    if "offsets" in op or kind == "consume":
        rights.append(("READ", "GROUP", op["group"]))
    if "offsets" in op:
        rights += [("READ", "TOPIC", name.rpartition(".")[0]) for name in op["offsets"]]
    if kind in {"poll", "consume"}:
        rights.append(("READ", "TOPIC", op["topic"]))
    missing: dict[str, list[str]] = {}
    for operation, resource, name in rights:
        if principal is not None and not store.allows(principal, operation, resource, name):
            missing.setdefault(_ERRORS[resource], []).append(name)
    return {error: sorted(set(names)) for error, names in missing.items()}


def _allowed(
    op: Op, answer: Mapping[str, Any], other: Mapping[str, Any], missing: Mapping[str, list[str]]
) -> str | None:
    """Why two answers may differ; None: they may not, or do not."""
    errors = answer["error"], other["error"]
    if errors[0] != errors[1] and set(errors) <= missing.keys():
        return "several rights are missing, and another one is named"
    if op["op"] == "send_offsets" and UNEXPECTED in str(errors[1]) and errors[0] == "TOPIC_AUTHORIZATION_FAILED":
        return "a refused topic of offsets is fatal for Java's producer"
    if "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in missing:
        if op["op"] == "abort" and errors[0] is None and other["state"] == "FATAL_ERROR":
            return "a transaction that was refused as a whole is aborted without a request"
        if op["op"] == "close" and errors == ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", None):
            return "a close that may not abort raises that"
    return None


def _mismatch(answer: Mapping[str, Any], other: Mapping[str, Any], missing: Mapping[str, list[str]]) -> str | None:
    """Which part of two answers differs."""
    for part in ("error", "state", "values", "outcomes"):
        if answer.get(part) != other.get(part):
            return part
    named = [names for names in (answer["refused"], other["refused"]) if names and names != [CLUSTER]]
    known = set(missing.get(answer["error"], ()))
    if len(named) == 2 and named[0] != named[1] and not (known and all(known.issuperset(names) for names in named)):
        return "refused"  # But a transaction is refused with the first record that is, where a request names all.
    return None
