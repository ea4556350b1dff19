"""What instruments need, made once for each version in ``build/``: S3 servers, jars, classes, engines.

The servers, which take Go minutes, are also kept in the cache of the user, for other checkouts and later ones.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
LOCK = ROOT / "requirements-dev.lock"

#: The Go module of each S3 server, in the version that docs/storage.md reports on.
SERVERS = {
    "minio": "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c",
    "versitygw": "github.com/versity/versitygw/cmd/versitygw@v1.8.0",
}
SERVER_PROGRAMS = BUILD / "s3" / "bin"

_COMPAT = ROOT / "tests" / "compat"
#: The pom that names the jars of each folder below build/kafka.
POMS = {
    "libs": _COMPAT / "broker" / "pom.xml",
    "spark": _COMPAT / "broker" / "spark-pom.xml",
    "tests": _COMPAT / "kafka_clients" / "pom.xml",
    "programs": _COMPAT / "kafka_programs" / "pom.xml",
}
ICEBERG_SPARK = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


class MissingProgramError(Exception):
    """A program that makes what is needed is not installed; the message says how to install it."""


def made(folder: Path, inputs: Sequence[bytes], make: Callable[[], None]) -> Path:
    """A folder that ``make`` fills, unless it was filled from the same inputs before.

    With ``--help`` nothing is made: the instrument prints its options and ends.
    """
    if "--help" in sys.argv:
        return folder
    stamp, digest = folder / ".made", hashlib.sha256(b"\0".join(inputs)).hexdigest()
    if not stamp.exists() or stamp.read_text(encoding="ascii") != digest:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make()
        stamp.write_text(digest, encoding="ascii")
    return folder


def java() -> None:
    """Java 17 or newer is there, which Spark 4 and Kafka 4 need."""
    program = str(Path(os.environ["JAVA_HOME"], "bin", "java")) if "JAVA_HOME" in os.environ else "java"
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        answer = ""
    version = re.search(r'version "(\d+)', answer)
    if version is None or int(version[1]) < 17:
        have = f"{program} is version {version[1]}" if version else f"{program} does not run"
        msg = f"Spark and Kafka need Java 17 or newer; {have}. Install it (Debian: openjdk-17-jdk-headless)."
        raise MissingProgramError(msg)


def server(name: str) -> Path:
    """The folder of the programs of S3 servers, with this one, which Go builds."""
    module = SERVERS[name]

    def build(folder: Path) -> None:
        _run(str(ROOT / "tests" / "harness" / "s3" / "build"), module, str(folder))

    made(BUILD / "s3" / name, [module.encode()], lambda: _copied(kept(name, module, build), SERVER_PROGRAMS / name))
    return SERVER_PROGRAMS


def kept(name: str, version: str, build: Callable[[Path], None]) -> Path:
    """A program in the cache of the user, which ``build`` puts into a folder unless it is there, whole."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "txnstore-tests" / f"{version} {sys.platform} {platform.machine()}".replace("/", "_")
    program, digest = folder / name, folder / "sha256"
    if program.exists() and digest.exists() and digest.read_text(encoding="ascii") == _sha256(program):
        return program
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as own:
        build(Path(own))
        Path(own, "sha256").write_text(_sha256(Path(own, name)), encoding="ascii")
        for made_one in (program, digest):
            Path(own, made_one.name).replace(made_one)
    return program


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copied(source: Path, to: Path) -> None:
    """Copy a program; the copy is whole, or is not there."""
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, partial := to.with_suffix(".partial"))
    partial.replace(to)


def jars(name: str) -> Path:
    """The folder with the jars that a pom of :data:`POMS` names, which Maven fetches."""
    pom, folder = POMS[name], BUILD / "kafka" / name
    maven = (*("mvn", "-B", "-q", "-f", str(pom)), "dependency:copy-dependencies", "-DincludeScope=runtime")
    return made(folder, [pom.read_bytes()], lambda: _run(*maven, f"-DoutputDirectory={folder}"))


def classes(name: str, sources: Path) -> Path:
    """The folder with the compiled classes of the Java files below ``sources``, against the jars of this name."""
    libraries, folder = jars(name), BUILD / "kafka" / f"{name}-classes"
    files = sorted(path for path in sources.rglob("*") if path.is_file())

    def compiled() -> None:
        _run("javac", "-nowarn", "-d", str(folder), "-cp", f"{libraries}/*", *_java(files))
        if (sources / "META-INF").exists():
            shutil.copytree(sources / "META-INF", folder / "META-INF")

    return made(folder, [POMS[name].read_bytes(), *(path.read_bytes() for path in files)], compiled)


def engines(names: Iterable[str]) -> Path:
    """The folder with a virtual environment for each of these readers of tables."""
    for name in names:
        requirements = ROOT / "tests" / "readers" / "requirements" / f"{name}.txt"
        _environment(BUILD / "readers" / name, [requirements.read_bytes()], ["-r", str(requirements)])
    return BUILD / "readers"


def iceberg_runtime() -> Path:
    """The jar with which Spark reads tables of Iceberg."""
    folder = BUILD / "readers" / "iceberg"
    command = ("mvn", "-B", "-q", "dependency:copy", f"-Dartifact={ICEBERG_SPARK}", f"-DoutputDirectory={folder}")
    made(folder, [ICEBERG_SPARK.encode()], lambda: _run(*command))
    return next(folder.glob("*.jar"), folder / "iceberg.jar")


def spark(version: str) -> Path:
    """The Python of an environment with this release of PySpark, and the locked versions of all else."""
    folder = BUILD / "spark" / version
    locked = [line for line in LOCK.read_text(encoding="utf-8").splitlines() if not line.startswith("pyspark==")]
    constraints = BUILD / "spark" / f"{version}.constraints"
    constraints.parent.mkdir(parents=True, exist_ok=True)
    constraints.write_text("\n".join(locked), encoding="utf-8")
    others = ("pandas", "pytest", "pytest-timeout", "pytest-xdist", "hypothesis")
    return _environment(
        folder,
        [constraints.read_bytes(), (ROOT / "pyproject.toml").read_bytes()],
        ["-c", str(constraints), "-e", str(ROOT), f"pyspark=={version}.*", *others],
    )


def _environment(folder: Path, inputs: Sequence[bytes], packages: Sequence[str]) -> Path:
    """The Python of a virtual environment with these packages."""
    python = folder / "bin" / "python"

    def install() -> None:
        print(f"Installing {folder.name} into {folder.relative_to(ROOT)} …", flush=True)
        _run(sys.executable, "-m", "venv", str(folder))
        _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)

    made(folder, inputs, install)
    return python


def _java(files: Iterable[Path]) -> list[str]:
    return [str(path) for path in files if path.suffix == ".java"]


#: Where the programs come from that make what is needed.
_SOURCES = {"mvn": "maven", "javac": "openjdk-17-jdk-headless"}


def _run(program: str, *arguments: str) -> None:
    if program in _SOURCES and shutil.which(program) is None:
        raise MissingProgramError(f"{program} is not installed (Debian: {_SOURCES[program]}).")
    subprocess.run([program, *arguments], check=True)
