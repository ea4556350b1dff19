"""Finds the remains of other stores below the same root: of those that were deleted, and created again as this one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from txnstore.chain.keys import CHAINS, HINTS, STORE, Keys, store_of
from txnstore.storage.base import ObjectInfo, ObjectStore

#: The number of objects per list; one list covers most stores.
_PAGE = 1_000
#: Greater than all names below a folder.
_AFTER = "~"


@dataclass(frozen=True, slots=True)
class ForeignStore:
    """The remaining entries and checkpoints of another store.

    Attributes:
        objects: Their number.
        youngest_ms: When the newest of them was written, by the storage's clock.
    """

    objects: int = 0
    youngest_ms: int = 0


def foreign_pages(
    objects: ObjectStore, keys: Keys, stores: Collection[str] | None = None
) -> Iterator[list[ObjectInfo]]:
    """The entries and checkpoints of other stores, a page at a time; the chains of this one are passed over.

    Two lists, unless there is much of other stores.

    Args:
        stores: Only the stores of these ids; None: all.
    """
    last_key = ""
    while True:
        page = objects.list(CHAINS, last_key, _PAGE)
        others = [info for info in page if store_of(info.key) not in (None, keys.store_id)]
        yield others if stores is None else [info for info in others if store_of(info.key) in stores]
        if len(page) < _PAGE:
            return
        last_key = page[-1].key
        for passed in (keys.chains, HINTS):
            last_key = f"{passed}{_AFTER}" if last_key.startswith(passed) else last_key


def foreign_stores(objects: ObjectStore, keys: Keys) -> dict[str, ForeignStore]:
    """The remains of other stores, by their ids."""
    stores: dict[str, ForeignStore] = {}
    for page in foreign_pages(objects, keys):
        for info in page:
            store_id = store_of(info.key) or ""
            store = stores.get(store_id, ForeignStore())
            youngest = max(store.youngest_ms, info.modified_ms)
            stores[store_id] = replace(store, objects=store.objects + 1, youngest_ms=youngest)
    return stores


def choice_advice(store_id: str) -> str:
    """What can be done about the chains of another store."""
    return (
        f"If {STORE} should name that store: `txnstore recover --identity {store_id}`; if it is of no use any more: "
        f"`txnstore vacuum --foreign {store_id}` deletes its chains. Until then no vacuum deletes anything"
    )


def foreign_chains(objects: ObjectStore, keys: Keys) -> tuple[str, ...]:
    """The prefixes of the chains of other stores."""
    return tuple(sorted(Keys(store_id).chains for store_id in foreign_stores(objects, keys)))
