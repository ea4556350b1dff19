"""Runs operations, records observations, and replays recorded ones."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Protocol

from tests.harness.differential.compare import Comparison
from tests.harness.differential.difference import Difference
from tests.harness.differential.model_driver import ModelDriver
from tests.harness.traces import Observation, Op, Trace, changes, merged


class Driver(Protocol):
    """Runs the operations of traces: on the model, a store, or a broker."""

    def apply(self, op: Op) -> dict[str, Any]: ...

    def observe(self) -> dict[str, Any]: ...


class MismatchError(AssertionError):
    """A store differs from a trace. The message contains the operations so far, ready to be replayed."""

    def __init__(self, name: str, ops: list[Op], differences: list[Difference]) -> None:
        lines = [json.dumps(op) for op in ops]
        listed = [f"  {difference}" for difference in differences]
        super().__init__("\n".join([f"{name}: after operation {len(ops)}", *listed, "the operations were:", *lines]))
        self.ops = ops
        self.differences = differences


def record(ops: Iterable[Op], driver: Driver | None = None) -> list[Observation]:
    """The observations of a driver (by default the model) after each operation: its answer, and the changes."""
    driver = driver if driver is not None else ModelDriver()
    before: dict[str, Any] = {}
    observations = []
    for op in ops:
        observation, after = driver.apply(op), driver.observe()
        patch = changes(before, after)
        if patch:
            observation["state"] = patch
        if observation.get("answer", ...) is None:
            del observation["answer"]
        observations.append(observation)
        before = after
    return observations


def replay(trace: Trace, driver: Driver, comparison: Comparison | None = None) -> Comparison:
    """Run the operations of a trace and compare after each. Raises :class:`MismatchError` at the first difference."""
    if comparison is None:
        comparison = Comparison(trace.source, of_model=isinstance(driver, ModelDriver))
    expected: dict[str, Any] = {}
    for number, (op, observation) in enumerate(zip(trace.ops, trace.observations, strict=True), 1):
        expected = merged(expected, observation.get("state", {}))
        observed = {key: value for key, value in observation.items() if key != "state"}
        actual = driver.apply(op)
        if "error" in actual:
            observed.setdefault("error", None)
        differences = comparison.step(op, {**observed, "state": expected}, {**actual, "state": driver.observe()})
        if differences:
            raise MismatchError(trace.name, trace.ops[:number], differences)
    return comparison
