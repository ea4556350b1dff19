"""Copies objects from one storage to another, many at a time, in bounded memory."""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import Executor, Future

from txnstore.compactor.backup.cut import Part, VanishedError
from txnstore.errors import CorruptionError, ObjectNotFoundError
from txnstore.segment.sink import SegmentSink
from txnstore.storage.base import ObjectStore

_LOG = logging.getLogger(__name__)

#: A larger object is read in pieces of this size into a temporary file, from which it is written.
_PIECE_BYTES = 8 << 20
#: Copies under way at the same time are at most so many, and hold about so many bytes.
_MAX_COPIES, _MAX_BYTES = 32, 32 << 20


class Copier:
    """Copies parts of a cut. Of one thread.

    Args:
        pool: Runs the copies.

    Attributes:
        objects: The number of objects that were copied.
        bytes: Their size.
    """

    def __init__(self, source: ObjectStore, target: ObjectStore, pool: Executor) -> None:
        self._source, self._target, self._pool = source, target, pool
        self.objects = self.bytes = 0
        #: The copies under way, in their order, with the memory that they take.
        self._running: deque[tuple[Future[int | None], int]] = deque()
        self._held = 0

    def copy(self, part: Part) -> None:
        """Begin to copy an object; waits for earlier copies if there are many.

        Raises:
            VanishedError: An object, this one or an earlier one, does not exist any more.
            CorruptionError: One is damaged in the source.
            StorageError: One could not be read or written.
        """
        held = min(part.size, _PIECE_BYTES)
        while self._running and (len(self._running) >= _MAX_COPIES or self._held + held > _MAX_BYTES):
            self._wait_for_first()
        self._running.append((self._pool.submit(self._copy, part), held))
        self._held += held

    def finish(self) -> None:
        """Wait for all copies; raises as :meth:`copy`."""
        while self._running:
            self._wait_for_first()

    def count(self, size: int) -> None:
        """Count a copied object."""
        self.objects += 1
        self.bytes += size

    def abandon(self) -> None:
        """Wait for the copies under way, whatever becomes of them, so that none writes later."""
        for future, _ in self._running:
            future.exception()
        self._running.clear()
        self._held = 0

    def _wait_for_first(self) -> None:
        future, held = self._running.popleft()
        self._held -= held
        size = future.result()
        if size is not None:
            self.count(size)

    def _copy(self, part: Part) -> int | None:
        """Copy an object, and return its size; None if it is damaged and not needed."""
        try:
            data = self._read(part)
            part.check(data)
        except ObjectNotFoundError as error:
            raise VanishedError([part.key]) from error
        except CorruptionError as error:
            if not part.is_optional:
                raise
            _LOG.warning("checkpoint not copied: %s", error, extra={"key": part.key, "error": str(error)})
            return None
        self._target.put(part.key, data)
        return len(data)

    def _read(self, part: Part) -> bytes:
        if part.size <= _PIECE_BYTES:
            return self._source.get(part.key)
        with SegmentSink(_PIECE_BYTES) as sink:
            for start in range(0, part.size, _PIECE_BYTES):
                sink.write(self._source.get(part.key, start, start + _PIECE_BYTES))
            return sink.content()  # type: ignore[return-value]  # A mapped file, which `put` takes for bytes.
