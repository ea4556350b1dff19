"""The objects of a store as they will be after repairs, so that a plan can be tried before it is carried out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from txnstore.errors import ObjectNotFoundError, StorageRefusedError
from txnstore.storage.base import ForwardingStore, ObjectInfo, ObjectStore


class PlannedObjects(ForwardingStore):
    """Reads of a store after writes that were not made yet. Writes are refused.

    Args:
        writes: What will be written, each a key with its bytes; None: the object will be deleted. Later ones win.
    """

    def __init__(self, inner: ObjectStore, writes: Iterable[tuple[str, bytes | None]]) -> None:
        super().__init__(inner)
        self._writes: Mapping[str, bytes | None] = dict(writes)

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """The bytes of an object, or of a range of it."""
        if key not in self._writes:
            return self.inner.get(key, start, end)
        return self._planned_write(key)[start:end]

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        """The objects whose keys start with a prefix, in the order of their keys."""
        # So many more that enough are left without those that will be deleted or are written again.
        enough = None if limit is None else limit + len(self._writes)
        items = {
            info.key: info for info in self.inner.list(prefix, start_after, enough) if info.key not in self._writes
        }
        written_keys = {key for key, data in self._writes.items() if data is not None}
        items |= {key: self.stat(key) for key in written_keys if key.startswith(prefix) and key > start_after}
        return [items[key] for key in sorted(items)][:limit]

    def stat(self, key: str) -> ObjectInfo:
        """The size and the modification time of an object."""
        if key not in self._writes:
            return self.inner.stat(key)
        return ObjectInfo(key, len(self._planned_write(key)), self.now_ms())

    def put(self, key: str, data: bytes) -> None:
        """Refused."""
        raise self._refuse_write(key)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Refused."""
        raise self._refuse_write(key)

    def delete(self, keys: Sequence[str]) -> None:
        """Refused."""
        raise self._refuse_write(", ".join(keys))

    def close(self) -> None:
        """The objects of the store belong to the caller."""

    def _planned_write(self, key: str) -> bytes:
        data = self._writes[key]
        if data is None:
            raise ObjectNotFoundError(f"{key} will be deleted")
        return data

    def _refuse_write(self, key: str) -> StorageRefusedError:
        """Refuse a write: the objects only show what a plan would make."""
        return StorageRefusedError(f"{key} is not written: the repairs of {self.url} are only tried")
