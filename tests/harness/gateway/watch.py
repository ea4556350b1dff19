"""Names the call that a client is in, so that one that hangs can be found, ended and reported."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

_WIDTH = 80


class Watch:
    """Writes the name of each call to a file before it begins: the file's time says since when nothing has happened."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY)
        self._thread = threading.get_ident()

    def note(self, call: str) -> None:
        """The client begins this call. Calls of other threads, such as callbacks, do not count."""
        if threading.get_ident() == self._thread:
            os.pwrite(self._file, call[:_WIDTH].ljust(_WIDTH).encode(), 0)


class Watched:
    """Stands for a client, or a library of clients, and names each of its calls."""

    def __init__(self, client: Any, watch: Watch, name: str) -> None:
        self._client, self._watch, self._name = client, watch, name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(self._client, attribute)
        return self._named(value, f"{self._name}.{attribute}") if callable(value) else value

    def _named(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self._watch.note(name)
            try:
                return function(*arguments)
            finally:
                self._watch.note(f"after {name}")

        return call


def last_call(path: Path) -> str:
    """What a client's file says; empty if it has not begun."""
    return path.read_text(errors="replace").strip() if path.exists() else ""
