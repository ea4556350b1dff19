"""Finds what is left of other stores below the same root: of those that were deleted, and created again as this one."""

from __future__ import annotations

from txnstore.chain.keys import CHAINS, HINTS, Keys, store_of
from txnstore.storage.base import ObjectInfo, ObjectStore

#: The number of objects per list; one list covers most stores.
_PAGE = 1_000
#: Greater than all names below a folder.
_AFTER = "~"


def foreign_objects(objects: ObjectStore, keys: Keys) -> list[ObjectInfo]:
    """The entries and checkpoints of other stores; the chains of this one are passed over.

    Two lists, unless there is much of other stores.
    """
    found: list[ObjectInfo] = []
    after = ""
    while True:
        page = objects.list(CHAINS, after, _PAGE)
        found += [item for item in page if store_of(item.key) not in (None, keys.store_id)]
        if len(page) < _PAGE:
            return found
        after = page[-1].key
        for passed in (keys.chains, HINTS):
            after = f"{passed}{_AFTER}" if after.startswith(passed) else after


def foreign_chains(objects: ObjectStore, keys: Keys) -> tuple[str, ...]:
    """The prefixes of the chains of other stores."""
    found = {store_of(item.key) for item in foreign_objects(objects, keys)}
    return tuple(sorted(Keys(store_id).chains for store_id in found if store_id is not None))
