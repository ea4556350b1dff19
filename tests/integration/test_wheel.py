"""The wheel and the source distribution hold the whole library, and it runs from them without the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
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


def test_the_wheel_installs_as_the_readme_says_with_all_extras(dist: Path, tmp_path: Path) -> None:
    """Into an environment of its own that sees the packages of this one, without an index.

    A name that is no extra would fail, and a package that an extra needs and the lock does not have.
    """
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    match = re.search(r"^pip install 'dist/(txnstore-\S+\.whl)\[(\S+)\]'$", readme, re.MULTILINE)
    assert match is not None
    wheel = dist / match[1]
    assert wheel.exists(), f"make dist builds {[path.name for path in dist.iterdir()]}"
    _run(sys.executable, "-m", "venv", "--without-pip", "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (site / "packages.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    listed = re.findall(r"`(\w+)`", readme[match.end() :].split("\n\n")[1])
    assert set(listed) == extras.keys() - {"dev"}
    assert set(match[2].split(",")) < set(listed)
    output = _run(str(python), "-m", "pip", "install", "--no-index", f"{wheel}[{','.join(listed)}]", cwd=tmp_path)
    assert "does not provide the extra" not in output
    code = "import txnstore, pyspark_txnstore; print(txnstore.__file__)"
    assert Path(_run(str(python), "-c", code, cwd=tmp_path).strip()).is_relative_to(site)
    command = tmp_path / "env" / "bin" / "txnstore"
    assert _run(str(command), "--version", cwd=tmp_path).split()[-1] in wheel.name
    # What an error of txnstore says to run in an environment that has txnstore: nothing is fetched for the name itself.
    _run(str(python), "-m", "pip", "install", "--no-index", "txnstore[otel]", cwd=tmp_path)


def test_no_page_installs_a_name_that_is_not_published() -> None:
    """A package of this name on an index would be another project's."""
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("docker/**/*.md"), *ROOT.glob("examples/*.*")]
    assert len(pages) > 30
    wrong = [path.name for path in pages if re.search(r"pip install [\"']?txnstore", path.read_text(encoding="utf-8"))]
    assert wrong == []
