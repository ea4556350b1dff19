"""The absolute locations that metadata of tables has, since engines know nothing of the root of a store."""

from __future__ import annotations

import re
from dataclasses import dataclass

from txnstore.errors import CorruptionError, InvalidConfigError
from txnstore.storage.base import ObjectStore

#: What every engine takes literally in a path: no engine agrees with all others on what is encoded, and how.
_SAFE = re.compile(r"[A-Za-z0-9._~/:=+,@-]*")


@dataclass(frozen=True, slots=True)
class Location:
    """The root of a store as engines name it: ``file:///path`` or ``s3://bucket/prefix``."""

    root: str

    def of(self, key: str) -> str:
        """The location of an object."""
        return f"{self.root}/{key}"

    def key(self, path: str) -> str:
        """The key of an object by its location.

        Raises:
            CorruptionError: It is not below the root: the tables were published when the store was at another place.
        """
        key = path.removeprefix(f"{self.root}/")
        if key == path:
            msg = f"{path} is not below {self.root}: the tables were published when the store was at another place"
            raise CorruptionError(msg)
        return key


def location_of(objects: ObjectStore) -> Location:
    """The location of a store.

    Raises:
        InvalidConfigError: Engines cannot read there.
    """
    url = objects.url.rstrip("/")
    if url.startswith("memory:"):
        msg = f"the store at {url} cannot have tables: other processes cannot read what is in the memory of this one"
        raise InvalidConfigError(msg)
    if not _SAFE.fullmatch(url):
        msg = (
            f"the store at {url} cannot have tables: engines read its path in different ways, since it has other "
            "characters than letters, digits and . _ ~ / : = + , @ -"
        )
        raise InvalidConfigError(msg)
    return Location(url)
