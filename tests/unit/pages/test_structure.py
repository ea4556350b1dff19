"""The structure of the code: the pages that describe it name what exists; no circle of imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import grimp
import pytest

from txnstore.chain.checkpoints.document import GroupDocument, PartitionDocument, StateDocument, TransactionDocument
from txnstore.core.groups.model import Group
from txnstore.core.log.model import Partition
from txnstore.core.state import State
from txnstore.core.transactions.model import Transaction

ROOT = Path(__file__).parents[3]
CODE, TESTS = ROOT / "txnstore", ROOT / "tests"
INTERNALS = ROOT / "docs" / "internals"
STRUCTURE = INTERNALS / "design" / "house.md"
#: A file or a folder: `core/log/`, `upload.py`, `protocol/test_core_*.py`.
PATH = re.compile(r"[\w.*/-]*(?:/|\.(?:py|md|rst|toml))")


def _quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def test_tree_of_the_structure_note_names_what_exists() -> None:
    tree = STRUCTURE.read_text(encoding="utf-8").split("```")[1]
    missing: list[str] = []
    folders = [ROOT]
    for line in filter(None, tree.splitlines()):
        depth = (len(line) - len(line.lstrip())) // 2
        names = re.match(r"(?:[\w.]+(?:/|\.py)\s+)*[\w.]+(?:/|\.py)(?=\s|$)", line.strip())
        if names is None:
            continue  # a description continues
        folder = folders[depth]
        paths = [folder / name for name in names.group().split()]
        missing += [str(path.relative_to(ROOT)) for path in paths if not path.exists()]
        folders[depth + 1 :] = [paths[0]]
    assert missing == []


def test_structure_note_names_every_folder() -> None:
    tree = STRUCTURE.read_text(encoding="utf-8").split("```")[1]
    folders = {path.name for top in (CODE, CODE / "core", TESTS) for path in top.iterdir() if path.is_dir()}
    here = {name for name in folders if not name.startswith(("__", "."))} - {"helpers", "pages"}
    assert here - {name.rstrip("/") for name in re.findall(r"\w+/", tree)} == set()


NOTES = sorted((INTERNALS / "design").glob("*.md"))
PAGES = [*NOTES, INTERNALS / "testing.md", ROOT / "docs" / "glossary.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_paths_that_exist(page: Path) -> None:
    words = [word for word in _quoted(page.read_text(encoding="utf-8")) if "/" in word and PATH.fullmatch(word)]
    assert [word for word in words if not any(list(base.glob(word.rstrip("/"))) for base in (ROOT, CODE, TESTS))] == []


def _names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)}


def test_checkpoint_document_has_every_field_of_the_state() -> None:
    """A field of the state that is not stored would be lost by the process that opens the store next."""
    assert _names(GroupDocument) == _names(Group) - {"classic", "epochs"} | {"name"}
    assert _names(TransactionDocument) == _names(Transaction)
    assert _names(PartitionDocument) == _names(Partition) - {"batches"} | {"tp"}
    of_groups, derived = {"epochs", "generations"}, {"alike"}  # From the names of the topics.
    assert _names(StateDocument) - {"version"} == _names(State) - derived | of_groups | {"index"}


def _circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module, each sorted: modules that import each other."""
    reached: dict[str, set[str]] = {}
    for module in imports:
        reached[module] = set()
        waiting = [module]
        while waiting:
            following = imports[waiting.pop()] - reached[module]
            reached[module] |= following
            waiting += following
    components = {tuple(sorted(other for other in reached[one] if one in reached[other])) for one in reached}
    return [list(component) for component in sorted(components) if len(component) > 1]


