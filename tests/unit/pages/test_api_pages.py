"""The API reference names everything that is public, so that nothing is left out when something is added."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import txnstore
from txnstore import compactor, errors, spark, sql, testing

PAGES = Path(__file__).parents[3] / "docs" / "api"


#: Types of arguments: their docstrings are where they are defined, so the pages name that module.
ARGUMENT_TYPES = {
    "txnstore.admin.groups.Target",
    "txnstore.consumer.Reset",
    "txnstore.consumer.membership.AssignorName",
    "txnstore.consumer.membership.Callback",
    "txnstore.consumer.subscription.ResetPolicy",
    "txnstore.store.EngineName",
    "txnstore.read.plan.IsolationLevel",
    "txnstore.scan.Bound",
    "txnstore.times.Time",
}
PUBLIC_MODULES = {"txnstore", *(f"txnstore.{name}" for name in ("compactor", "errors", "spark", "sql", "testing"))}


def _qualified() -> set[str]:
    """The names that the pages document, each with its module; members of ``Store`` count as names of ``txnstore``."""
    names = set()
    for page in PAGES.glob("*.rst"):
        module = ""
        # A member below its class is indented and stands without the name of the class.
        text = page.read_text(encoding="utf-8")
        for kind, argument in re.findall(r"^\.\. (auto\w+|currentmodule):: (\S+)", text, re.MULTILINE):
            name = argument.removesuffix("()")
            if kind == "currentmodule":
                module = name
            else:
                names.add(name if name.startswith("txnstore.") else f"{module}.{name}")
    return names


def _documented() -> set[str]:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES.glob("*.rst"))
    written = {name.removesuffix("()") for name in re.findall(r"\.\. auto\w+:: (\S+)", text)}
    return written | {name.rpartition(".")[2] for name in written & ARGUMENT_TYPES}


def test_api_reference_uses_public_names_only() -> None:
    names = {name.replace("txnstore.Store.", "txnstore.") for name in _qualified()} - ARGUMENT_TYPES
    assert [name for name in sorted(names) if name.rpartition(".")[0] not in PUBLIC_MODULES] == []


def test_api_reference_names_exist() -> None:
    assert [name for name in sorted(_qualified()) if not _exists(name)] == []


def _exists(name: str) -> bool:
    owner, _, last = name.rpartition(".")
    if owner == "txnstore.Store":
        return hasattr(txnstore.Store, last)
    return hasattr(importlib.import_module(owner), last)


def test_api_reference_documents_every_public_name() -> None:
    modules = ("compactor", "errors", "spark", "sql", "testing")
    public = {name for name in txnstore.__all__ if name not in {*modules, "__version__", "TxnStoreError"}}
    assert public - _documented() == set()


def test_api_reference_documents_every_method_of_a_store() -> None:
    methods = {name for name in dir(txnstore.Store) if not name.startswith("_")}
    documented = {name.rpartition(".")[2] for name in _documented()}
    assert methods - documented == set()


def test_api_reference_documents_every_error() -> None:
    classes = {name for name, value in vars(errors).items() if isinstance(value, type) and name.endswith("Error")}
    assert classes - _documented() == set()


def test_api_reference_documents_the_public_modules() -> None:
    public = {*sql.__all__, *spark.__all__, *testing.__all__, *compactor.__all__} - {"MergePlan", "plan_merges"}
    assert public - _documented() == set()
