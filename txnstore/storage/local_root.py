"""Notices that the root of a local store was deleted, or deleted and created again, while it is in use."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from txnstore.errors import StorageRefusedError

#: Opens a folder only to identify it, without the permission to list it, where the system can do that.
_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC


class RootFolder:
    """The folder ``path`` as it was at the first check that found it.

    It is kept open, so that its inode number, which identifies it, is not given to another folder. A pickled copy has
    not seen the folder yet.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._path = Path(path)
        self._descriptor: int | None = None
        self._close: Callable[[], object] | None = None

    def check(self) -> None:
        """Check that the folder is still the same; the first check that finds it remembers it.

        Raises:
            StorageRefusedError: It was deleted, or deleted and created again.
        """
        known = self._descriptor
        try:
            if known is None:
                self._remember(os.open(self.path, _FLAGS))
                return
            if os.path.samestat(os.fstat(known), self._path.stat()) or self._descriptor != known:
                return  # In the second case another thread has closed the store, and the number may be another file's.
            what = "deleted and created again"
        except FileNotFoundError:
            if known is None:
                return
            what = "deleted"
        except OSError:
            return  # The request itself reports it.
        msg = f"The folder {self.path} was {what} while it was in use. Close the store and open it again."
        raise StorageRefusedError(msg)

    def forget(self) -> None:
        """Let the next check remember the folder anew."""
        self._descriptor, close = None, self._close
        if close is not None:
            close()

    def _remember(self, descriptor: int) -> None:
        self._close = finalizer = weakref.finalize(self, os.close, descriptor)
        # Not before the last use: producers end their transactions, and consumers leave, when the interpreter exits.
        finalizer.atexit = False
        self._descriptor = descriptor

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        RootFolder.__init__(self, state["path"])
