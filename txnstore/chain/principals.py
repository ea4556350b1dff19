"""Who asks for commands: the principal of the process, or the one for whom it works now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TypeVar

T = TypeVar("T")

#: The principal for whom the current thread or task works; None: the one of the process.
_ASKING: ContextVar[str | None] = ContextVar("principal", default=None)


@contextmanager
def asking(principal: str | None) -> Iterator[None]:
    """In the block, commands are asked for by this principal; None: by the one of the process.

    It holds for the current thread, and for the work on other chains that a command leads to.
    """
    token = _ASKING.set(principal)
    try:
        yield
    finally:
        _ASKING.reset(token)


def asking_principal(default: str) -> str:
    """Who asks now; ``default``: the principal of the process."""
    return _ASKING.get() or default


def with_principal(work: Callable[[], T]) -> Callable[[], T]:
    """The work, to be run in another thread, for the principal who asks now."""
    return work if _ASKING.get() is None else partial(copy_context().run, work)