def _imports() -> dict[str, set[str]]:
    """The modules that each module imports, also inside functions and for annotations only."""
    graph = grimp.build_graph("txnstore", exclude_type_checking_imports=False, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def test_no_module_imports_itself_through_others() -> None:
    """Of any kind, across all packages: import-linter looks at the siblings of one package, and not into the core."""
    imports = _imports()
    assert "txnstore.core.state" in imports["txnstore.core.decide"]
    assert {"txnstore.catalog.topics", "txnstore.cli.app", "txnstore.compactor.vacuum.vacuum"} <= imports.keys()
    assert _circles(imports) == []


def test_circles_are_found() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert _circles(imports) == [["a", "b", "c"], ["d", "e"]]
    assert _circles({"a": {"b"}, "b": set()}) == []


#: Imports that need no load: of modules that are imported by then, or in a thread that is never interrupted.
UNLOADED = {
    "txnstore/__init__.py": {"txnstore"},
    "txnstore/chain/checkpoints/checkpoint.py": {"pyarrow"},  # pyarrow.parquet imports it
    "txnstore/scan.py": {"importlib"},
    "txnstore/sql/__init__.py": {"pyarrow", "txnstore.sql.interrupts"},
    "txnstore/sql/access.py": {"duckdb"},
    "txnstore/sql/interrupts.py": {"duckdb"},
    "txnstore/chain/committer/tls.py": {"cryptography", "cryptography.hazmat.primitives"},  # by those it loads
    "txnstore/sql/shared.py": {"duckdb"},
    "txnstore/sql/session.py": {"duckdb"},
    "txnstore/storage/s3/client.py": {"aiobotocore.session", "s3fs"},
    "txnstore/storage/s3/obstore.py": {
        "fsspec.config",
        "obstore",
        "obstore.store",
        "ssl",
        "urllib.error",
        "urllib.request",
    },
    "txnstore/storage/s3/session.py": {"aiobotocore.httpsession", "aiohttp", "botocore.exceptions"},
    "txnstore/storage/s3/settings.py": {
        "botocore",
        "botocore.config",
        "botocore.exceptions",
        "botocore.loaders",
        "botocore.session",
    },
    "txnstore/validation.py": {"difflib"},
}


def _late_imports(path: Path) -> set[str]:
    """The modules that functions of a file import."""
    modules = set()
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Import):
                    modules |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module is not None:
                    modules.add(node.module)
    return modules


@pytest.mark.slow
def test_late_imports_run_in_another_thread() -> None:
    """An interrupt in an import leaves Python's import lock acquired: functions call ``threads.load`` before it."""
    bare = {}
    for path in sorted(CODE.glob("**/*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.split("/")[1] in ("cli", "spark", "testing"):
            continue
        loaded = "".join(re.findall(r"load\(.*\)|for name in \(.*\):", path.read_text(encoding="utf-8")))
        missing = {
            module
            for module in _late_imports(path) - UNLOADED.get(name, set())
            if f'"{module}"' not in loaded and f'"{module}.' not in loaded
        }
        if missing:
            bare[name] = missing
    assert bare == {}


#: The dataclasses that change; all others are frozen.
CHANGING = {
    "_CallSite",
    "_PrefetchedRecord",
    "App",
    "AssignedPartition",
    "Attempt",
    "BackgroundReport",
    "ChainFindings",
    "ChainMetrics",
    "Cleaned",
    "Client",
    "DemoRun",
    "FetchSession",
    "Fetched",
    "KeptGroup",
    "KeptMember",
    "MaintenanceCounts",
    "LiveGroup",
    "PollingSchedule",
    "QueuedCommand",
    "Reading",
    "SegmentFindings",
    "SessionPartition",
    "StagedBatch",
    "StreamUploaded",
    "Traffic",
    "Uploaded",
    "_RowBuffer",
    "_StepBuilder",
    "_ContentSummary",
    "_KnownHead",
    "_Member",
    "_SentRecords",
}
#: Those without slots: a cached property needs a dictionary, and Spark pickles messages.
WITHOUT_SLOTS = {
    "App",
    "Authorization",
    "DemoRun",
    "Group",
    "Member",
    "Runtime",
    "State",
    "StreamUploaded",
    "Transaction",
    "Uploaded",
}


def _dataclasses() -> Iterator[tuple[str, dict[str | None, bool]]]:
    """The name and the options of each dataclass of the product."""
    files = (path for folder in ("txnstore", "catalog", "compactor", "cli") for path in (ROOT / folder).rglob("*.py"))
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ClassDef):
                continue
            for decorator in node.decorator_list:
                call = decorator if isinstance(decorator, ast.Call) else ast.Call(decorator, [], [])
                if ast.unparse(call.func) == "dataclass":
                    yield node.name, {word.arg: ast.literal_eval(word.value) for word in call.keywords}


@pytest.mark.slow
def test_dataclasses_are_frozen_and_have_slots() -> None:
    options = list(_dataclasses())
    assert {name for name, given in options if not given.get("frozen")} == CHANGING
    assert {name for name, given in options if not given.get("slots")} == WITHOUT_SLOTS
