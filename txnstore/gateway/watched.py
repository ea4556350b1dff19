"""Files that a gateway reads again when they change: users, certificates, the keys of tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


class Watched(Generic[T]):
    """What files contain. A change that cannot be read leaves what was read before.

    Args:
        what: What it is, for the log.
        paths: The files.
        read: Reads them; it raises :class:`~txnstore.errors.InvalidConfigError` if they are damaged.

    Raises:
        InvalidConfigError: They cannot be read.
    """

    def __init__(self, what: str, paths: Sequence[Path], read: Callable[[], T]) -> None:
        self._what, self._paths, self._read = what, tuple(paths), read
        self._seen = self._look()  # First: a change while they are read is noticed by the next look.
        #: What was read last. Replaced in one step by the thread that looks.
        self.value = read()

    def _look(self) -> list[tuple[int, ...] | None]:
        """What changes with a file; also where its name is a link to a new one, as Kubernetes mounts secrets."""
        seen: list[tuple[int, ...] | None] = []
        for path in self._paths:
            try:
                status = path.stat()
            except OSError:
                seen.append(None)
            else:
                seen.append((status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
        return seen

    def reload(self, *, force: bool = False) -> None:
        """Read the files again if they have changed, or by ``force``; an error is logged once for each change."""
        seen = self._look()
        if seen == self._seen and not force:
            return
        self._seen = seen
        extra = {"what": self._what, "files": [str(path) for path in self._paths]}
        try:
            self.value = self._read()
        except Exception as error:  # noqa: BLE001 - Whatever is in them: later changes must be read.
            _LOG.error(
                "changed files are damaged, what was read before holds: %s", error, extra={**extra, "error": str(error)}
            )
        else:
            _LOG.info("changed files were read", extra=extra)
