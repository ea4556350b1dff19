"""What is on disk is what is shipped, and importing it is light."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import txnstore
from txnstore import errors, testing

ROOT = Path(__file__).parent.parent
LINKED = ["catalog", "cli", "compactor"]
ENGINES = {"boto3", "botocore", "duckdb", "obstore", "pandas", "pydantic", "pyspark", "s3fs"}

PUBLIC_NAMES = [
    "Acl",
    "Acls",
    "AuthorizationSettings",
    "BlockedPartition",
    "BlockedReadWarning",
    "ChainStatus",
    "CheckReport",
    "Consumer",
    "ExpiryReport",
    "GroupDescription",
    "GroupLag",
    "GroupMember",
    "GroupMetadata",
    "GroupPosition",
    "GroupStatus",
    "HangingTransaction",
    "Histogram",
    "Isolation",
    "IsolationLevel",
    "LogDump",
    "LogLine",
    "MaintenanceStatus",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OpenData",
    "Outcome",
    "PartitionHolder",
    "PartitionOffsets",
    "PartitionStatus",
    "PreparedTxn",
    "Producer",
    "ProducerDescription",
    "ProducerIdentity",
    "Record",
    "RecordFuture",
    "RecordMetadata",
    "RecoveryReport",
    "RetentionStatus",
    "Runtime",
    "Scan",
    "Slice",
    "Snapshot",
    "SnapshotDescription",
    "StoragePolicy",
    "Store",
    "StoreMetrics",
    "StoreStatus",
    "SyncReport",
    "TableChange",
    "TableDescription",
    "TableDetails",
    "TableFuture",
    "TableProblem",
    "TableStatus",
    "Tables",
    "Topic",
    "TopicPartition",
    "Transaction",
    "TransactionDescription",
    "TransactionHistory",
    "TransactionScope",
    "TransactionStatus",
    "TransactionStep",
    "TxnState",
    "TxnStoreError",
    "UnmaintainedStoreWarning",
    "Verdict",
    "__version__",
    "create",
    "errors",
    "open",
    "restore",
]


def _python(code: str, cwd: Path) -> str:
    """What the code prints, run by a fresh interpreter in a folder that is not the project's."""
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _packages_on_disk() -> set[str]:
    packages = {"pyspark_txnstore"}
    folders = [ROOT / "txnstore"]
    while folders:
        folder = folders.pop()  # by hand, because rglob does not follow the three links
        if (folder / "__init__.py").exists():
            packages.add(".".join(folder.relative_to(ROOT).parts))
            folders += [child for child in folder.iterdir() if child.is_dir()]
    return packages


def test_every_package_on_disk_is_in_the_package_list() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert set(listed) == _packages_on_disk()
    assert listed == sorted(listed)


def test_every_folder_with_code_is_a_package() -> None:
    with_code = {path.parent for path in (ROOT / "txnstore").glob("*/*.py")}
    assert with_code
    assert [folder for folder in with_code if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize("name", LINKED)
def test_the_three_folders_at_the_top_are_parts_of_txnstore(name: str) -> None:
    assert (ROOT / "txnstore" / name).is_symlink()
    assert (ROOT / "txnstore" / name).samefile(ROOT / name)
    assert importlib.import_module(f"txnstore.{name}").__name__ == f"txnstore.{name}"


@pytest.mark.parametrize("name", LINKED)
def test_a_second_copy_of_their_classes_cannot_be_imported(name: str) -> None:
    with pytest.raises(ImportError, match=f"txnstore.{name}"):
        importlib.import_module(name)


def test_the_version_is_written_once() -> None:
    assert importlib.metadata.version("txnstore") == txnstore.__version__


def test_the_types_are_shipped() -> None:
    assert (ROOT / "txnstore" / "py.typed").exists()


def test_spark_finds_the_data_source_package_from_any_folder(tmp_path: Path) -> None:
    """Spark lists modules with ``pkgutil.iter_modules``, which sees folders on the path but no import hooks."""
    names = _python("import pkgutil; print(*[m.name for m in pkgutil.iter_modules()])", tmp_path).split()
    assert "pyspark_txnstore" in names


def test_the_public_names_are_these() -> None:
    """A contract: a name may be added here, and none may go."""
    assert txnstore.__all__ == PUBLIC_NAMES
    assert [name for name in PUBLIC_NAMES if getattr(txnstore, name, None) is None] == []


def test_every_error_is_a_public_name() -> None:
    classes = {
        name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert "ProducerFencedError" in classes
    assert [name for name in sorted(classes) if getattr(txnstore, name) is not getattr(errors, name)] == []


def test_dir_shows_our_names_only() -> None:
    modules = {"catalog", "compactor", "spark", "sql", "testing"}
    assert set(dir(txnstore)) == {*PUBLIC_NAMES, *modules, *dir(errors)}
    assert [name for name in dir(errors) if not name.endswith("Error")] == []
    assert [name for name in dir(txnstore) if getattr(txnstore, name, None) is None] == []
    assert dir(testing) == sorted(testing.__all__)


def test_store_exposes_exactly_public_names() -> None:
    """A contract: a name may be added here, and none may go; what holds the store together stays behind it."""
    assert [name for name in dir(txnstore.Store) if not name.startswith("_")] == [
        "abort_hanging",
        "abort_transaction",
        "acls",
        "alter_topic",
        "backup",
        "backup_rounds",
        "checkpoint",
        "close",
        "compact",
        "consumer",
        "create_topic",
        "delete_group",
        "delete_records",
        "delete_topic",
        "doctor",
        "duckdb",
        "dump_log",
        "erase",
        "expire",
        "fence_producers",
        "find_hanging",
        "group",
        "groups",
        "instrument",
        "maintain",
        "metrics",
        "offsets",
        "principal",
        "producer",
        "producers",
        "prometheus",
        "read_only",
        "recover",
        "refresh",
        "remove_members",
        "reset_offsets",
        "retain",
        "scan",
        "snapshot",
        "sql",
        "store_id",
        "tables",
        "topic",
        "topics",
        "transaction",
        "transaction_history",
        "transactions",
        "url",
        "vacuum",
        "verify",
    ]


def test_importing_the_library_imports_no_engine(tmp_path: Path) -> None:
    code = "import sys, txnstore; names = [getattr(txnstore, name) for name in txnstore.__all__]; print(*sys.modules)"
    loaded = set(_python(code, tmp_path).split())
    assert "txnstore.store" in loaded
    assert loaded & ENGINES == set()


def test_the_data_source_that_spark_imports_is_light(tmp_path: Path) -> None:
    """Every Spark session with txnstore on its path pays for this import, whatever it reads."""
    code = "import sys, pyspark_txnstore as p; print(p.DefaultSource.name(), *sys.modules)"
    name, *loaded = _python(code, tmp_path).split()
    assert name == "txnstore"
    assert set(loaded) & ENGINES <= {"pyspark", "pandas"}


def test_the_console_script_is_the_command_line() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="txnstore")
    assert script.value == "txnstore.cli:main"
    assert callable(script.load())


def test_help_imports_no_engine(tmp_path: Path) -> None:
    """What ``txnstore --help`` costs is what it imports."""
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules)); sys.argv = ['txnstore', '--help']"
    *screen, modules = _python(f"{code}; from txnstore.cli import main; main()", tmp_path).splitlines()
    assert "Usage: txnstore" in "\n".join(screen)
    assert set(modules.split()) & ENGINES == set()
