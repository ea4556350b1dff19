"""A mutant: one injected fault in the protocol, made by replacing a part of the source of a function."""

from __future__ import annotations
import __future__

import builtins
import dis
import inspect
import io
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from tests.harness.simulation import Mishap, Settings, settings_of, simulate
from tests.harness.simulation.settings import GATEWAYS, LOSERS, PUBLISHERS, SESSIONS, of_gateways
from txnstore.chain.context import CHECKPOINT_EVERY

#: The maximum number of seeds to try; the first few kill nearly all mutants.
SEEDS = 100

#: The seeds that killed mutants in the last run of ``python -m tests.mutants``; each is tried first.
RECORDED = Path(__file__).with_name("seeds.json")

_ROOT = Path(__file__).resolve().parent.parent
_LOCAL = re.compile(r"\$([A-Za-z_]\w*)")


def recorded() -> dict[str, int]:
    """The recorded seeds by name of the mutant, for those that seed 0 does not kill. They only save time."""
    seeds: dict[str, int] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return seeds


@dataclass(frozen=True)
class Mutant:
    """A fault in one function, and what must detect it.

    Attributes:
        name: Describes the fault.
        function: The function to change; a property stands for its getter.
        old: The part of its source to replace, which must occur once. ``$name`` stands for a local variable, whatever
            its name is: a mutant is of what the code does, and outlives a renaming.
        new: The replacement, with the same variables.
        chains: The number of chains of the simulation that must kill the mutant.
        mishaps: The mishaps of that simulation; None for all. A subset detects rare faults earlier.
        test: The test that must kill the mutant instead of the simulation, relative to ``tests``.
        settings: Further settings of that simulation.
        gateways: Whether it is that of the world of gateways, which has all of its mishaps.
    """

    name: str
    function: Any
    old: str
    new: str
    chains: int = 1
    mishaps: tuple[Mishap, ...] | None = None
    test: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    gateways: bool = False

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Replace the code of the function inside the block, for all modules that import it."""
        function = _plain(self.function)
        before = function.__code__
        function.__code__ = self._code(function)
        try:
            yield
        finally:
            function.__code__ = before

    def _code(self, function: FunctionType) -> Any:
        source = textwrap.dedent(inspect.getsource(function))
        places = list(_pattern(self.old).finditer(source))
        assert len(places) == 1, f"{self.name}: {self.old!r} occurs {len(places)} times in\n{source}"
        replacement = _LOCAL.sub(lambda local: places[0][local[1]], self.new)
        # The code is inserted into the function that is already decorated.
        source = source[: places[0].start()] + replacement + source[places[0].end() :]
        source = source[source.index("async def " if inspect.iscoroutinefunction(function) else "def ") :]
        names: dict[str, Any] = {}
        flags = __future__.annotations.compiler_flag
        exec(compile(source, function.__code__.co_filename, "exec", flags), function.__globals__, names)  # noqa: S102
        mutated: FunctionType = names[function.__name__]
        unknown = {name for name in _globals_of(mutated.__code__) if name not in function.__globals__}
        assert unknown <= vars(builtins).keys(), f"{self.name}: the names {sorted(unknown)} do not exist"
        return mutated.__code__

    def killed_by(self) -> str | None:
        """The test or seed that detects the mutant; None if none does."""
        if self.test is not None:
            with self.alive():
                return None if passes([self.test]) else self.test
        hint = recorded().get(self.name, 0)
        killer = self.killing_seed([hint, *(seed for seed in range(SEEDS) if seed != hint)])
        return None if killer is None else f"seed {killer[0]}, chains {self.chains}: {killer[1]}"

    def killing_seed(self, seeds: Iterable[int] = range(SEEDS)) -> tuple[int, str] | None:
        """The first of the seeds whose run has an anomaly, and the anomaly."""
        with self.alive():
            for seed in seeds:
                anomalies = simulate(self._settings(seed)).anomalies
                if anomalies:
                    return seed, anomalies[0]
        return None

    def _settings(self, seed: int) -> Settings:
        if self.gateways:
            settings = replace(of_gateways(seed, self.chains), operations=12, checkpoint_every=CHECKPOINT_EVERY)
            return replace(settings, **self.settings)
        settings = replace(settings_of(seed, self.chains), parts=False, lease_ms=0)  # Parquet takes more time.
        later = (*GATEWAYS, *LOSERS, *SESSIONS, *PUBLISHERS)
        actors = tuple(actor for actor in settings.actors if actor not in later)
        settings = replace(settings, actors=actors, syncs=0.0, losses=0, old_hints=0.0, elsewhere=0.0, closes=0.0)
        if self.mishaps is not None:
            settings = replace(settings, mishaps=self.mishaps, rate=0.1)
        return replace(settings, **self.settings)


def _pattern(quote: str) -> re.Pattern[str]:
    """Matches what is quoted, with any name for each ``$name``, the same one wherever it occurs."""
    names: set[str] = set()
    parts = []
    for place, part in enumerate(_LOCAL.split(quote)):
        if place % 2 == 0:
            parts.append(re.escape(part))
        elif part in names:
            parts.append(f"(?P={part})")
        else:
            names.add(part)
            parts.append(rf"(?<![\w.])(?P<{part}>[A-Za-z_]\w*)\b")
    return re.compile("".join(parts))


def passes(tests: Iterable[str]) -> bool:
    """Whether the tests pass in a nested pytest run, which uses the mutated functions of this process."""
    # Without these, a short run spends half of its time on tracebacks and on the garbage collections of the plugins.
    unused = [f"-pno:{name}" for name in ("unraisableexception", "threadexception")]
    code, output = _nested(["-x", "--tb=no", "-o", "filterwarnings=", *unused], tests)
    assert code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), output
    return code is pytest.ExitCode.OK


def collected(files: Iterable[str]) -> set[str]:
    """The tests in these files, as mutants name them."""

    class Collected:
        def __init__(self) -> None:
            self.names: set[str] = set()

        def pytest_collection_finish(self, session: pytest.Session) -> None:
            self.names |= {item.nodeid.removeprefix("tests/") for item in session.items}

    plugin = Collected()
    code, output = _nested(["--collect-only"], files, plugin)
    assert code is pytest.ExitCode.OK, output
    return plugin.names


def _nested(options: Iterable[str], names: Iterable[str], *plugins: object) -> tuple[int, str]:
    """The exit code of a nested pytest run over these tests or files, and its output."""
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as environment, redirect_stdout(output), redirect_stderr(output):
        environment.delenv("PYTEST_ADDOPTS", raising=False)  # its options are for the outer run
        paths = [str(_ROOT / name) for name in names]
        code = pytest.main(["-q", "--no-header", "-pno:cacheprovider", *options, *paths], [*plugins])
    return code, output.getvalue()


def _globals_of(code: CodeType) -> Iterator[str]:
    """The global names that a function uses, those in the functions inside of it included."""
    yield from (str(step.argval) for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals_of(inner)


def _plain(function: Any) -> FunctionType:
    target = function.fget if isinstance(function, property) else function
    assert isinstance(target, FunctionType)
    return target
