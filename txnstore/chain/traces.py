"""Find the objects below the root of a store besides ``store.json``: chains of any id, and segments.

``store.json`` alone names the store, so a root without it, or with that of another store, looks like one without a
store. No object shows which of two ids is the right one; but a second id can be seen, and then nothing is created,
opened as empty, or deleted. See docs/internals/design/identity.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from txnstore.chain import keys
from txnstore.chain.backups import backup_here
from txnstore.chain.codec import LatestDocument, decode
from txnstore.chain.keys import CHAINS, HINTS, STORE, TOPICS, Keys
from txnstore.errors import (
    CorruptionError,
    LostIdentityError,
    ObjectNotFoundError,
    StoreNotFoundError,
    TxnStoreError,
    UnsupportedFormatError,
)
from txnstore.storage.base import ObjectInfo, ObjectStore
from txnstore.storage.redact import redact

#: Greater than all names below a folder.
FOLDER_END = "~"
#: The number of objects in a list of segments; one list covers most roots.
_PAGE = 1_000


def stores(objects: ObjectStore, skipped: str = "") -> list[str]:
    """Return the ids of the stores that have chains here, ascending; one list for each.

    Objects of others below the prefix cost a list for 1,000 of them, and those in one folder about two.

    Args:
        skipped: The id of a store that is passed over.
    """
    ids: list[str] = []
    after, limit = "", 1
    while page := objects.list(CHAINS, after, limit):
        if page[0].key >= HINTS:
            break  # An id is hexadecimal, so none is after them.
        store_id = _first_store_id(page)
        if store_id is None:
            # Objects of others: there may be many, so the next list is a long one.
            after, limit = _end_of_folder(page[-1].key), _PAGE
            continue
        if store_id != skipped:
            ids.append(store_id)
        # One key behind all chains of this store is enough to see the id of the next one.
        after, limit = f"{Keys(store_id).chains}{FOLDER_END}", 1
    return ids


def _first_store_id(page: Sequence[ObjectInfo]) -> str | None:
    """Return the id of the store of the first object of a chain in the page; None without such an object."""
    for info in page:
        store_id = keys.store_of(info.key)
        if store_id is not None:
            return store_id
    return None


def _end_of_folder(key: str) -> str:
    """Return a key after all objects of the folder below ``chains/`` that has ``key``; ``key`` itself without one."""
    folder, name = key.removeprefix(CHAINS).partition("/")[::2]
    return max(key, f"{CHAINS}{folder}/{FOLDER_END}") if name else key


def hints_of_others(objects: ObjectStore, store_id: str) -> dict[str, str]:
    """Return the keys of hints that name another store, with its id. A list, and a GET for each hint."""
    hints: dict[str, str] = {}
    for info in objects.list(HINTS):
        try:
            document = decode(LatestDocument, info.key, objects.get(info.key))
        except (CorruptionError, UnsupportedFormatError, ObjectNotFoundError):
            continue  # Nothing is known of it.
        if document.store_id != store_id:
            hints[info.key] = document.store_id
    return hints


def first_segment(objects: ObjectStore) -> str | None:
    """Return the key of an object that has the form of a segment's; None if there is none.

    Files of others, such as ``topics/t/partition=0/…`` of Kafka Connect, do not count. Their folders are passed over.
    """
    after = ""
    while page := objects.list(TOPICS, after, _PAGE):
        for info in page:
            if keys.has_segments(info.key):
                return info.key
        after = _end_of_foreign_folder(page[-1].key)
    return None


def _end_of_foreign_folder(key: str) -> str:
    """Return a key after all objects of the folder ``topics/<topic>/<name>/`` that has ``key``.

    ``key`` itself if it is in no such folder, or the name is a partition number: only these folders have segments.
    """
    parts = key.split("/")
    if len(parts) < 4 or parts[2].isdigit():
        return key
    return max(key, f"{'/'.join(parts[:3])}/{FOLDER_END}")  # A name of others may be greater than FOLDER_END.


def describe_traces(objects: ObjectStore) -> str:
    """Describe the objects of a store that exist here; empty without any. ``store.json`` does not count."""
    ids = stores(objects)
    if ids:
        several = "s" if len(ids) > 1 else ""
        return f"{CHAINS} has chains of the store{several} {', '.join(ids)}"
    if page := objects.list(CHAINS, limit=1):
        return f"{page[0].key} exists"
    segment = first_segment(objects)
    return f"{segment} has the form of a segment" if segment is not None else ""


def no_document(objects: ObjectStore) -> TxnStoreError:
    """Return the error for a root without ``store.json``: there is no store, a backup, or one that has lost it."""
    backup = backup_here(objects)
    if backup is not None:
        return backup
    url, traces = redact(objects.url), describe_traces(objects)
    if not traces:
        return StoreNotFoundError(f"there is no txnstore at {url}: it has no {STORE}")
    msg = (
        f"the store at {url} has lost its {STORE}: {traces}. `txnstore recover` shows what that is, and writes {STORE} "
        f"again. Only if nothing of it is needed: delete {CHAINS} and {TOPICS}, then run `txnstore init`"
    )
    return LostIdentityError(msg)


def check_new(objects: ObjectStore) -> None:
    """Refuse to create a store over the objects of another one.

    Raises:
        LostIdentityError: Something of a store is here.
        BackupError: That is a backup.
    """
    traces = describe_traces(objects)
    if traces:
        backup = backup_here(objects)
        if backup is not None:
            raise backup
        msg = (
            f"nothing was created at {redact(objects.url)}: it has no {STORE}, but {traces}. `txnstore recover` shows "
            f"what that is, and writes {STORE} again. Only if nothing of it is needed: delete {CHAINS} and {TOPICS}, "
            "then create the store"
        )
        raise LostIdentityError(msg)


def other_store(objects: ObjectStore, names: Keys) -> str:
    """Describe why the objects here are of another store than the one with an empty catalog; empty if nothing shows it.

    There are chains or hints of another store, or segments, which a store without topics cannot have.
    """
    others = stores(objects, skipped=names.store_id)
    if others:
        several = "s" if len(others) > 1 else ""
        return (
            f"{STORE} names the store {names.store_id}, which is empty, but there are chains of the store{several} "
            f"{', '.join(others)}: {STORE} may be that of another store. `txnstore recover --identity {others[0]}` "
            f"shows what that store holds, whether --chains must be given, too, and writes its {STORE}; if "
            f"{names.store_id} is right, `txnstore vacuum --foreign {others[0]}` deletes what is left of the other one"
        )
    for key, store_id in sorted(hints_of_others(objects, names.store_id).items()):
        return (
            f"{STORE} names the store {names.store_id}, which is empty, but {key} is a hint of the store {store_id}: "
            f"its chains are lost, or {STORE} is that of another store. Put back what is lost from a backup; if "
            f"{names.store_id} is right, `txnstore vacuum --foreign {store_id}` deletes the hint"
        )
    segment = first_segment(objects)
    if segment is None:
        return ""
    return (
        f"{STORE} names the store {names.store_id}, which has no topics, but {segment} has the form of a segment: "
        f"{names.entry(0, 1)} and all after it are lost, or {STORE} is that of another store. Put back what is lost "
        f"from a backup; `txnstore recover` shows what is here. Only if nothing of it is needed: delete {TOPICS}"
    )
