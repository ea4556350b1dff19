"""Copies a store to an empty folder or prefix while it is used: ``python examples/backup.py SOURCE TARGET``.

The copy is the store as it was at one snapshot. Entries and segments never change, so a second run into the same target
copies only what is new. Both places are URLs of fsspec; a restore is the same command in the other direction.
"""

from __future__ import annotations

import sys

import fsspec

import txnstore


def backup(source: str, target: str) -> int:
    """Copy the newest snapshot of the store; the number of objects that were copied."""
    files, root = fsspec.core.url_to_fs(source)
    copies, copy_root = fsspec.core.url_to_fs(target)
    with txnstore.open(source, read_only=True) as store:
        snapshot = store.snapshot()
        ((heads,),) = store.sql("select heads from txn.snapshot", snapshot=snapshot).fetchall()
        segments = [key for (key,) in store.sql("select key from txn.segments", snapshot=snapshot).fetchall()]
    entries = [path for chain, head in enumerate(heads) for path in _entries(files, root, chain, head)]
    existing = set(copies.find(copy_root)) if copies.exists(copy_root) else set()
    copied = 0
    for key in [*segments, *entries, "store.json"]:  # In this order: whatever a copied object names was copied before.
        path = f"{copy_root}/{key}"
        if path not in existing:
            copies.makedirs(path.rpartition("/")[0], exist_ok=True)
            copies.pipe_file(path, files.cat_file(f"{root}/{key}"))
            copied += 1
    return copied


def _entries(files: fsspec.AbstractFileSystem, root: str, chain: int, head: int) -> list[str]:
    """The keys of a chain's entries up to its head in the snapshot."""
    found = files.find(f"{root}/chains/{chain:04d}/entries")
    keys = sorted(path[len(root) + 1 :] for path in found)
    return [key for key in keys if int(key.rpartition("/")[2].removesuffix(".json")) <= head]


if __name__ == "__main__":
    print(f"{backup(*sys.argv[1:])} objects copied")
