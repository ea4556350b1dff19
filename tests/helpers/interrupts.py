"""Interrupts (Ctrl-C) at exact places: a KeyboardInterrupt instead of the n-th line of chosen functions."""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, ModuleType
from typing import Any


def places(*functions: object) -> frozenset[CodeType]:
    """The code of functions, methods and properties. A name that does not exist is an error where it is written.

    Raises:
        TypeError: One of them is not written in Python, so no line of it can be interrupted.
    """
    codes = set()
    for function in functions:
        plain = function.fget if isinstance(function, property) else inspect.unwrap(function)  # type: ignore[arg-type]
        code = getattr(plain, "__code__", None)
        if not isinstance(code, CodeType):
            msg = f"{function!r} is no function of Python"
            raise TypeError(msg)
        codes.add(code)
    return frozenset(codes)


class Interrupter:
    """Interrupts the calling thread before the ``n``-th line that it runs in ``functions`` (see :func:`places`).

    Or in any function of ``modules``.

    Lines with ``with`` are no places: they are seen once more when the block has ended, where no signal can come. Nor
    are those with ``try``, and those with ``except`` with the first line after them: Python looks for signals after
    calls and jumps, and there is none before such a line.
    """

    def __init__(
        self,
        functions: Iterable[CodeType],
        n: int,
        error: BaseException | None = None,
        modules: Iterable[ModuleType] = (),
    ) -> None:
        self._functions = frozenset(functions)
        self._files = {module.__file__ for module in modules}
        self._left, self._error = n, error or KeyboardInterrupt()
        self._handles: FrameType | None = None  # The frame that has just entered a handler.
        self.entered: set[CodeType] = set()

    @property
    def struck(self) -> bool:
        """Whether it has interrupted a call."""
        return self._left == 0

    def run(self, call: Callable[[], object]) -> bool:
        """Call; True if it was interrupted, False if it ended before the n-th line."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            call()
        except type(self._error):
            return True
        finally:
            sys.settrace(before)
        return False

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code not in self._functions and frame.f_code.co_filename not in self._files:
            return None if event == "call" else self._trace
        self.entered.add(frame.f_code)
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event != "line":
            return self._trace
        first_of_handler, self._handles = self._handles is frame, frame if line.startswith("except ") else None
        if not first_of_handler and not line.startswith(("with ", "try:", "except ")):
            self._left -= 1
            if self._left == 0:
                sys.settrace(None)
                raise self._error
        return self._trace


def everywhere(
    functions: Iterable[CodeType],
    attempt: Callable[[Interrupter], bool],
    error: BaseException | None = None,
    modules: Iterable[ModuleType] = (),
) -> Iterator[int]:
    """Run ``attempt`` with an interrupt at the first line, the second, … until it is not interrupted any more.

    The lines are those of ``functions``, and of all functions of ``modules``. ``error`` is raised instead of a
    ``KeyboardInterrupt``.

    Raises:
        AssertionError: The last attempt, which was not interrupted, did not run one of the functions: what the test
            means to interrupt is elsewhere by now.
    """
    n, functions, modules = 1, frozenset(functions), tuple(modules)
    while True:
        interrupter = Interrupter(functions, n, error, modules)
        if not attempt(interrupter):
            break
        yield n
        n += 1
    missed = sorted(code.co_qualname for code in functions - interrupter.entered)
    assert not missed, f"these functions were not run: {', '.join(missed)}"
