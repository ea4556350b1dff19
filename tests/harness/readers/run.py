"""Draws the steps of a history, runs them, and leaves out steps while it still fails."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.harness.readers import answers
from tests.harness.readers.history import ALONE, CHANGES, READS, Coverage, DifferenceError, History, Step, is_narrow
from tests.harness.readers.objects import Kind
from tests.helpers.tables import EngineObjects
from txnstore.testing import ManualClock
from txnstore.validation import BlockedReadWarning

#: How often each step is taken.
_WEIGHTS = {
    "commit": 9,
    "append": 5,
    "abort": 3,
    "small": 4,
    "begin": 2,
    "end": 3,
    "create": 2,
    "delete": 1,
    "recreate": 1,
    "add_column": 3,
    "widen": 2,
    "grow": 1,
    "policy": 5,
    "acl": 2,
    "merge": 3,
    "compact": 9,
    "retain": 3,
    "delete_records": 4,
    "sync": 3,
    "checkpoint": 1,
    "wait": 2,
    "wait_long": 2,
    "keep": 2,
}
#: The same of a narrow history.
_NARROW = _WEIGHTS | {
    "commit": 7,
    "small": 5,
    "create": 1,
    "delete": 0,
    "recreate": 0,
    "acl": 1,
    "policy": 2,
    "compact": 16,
    "wait": 5,
    "retain": 6,
    "merge": 4,
    "sync": 4,
}
_READS = {
    "scan": 4,
    "past": 2,
    "sql": 6,
    "duckdb": 1,
    "emitted": 2,
    "consume": 4,
    "rights": 2,
    "inspect": 1,
    "table": 3,
}
#: Readers beside which nothing is done.
_NEVER_BESIDE = frozenset({"rights", "inspect", "spark", "pyiceberg", "iceberg_scan"})
#: After the last step: all readers, and one that shares no code with the library.
_LAST = ("sync", "table", *_READS, "format")
#: Steps that plan with what they have read, and whose plan may be old when it is carried out.
_UPKEEP = frozenset({"compact", "retain", "merge", "sync"})
#: Steps that follow one another between two requests: what makes the plan of the outer step old.
_TOGETHER = (
    ("add_column", "commit", "append"),
    ("widen", "commit", "append"),
    ("policy", "commit", "append"),
    ("policy", "small"),
    ("spare",),
    ("spare", "commit", "append"),
    ("recreate", "commit", "append"),
    ("delete_records",),
    ("delete_records", "sync"),
)
#: Before which requests the plans of these steps are most often old.
_KINDS: dict[str, tuple[Kind, ...]] = {
    "compact": ("segment", "upload", "entry", "leased", "leased"),
    "retain": ("entry",),
    "merge": ("segment", "upload", "entry"),
    "sync": ("segment", "upload", "entry"),
}
#: The same for steps that only delete.
_SPARED = (("spare",), ("spare", "commit", "append"), ("policy", "commit"))
_DOES = {**CHANGES, **ALONE}
STEPS = 26


@dataclass(frozen=True)
class Failure:
    """A history that failed.

    Attributes:
        seed: Its seed.
        steps: Its steps up to the one that failed.
        error: What is different.
    """

    seed: int
    steps: tuple[Step, ...]
    error: str

    def __str__(self) -> str:
        lines = "".join(f"\n    {step}" for step in self.steps)
        return f"seed {self.seed}: {self.error}{lines}"


def drawn(seed: int, count: int = STEPS, readers: Iterable[str] | None = None, also: Iterable[str] = ()) -> list[Step]:
    """The steps of a history: some that prepare it, then others with readers between them.

    Args:
        seed: The seed.
        count: How many, without the reads at the end.
        readers: Only these; None: all that are quick.
        also: Further ones, which are slow.
    """
    rng = random.Random(f"steps {seed}")
    reads = {name: weight for name, weight in _READS.items() if readers is None or name in readers}
    reads |= dict.fromkeys(also, 3)
    narrow, weights = is_narrow(seed), _NARROW if is_narrow(seed) else _WEIGHTS
    steps = [Step(number, "create" if number < 2 else "commit", rng.getrandbits(32)) for number in range(4)]
    injectable = sorted(CHANGES)
    for number in range(4, count):
        reading = number > 5 and bool(reads) and rng.random() < (0.25 if narrow else 0.4)
        names = reads if reading else weights
        [name] = rng.choices(list(names), list(names.values()))
        step = Step(number, name, rng.getrandbits(32))
        if name not in {*ALONE, *_NEVER_BESIDE} and rng.random() < (0.8 if name in _UPKEEP else 0.5):
            injected = tuple(rng.choice(injectable) for _ in range(rng.choice([1, 1, 2])))
            if rng.random() < (0.7 if name in _UPKEEP else 0.3):
                injected = rng.choice(_TOGETHER if name != "retain" else _SPARED)
            step = replace(step, injected=injected, at=int(2 ** rng.uniform(0, 5)))
            if name in _UPKEEP and rng.random() < 0.6:
                step = replace(step, at=rng.choice([1, 1, 2, 3]), kind=rng.choice(_KINDS[name]))
        steps.append(step)
    last = [Step(count + place, name, rng.getrandbits(32)) for place, name in enumerate((*_LAST, *also))]
    last = [step for step in last if readers is None or step.name in {*readers, *also, "sync"}]
    return [*steps, *last]


def run(
    seed: int, steps: Sequence[Step], objects: Callable[[ManualClock], Any] = EngineObjects
) -> tuple[Failure | None, Coverage]:
    """Run a history, whose storage ``objects`` makes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BlockedReadWarning)
        history = History(seed, objects)
        try:
            for place, step in enumerate(steps):
                try:
                    history.take(step, READS[step.name] if step.name in READS else _DOES[step.name])
                except DifferenceError as error:
                    return Failure(seed, tuple(steps[: place + 1]), str(error)), history.coverage
                except Exception as error:  # noqa: BLE001 - An engine, or the harness itself: the seed is what helps.
                    problem = f"{step.name}: {type(error).__name__}: {error}"
                    return Failure(seed, tuple(steps[: place + 1]), problem), history.coverage
        finally:
            history.close()
    return None, history.coverage


def shortest(failure: Failure, tries: int = 200, objects: Callable[[ManualClock], Any] = EngineObjects) -> Failure:
    """Leave out steps, and injected steps, while the history still fails."""
    changed = True
    while changed and tries > 0:
        changed = False
        for place in reversed(range(len(failure.steps))):
            step = failure.steps[place]
            without = [*failure.steps[:place], *failure.steps[place + 1 :]]
            alone = [*failure.steps[:place], replace(step, injected=step.injected[1:]), *failure.steps[place + 1 :]]
            for steps in [without, *([alone] if step.injected else [])]:
                tries -= 1
                again, _ = run(failure.seed, steps, objects)
                if again is not None:
                    failure, changed = again, True
                    break
            if changed:
                break
    return failure


__all__ = ["STEPS", "Failure", "answers", "drawn", "run", "shortest"]
