"""The Spark part of the demo: a local session, and a write of flights to a topic in one transaction."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txnstore.cli.context import CommandError
from txnstore.cli.demo.data import FLIGHTS, LOADER

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_MIN_JAVA = 17


def check_spark() -> None:
    """Raise :class:`CommandError` if PySpark is missing, or the Java runtime that it needs is missing or too old."""
    if find_spec("pyspark") is None:
        msg = "PySpark is not installed"
        raise CommandError(msg, "Run: pip install 'txnstore[demo]'")
    advice = "Install a Java runtime (Debian: openjdk-17-jre-headless), or set JAVA_HOME."
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        msg = f"Spark needs Java {_MIN_JAVA} or newer, but there is none on the PATH"
        raise CommandError(msg, advice)
    try:
        result = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError as error:
        msg = f"Spark needs Java {_MIN_JAVA} or newer, but {java} does not run: {error.strerror}"
        raise CommandError(msg, advice) from error
    match = re.search(r'version "(\d+)', result.stderr + result.stdout)
    if match is None or int(match[1]) < _MIN_JAVA:
        version = f"version {match[1]}" if match else "not a working Java"
        msg = f"Spark needs Java {_MIN_JAVA} or newer, but {java} is {version}"
        raise CommandError(msg, advice)


def link_spark_home(folder: Path) -> Path:
    """Make a home of the installed Spark in a folder, without Spark's archive of PySpark.

    Spark puts the archive in front of the path of each Python process that it starts, and modules of an archive are
    compiled at each start, which takes most of it. Without it, the processes import the installed PySpark.
    """
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    folder.mkdir(exist_ok=True)
    for part in Path(spec.origin).parent.iterdir():
        if part.name in {"bin", "sbin", "jars", "data", "licenses"} and not (folder / part.name).exists():
            (folder / part.name).symlink_to(part)
    return folder


@contextmanager
def session(folder: Path) -> Iterator[SparkSession]:
    """A local session with two cores. The output of the JVM goes to a file in the folder."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # The fastest start.
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder),
    }
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Otherwise workers use the python3 on the PATH.
    os.environ.setdefault("SPARK_HOME", str(link_spark_home(folder / "spark-home")))
    builder = SparkSession.builder.master("local[2]").appName("txnstore demo")
    for name, value in settings.items():
        builder = builder.config(name, value)
    # Keep our handler for interrupts: PySpark installs one that prints a long message.
    on_interrupt = signal.getsignal(signal.SIGINT)
    with _stderr_to(folder / "spark.log"):
        spark: SparkSession = builder.getOrCreate()
    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield spark
    finally:
        with contextlib.suppress(Exception), _stderr_to(folder / "spark.log"):
            spark.stop()


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Redirect standard error to the file, also for processes started in the block."""
    sys.stderr.flush()
    original = os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(file, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(original, 2)
        os.close(original)
        os.close(file)


def storage(options: Mapping[str, Any]) -> dict[str, str]:
    """Storage options, as options of ``format("txnstore")``."""
    return {f"storage.{key}": value if isinstance(value, str) else json.dumps(value) for key, value in options.items()}


def write(spark: SparkSession, url: str, options: Mapping[str, Any], table: pa.Table, version: int) -> None:
    """Append the flights in one transaction, unless this version of the load is already committed."""
    (
        spark.createDataFrame(table)
        .write.format("txnstore")
        .options(topic=FLIGHTS, transactionalId=LOADER, txnVersion=version, **storage(options))
        .mode("append")
        .save(url)
    )
