"""The principal of commands: that of the process, or the one for whom the process works now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TypeVar

T = TypeVar("T")

#: The principal for whom the current thread or task works; None: the one of the process.
_PRINCIPAL: ContextVar[str | None] = ContextVar("principal", default=None)


@contextmanager
def asking(principal: str | None) -> Iterator[None]:
    """Run the block on behalf of a principal; None: that of the process.

    Applies to the current thread, and to the work on other chains that a command leads to.
    """
    token = _PRINCIPAL.set(principal)
    try:
        yield
    finally:
        _PRINCIPAL.reset(token)


def asking_principal(default: str) -> str:
    """Return the current principal; ``default``: that of the process."""
    return _PRINCIPAL.get() or default


def with_principal(work: Callable[[], T]) -> Callable[[], T]:
    """Bind work that runs in another thread to the current principal."""
    return work if _PRINCIPAL.get() is None else partial(copy_context().run, work)
