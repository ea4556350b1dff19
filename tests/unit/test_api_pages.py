"""The API reference names everything that is public, so that nothing is left out when something is added."""

from __future__ import annotations

import re
from pathlib import Path

import txnstore
from txnstore import compactor, errors, spark, sql, testing

PAGES = Path(__file__).parents[2] / "docs" / "api"


def _documented() -> set[str]:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES.glob("*.rst"))
    return {name.removesuffix("()") for name in re.findall(r"\.\. auto\w+:: (\S+)", text)}


def test_api_reference_documents_every_public_name() -> None:
    modules = ("compactor", "errors", "spark", "sql", "testing")
    public = {name for name in txnstore.__all__ if name not in {*modules, "__version__", "TxnStoreError"}}
    assert public - _documented() == set()


def test_api_reference_documents_every_method_of_a_store() -> None:
    methods = {name for name in dir(txnstore.Store) if not name.startswith("_")}
    documented = {name.rpartition(".")[2] for name in _documented()}
    assert methods - documented == set()


def test_api_reference_documents_every_error() -> None:
    classes = {name for name, found in vars(errors).items() if isinstance(found, type) and name.endswith("Error")}
    assert classes - _documented() == set()


def test_api_reference_documents_the_public_modules() -> None:
    public = {*sql.__all__, *spark.__all__, *testing.__all__, *compactor.__all__} - {"MergePlan", "plan_merges"}
    assert public - _documented() == set()
