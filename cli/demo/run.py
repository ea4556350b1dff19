"""A run of the demo: its environment, its steps, its checks, and the summary of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txnstore.cli.demo.checks import Check
from txnstore.cli.demo.process import JobProcess
from txnstore.cli.output import Output
from txnstore.runtime import wall_clock_ms

if TYPE_CHECKING:
    from txnstore.store import Store

_WORST = """
    SELECT carrier, count(*) AS flights, count(*) FILTER (status = 'cancelled') AS cancelled,
           count(*) FILTER (status = 'late') AS late, round(avg(delay), 1) AS mean_delay, max(delay) AS worst_delay
    FROM delays GROUP BY carrier ORDER BY mean_delay DESC NULLS LAST LIMIT 5
"""


@dataclass
class DemoRun:
    """The environment and the checks of a run. ``folder`` contains logs and Spark's files."""

    out: Output
    store: Store
    url: str
    storage_options: dict[str, Any] = field(repr=False)
    folder: Path
    checks: list[Check] = field(default_factory=list)
    clock: Callable[[], int] = wall_clock_ms

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Run a step; prints its title and its duration."""
        clock = self.clock
        began_at = clock()
        if not self.out.as_json:
            self.out.line(f"\n{title}")
            self.out.flush()
        yield
        seconds = (clock() - began_at) / 1000
        if self.out.as_json:
            self.out.record({"type": "step", "title": title, "seconds": seconds})
        else:
            self.note(f"{seconds:.1f} s")
        self.out.flush()

    def note(self, text: str) -> None:
        """Print a line of text; nothing with ``--json``."""
        if not self.out.as_json:
            self.out.line(f"   {text}")
            self.out.flush()

    def check(self, claim: str, actual: Any, expected: Any) -> None:
        """Add a check and print its result."""
        self.add([Check(claim, actual, expected)])

    def add(self, checks: list[Check]) -> None:
        """Add checks and print their results."""
        for check in checks:
            self.checks.append(check)
            self.note(f"{_mark(check)} {check.claim}: {_outcome(check)}")

    def show_worst(self) -> None:
        """Print the carriers with the longest delays."""
        with self.store.duckdb() as connection:
            worst_carriers = connection.sql(_WORST).to_arrow_table()
        if not self.out.as_json:
            self.out.rows(worst_carriers.to_pylist(), worst_carriers.schema.names)

    def process(self, module: str, **config: Any) -> JobProcess:
        """Start a job of the demo, a module of ``txnstore.cli.demo``, as a process that works on the store."""
        config |= {"url": self.url, "storage_options": self.storage_options}
        return JobProcess(module, config, self.folder / f"{module}.log")


def summary(run: DemoRun, number: int, seconds: float) -> bool:
    """Print all checks, as the step with this number; returns whether they hold."""
    failed_checks = [check for check in run.checks if not check.ok]
    rows = [
        {"type": "check", "check": check.claim, "found": check.actual, "expected": check.expected, "ok": check.ok}
        for check in run.checks
    ]
    if run.out.as_json:
        run.out.rows(rows, [])
    else:
        run.out.line(f"\n{number}  Summary of the checks")
        table_rows = [{"": _mark(check), "check": check.claim, "found": _outcome(check)} for check in run.checks]
        run.out.rows(table_rows, ["", "check", "found"])
    text = f"All {len(rows)} checks hold" if not failed_checks else f"{len(failed_checks)} of {len(rows)} checks FAILED"
    run.out.result(
        f"{text}, after {seconds:.0f} s.", type="summary", checks=len(rows), failed=len(failed_checks), seconds=seconds
    )
    return not failed_checks


def _mark(check: Check) -> str:
    return "✓" if check.ok else "✗"


def _outcome(check: Check) -> str:
    actual_text = f"{check.actual:,}" if isinstance(check.actual, int) else str(check.actual)
    return actual_text if check.ok else f"{actual_text}, not {check.expected}"
