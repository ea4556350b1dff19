"""How much there is to read: ``python -m tests.harness.amounts``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import txnstore

ROOT = Path(__file__).resolve().parents[2]
#: The folders of the product: the others below `txnstore/` are links to the last three.
PRODUCT = ("txnstore", "pyspark_txnstore", "catalog", "compactor", "cli")
#: What users read: the other pages of `docs/` are for who works on the project.
INTERNAL = ("docs/internals/",)


def main() -> int:
    files = [*_tracked()]
    pages = [path for path in files if path.startswith("docs/") and path.endswith(".md")]
    for name, amount in (
        ("product, lines with docstrings", _lines(path for path in files if _is_code(path, PRODUCT))),
        ("tests, lines", _lines(path for path in files if _is_code(path, ("tests",)))),
        ("documents, words", _words(pages)),
        ("documents, words of the users' part", _words(path for path in pages if not path.startswith(INTERNAL))),
        ("README, words", _words(["README.md"])),
        ("CHANGELOG, words", _words(["CHANGELOG.md"])),
        ("files entered by a commit", len(_entered_by_a_commit())),
    ):
        sys.stdout.write(f"{name:<40}{amount:>8,}\n")
    return 0


def _tracked() -> Iterator[str]:
    """The files of the repository, without links."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    yield from (path for path in listed.stdout.splitlines() if not (ROOT / path).is_symlink())


def _is_code(path: str, folders: Iterable[str]) -> bool:
    return path.endswith(".py") and path.partition("/")[0] in folders


def _lines(paths: Iterable[str]) -> int:
    return sum(len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in paths)


def _words(paths: Iterable[str]) -> int:
    return sum(len((ROOT / path).read_text(encoding="utf-8").split()) for path in paths)


def _entered_by_a_commit() -> set[str]:
    """The files of the product with a function that the second of two transactions calls in its thread."""
    entered: set[str] = set()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            path = Path(frame.f_code.co_filename).resolve()
            if path.is_relative_to(ROOT) and _is_code(str(path.relative_to(ROOT)), PRODUCT):
                entered.add(str(path.relative_to(ROOT)))

    with txnstore.create("memory://amounts") as store:
        store.create_topic("t")
        with store.producer(transactional_id="p") as producer:
            with producer.transaction() as txn:
                txn.send("t", b"first")
            sys.setprofile(profile)
            try:
                with producer.transaction() as txn:
                    txn.send("t", b"second")
            finally:
                sys.setprofile(None)
    return entered


if __name__ == "__main__":
    sys.exit(main())
