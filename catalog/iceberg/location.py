"""Absolute locations in metadata of tables, since engines do not know the root of a store."""

from __future__ import annotations

import re
from dataclasses import dataclass

from txnstore.errors import CorruptionError, InvalidConfigError
from txnstore.storage.base import ObjectStore

#: Paths that every engine takes literally: engines encode other characters in different ways.
_SAFE_PATH = re.compile(r"[A-Za-z0-9._~/:=+,@-]*")


@dataclass(frozen=True, slots=True)
class Location:
    """The root of a store as engines name it: ``file:///path`` or ``s3://bucket/prefix``."""

    root: str

    def of(self, key: str) -> str:
        """The location of an object."""
        return f"{self.root}/{key}"

    def key(self, path: str) -> str:
        """The key of the object at a location.

        Raises:
            CorruptionError: The location is not below the root: the store has been moved since the publication.
        """
        key = path.removeprefix(f"{self.root}/")
        if key == path:
            msg = f"{path} is not below {self.root}: the tables were published when the store was at another place"
            raise CorruptionError(msg)
        return key


def location_of(objects: ObjectStore) -> Location:
    """The location of a store.

    Raises:
        InvalidConfigError: Engines cannot read the store.
    """
    url = objects.url.rstrip("/")
    if url.startswith("memory:"):
        msg = f"the store at {url} cannot have tables: other processes cannot read what is in the memory of this one"
        raise InvalidConfigError(msg)
    if not _SAFE_PATH.fullmatch(url):
        msg = (
            f"the store at {url} cannot have tables: engines read its path in different ways, since it has other "
            "characters than letters, digits and . _ ~ / : = + , @ -"
        )
        raise InvalidConfigError(msg)
    return Location(url)
