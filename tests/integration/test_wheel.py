"""The wheel and the source distribution hold the whole library, and it runs from them without the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCES = ["catalog", "cli", "compactor", "pyspark_txnstore", "txnstore"]
FILES = ["LICENSE", "README.md", "pyproject.toml"]


def _run(*command: str, cwd: Path, path: Path | None = None) -> str:
    env = {**os.environ, "PYTHONPATH": str(path)} if path else None
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both distributions, the wheel made from the sdist. A build leaves things behind: it gets a copy."""
    tree = tmp_path_factory.mktemp("tree")
    for name in FILES:
        shutil.copy(ROOT / name, tree)
    for name in SOURCES:
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    _run(sys.executable, "-m", "build", "--no-isolation", cwd=tree)
    return tree / "dist"


@pytest.fixture(scope="module")
def unpacked(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content, as an installation lays it out."""
    (wheel,) = dist.glob("*.whl")
    folder = tmp_path_factory.mktemp("unpacked")
    shutil.unpack_archive(wheel, folder, "zip")
    return folder


def _modules(root: Path) -> set[str]:
    names = {"pyspark_txnstore", "txnstore"}
    return {
        (Path(folder) / file).relative_to(root).as_posix()
        for name in names
        for folder, _, files in os.walk(root / name, followlinks=True)
        for file in files
        if file.endswith((".py", ".typed"))
    }


def test_the_wheel_holds_every_module(unpacked: Path) -> None:
    assert _modules(unpacked) == _modules(ROOT)


def test_the_wheel_puts_nothing_else_at_the_top(unpacked: Path) -> None:
    tops = {path.name for path in unpacked.iterdir() if not path.name.endswith(".dist-info")}
    assert tops == {"pyspark_txnstore", "txnstore"}


def test_the_source_distribution_holds_plain_files(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert [member.name for member in archive if member.issym() or member.islnk()] == []


def test_the_command_runs_from_the_wheel(unpacked: Path, tmp_path: Path) -> None:
    code = "import sys, txnstore.cli as cli; print(cli.__file__); sys.argv = ['txnstore', '--help']; cli.main()"
    where, *screen = _run(sys.executable, "-c", code, cwd=tmp_path, path=unpacked).splitlines()
    assert Path(where).is_relative_to(unpacked)
    assert "Usage: txnstore" in "\n".join(screen)
