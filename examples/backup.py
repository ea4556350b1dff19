"""Copies a store to an empty folder or prefix while it is used: ``python examples/backup.py SOURCE TARGET``.

The copy is the store as it was at one snapshot. A second run into the same target copies only what is new: objects
never change, but for the records that a vacuum deletes from entries. Both places are URLs of fsspec; a restore is the
same command in the other direction. Storage options, such as the endpoint of a server, are JSON:
``--source-options '{"endpoint_url": "http://…"}'``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

import txnstore


def backup(
    source: str,
    target: str,
    source_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
) -> int:
    """Copy the newest snapshot of the store; the number of objects that were copied."""
    files, root = _files(source, source_options)
    copies, copy_root = _files(target, target_options)
    with txnstore.open(source, source_options, read_only=True) as store:
        snapshot = store.snapshot()
        ((heads,),) = store.sql("select heads from txn.snapshot", snapshot=snapshot).fetchall()
        store_id = store.store_id
        # A segment is an object, or behind '#' a part of one: of an entry.
        objects = "select distinct split_part(key, '#', 1) from txn.segments where starts_with(key, 'topics/')"
        segments = [key for (key,) in store.sql(objects, snapshot=snapshot).fetchall()]
    stored = files.find(f"{root}/topics", detail=True) if segments else {}
    sizes = {key: stored[f"{root}/{key}"]["size"] for key in segments}
    entries: dict[str, int] = {}
    for chain, head in enumerate(heads):
        # Where old entries are deleted, the chain begins with a checkpoint, at its last boundary.
        for folder in ("boundaries", "checkpoints"):
            sizes |= _numbered(files, root, f"chains/{store_id}/{chain:04d}/{folder}", head)
        entries |= _numbered(files, root, f"chains/{store_id}/{chain:04d}/entries", head)
    sizes |= entries
    sizes["store.json"] = files.size(f"{root}/store.json")
    # A copy that was interrupted can have left a part of an object.
    existing = {path: info["size"] for path, info in copies.find(copy_root, detail=True).items()}
    if f"{copy_root}/store.json" in existing and _store_id(copies, copy_root) not in (None, store_id):
        raise SystemExit(f"nothing was copied: there is another store at {target}. Give an empty folder or prefix")
    missing = [key for key, size in sizes.items() if existing.get(f"{copy_root}/{key}") != size]
    # In this order: whatever a copied object names was copied before. An entry that a vacuum has shortened is replaced
    # at last: until then the copy may need its records.
    missing.sort(key=lambda key: f"{copy_root}/{key}" in existing and key in entries)
    for key in missing:
        path = f"{copy_root}/{key}"
        if isinstance(copies, LocalFileSystem):  # Object stores have no folders.
            copies.makedirs(path.rpartition("/")[0], exist_ok=True)
        copies.pipe_file(path, files.cat_file(f"{root}/{key}"))
    return len(missing)


def _store_id(files: fsspec.AbstractFileSystem, root: str) -> object:
    """The id in ``store.json``; None if only a part of it was copied."""
    try:
        return json.loads(files.cat_file(f"{root}/store.json"))["store_id"]
    except ValueError:
        return None


def _files(url: str, options: Mapping[str, Any] | None) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system of a URL and its path there; all storage options but ``transport`` are those of fsspec."""
    known = {name: value for name, value in (options or {}).items() if name != "transport"}
    files, root = fsspec.core.url_to_fs(url, use_listings_cache=False, **known)
    return files, root


def _numbered(files: fsspec.AbstractFileSystem, root: str, folder: str, head: int) -> dict[str, int]:
    """The keys and sizes of the objects in a folder of a chain, by whose names they are not after the head."""
    files_below = files.find(f"{root}/{folder}", detail=True)
    sizes = {path[len(root) + 1 :]: info["size"] for path, info in sorted(files_below.items())}
    return {key: size for key, size in sizes.items() if int(key[len(folder) + 1 :][:20]) <= head}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="SOURCE")
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("--source-options", metavar="JSON", type=json.loads, default={})
    parser.add_argument("--target-options", metavar="JSON", type=json.loads, default={})
    arguments = parser.parse_args()
    try:
        copied = backup(arguments.source, arguments.target, arguments.source_options, arguments.target_options)
    except (txnstore.TxnStoreError, OSError) as error:
        sys.exit(str(error))
    print(f"{copied} objects copied")
