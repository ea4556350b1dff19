"""A mutant: one deliberate fault in the protocol, made of the real function by replacing a piece of its text."""

from __future__ import annotations
import __future__

import inspect
import io
import json
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from tests.harness.simulation import Mishap, Settings, settings_of, simulate

#: Seeds that are tried at most; nearly all mutants die in the first few.
SEEDS = 100

#: The seed that killed a mutant when this was last written (``python -m tests.mutants``): it is tried first.
RECORDED = Path(__file__).with_name("seeds.json")

_ROOT = Path(__file__).resolve().parent.parent


def recorded() -> dict[str, int]:
    """A seed by the name of a mutant, for those that the first seed does not kill. Only a hint: it saves time."""
    found: dict[str, int] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True)
class Mutant:
    """``old`` is replaced by ``new`` in the source of ``function`` (a property for its getter).

    Killed by the simulation with so many ``chains``, or by ``test``, a test of another folder. ``mishaps``: only these,
    where the fault shows too seldom among all of them.
    """

    name: str
    function: Any
    old: str
    new: str
    chains: int = 1
    mishaps: tuple[Mishap, ...] | None = None
    test: str | None = None

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Inside, the function is the mutated one, wherever it was imported."""
        function = _plain(self.function)
        before = function.__code__
        function.__code__ = self._code(function)
        try:
            yield
        finally:
            function.__code__ = before

    def _code(self, function: FunctionType) -> Any:
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.old) == 1, f"{self.name}: {self.old!r} is {source.count(self.old)} times in\n{source}"
        # A decorator has done its work on the real function.
        source = source[source.index("def ") :].replace(self.old, self.new)
        names: dict[str, Any] = {}
        flags = __future__.annotations.compiler_flag
        exec(compile(source, function.__code__.co_filename, "exec", flags), function.__globals__, names)  # noqa: S102
        mutated: FunctionType = names[function.__name__]
        return mutated.__code__

    def killed_by(self) -> str | None:
        """What notices the mutant; None if nothing does."""
        if self.test is not None:
            with self.alive():
                return None if passes([self.test]) else self.test
        hint = recorded().get(self.name, 0)
        found = self.killing_seed([hint, *(seed for seed in range(SEEDS) if seed != hint)])
        return None if found is None else f"seed {found[0]}, chains {self.chains}: {found[1]}"

    def killing_seed(self, seeds: Iterable[int] = range(SEEDS)) -> tuple[int, str] | None:
        """The first of these seeds whose run shows an anomaly, and the anomaly."""
        with self.alive():
            for seed in seeds:
                anomalies = simulate(self._settings(seed)).anomalies
                if anomalies:
                    return seed, anomalies[0]
        return None

    def _settings(self, seed: int) -> Settings:
        settings = settings_of(seed, self.chains)
        return settings if self.mishaps is None else replace(settings, mishaps=self.mishaps, rate=0.1)


def passes(tests: Iterable[str]) -> bool:
    """A pytest inside of pytest: it sees the same functions, so the mutated ones."""
    told = io.StringIO()
    options = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "-o", "filterwarnings="]
    with pytest.MonkeyPatch.context() as environment, redirect_stdout(told), redirect_stderr(told):
        environment.delenv("PYTEST_ADDOPTS", raising=False)  # which is for the run outside: folders that it leaves out
        code = pytest.main([*options, *(str(_ROOT / test) for test in tests)])
    assert code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), told.getvalue()
    return code is pytest.ExitCode.OK


def _plain(function: Any) -> FunctionType:
    found = function.fget if isinstance(function, property) else function
    assert isinstance(found, FunctionType)
    return found
