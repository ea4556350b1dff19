"""Changes of a bucket whose sync failed: they are visible, and a loss of power takes them back.

The model is that of a folder (:mod:`txnstore.storage.local`): a write changes a name, then syncs the folder of the
name. If the sync fails, all processes see the change, but it lasts only from the next successful sync of that folder
on, of any process. Reads and lists sync nothing. A loss of power ends all processes, and each name has the object
again that it had when its folder was synced last.
"""

from __future__ import annotations

from typing import NamedTuple

#: The bytes of an object and when it was written; None: there is no object.
Content = tuple[bytes, int] | None


class Change(NamedTuple):
    """A name that differs from what is on the disk.

    Attributes:
        before: What the name had when its folder was synced last.
        at: When it was first changed since then.
        is_entry: Whether the change created an entry of the chain.
    """

    before: Content
    at: int
    is_entry: bool


class Unsynced:
    """The changes of a bucket that were not synced."""

    def __init__(self) -> None:
        self._changes: dict[str, Change] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._changes

    def add(self, key: str, before: Content, at: int, *, is_entry: bool = False) -> None:
        """The name has changed, and its folder was not synced."""
        self._changes.setdefault(key, Change(before, at, is_entry))

    def sync(self, key: str) -> None:
        """The folder of the name was synced: all changes in it last."""
        if self._changes:
            folder = _folder(key)
            self._changes = {name: change for name, change in self._changes.items() if _folder(name) != folder}

    def take(self) -> dict[str, Change]:
        """The changes that a loss of power takes back now."""
        changes, self._changes = self._changes, {}
        return changes


def _folder(key: str) -> str:
    return key.rpartition("/")[0]
