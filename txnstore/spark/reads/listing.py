"""Gives Spark a list of files to read, so that it looks for none: no request per file, whatever their number.

Spark lists paths that it is given in a job with one task for each path, which takes 10 ms a file in a folder and
several requests on S3. In a folder that a streaming file sink of Spark has written, Spark reads the log of the sink
instead, which names each file with its size. :func:`read_listed` writes such a log; Spark reads it once, on the driver.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Spark's names for the log of a file sink, and for a batch of the log that includes all earlier ones.
_LOG_FOLDER, _LOG_FILE, _LOG_VERSION = "_spark_metadata", "0.compact", "v1"
#: Spark has no locality for these files, so their blocks have any size.
_BLOCK_BYTES = 128 << 20

#: The number of a row's file in its list, from 0, in Spark SQL: Spark knows it as the file's time of modification.
FILE_NUMBER = "int(unix_millis(_metadata.file_modification_time))"


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file for Spark.

    Attributes:
        url: The URL, percent-encoded.
        size: The size in bytes.
    """

    url: str
    size: int


def read_listed(spark: SparkSession, ddl: str, files: Sequence[ListedFile]) -> DataFrame | None:
    """Return a frame of exactly these Parquet files.

    Args:
        spark: The session, which shares this machine.
        ddl: The columns to read, as DDL of Spark SQL.

    Returns:
        The frame; None if this Spark does not read the log of a file sink.
    """
    with tempfile.TemporaryDirectory(prefix="txnstore-files-") as folder:
        log = Path(folder, _LOG_FOLDER, _LOG_FILE)
        log.parent.mkdir()
        with log.open("w", encoding="utf-8") as out:
            out.write(_LOG_VERSION)
            out.writelines("\n" + _row_of(number, file) for number, file in enumerate(files))
        # With this option, Spark takes the files of the log from any folder, and no column from a folder's name.
        frame = spark.read.schema(ddl).option("recursiveFileLookup", "true").parquet(_hadoop_path(folder))
    # A setting (spark.sql.streaming.fileStreamSink.ignoreMetadata), or another Spark, may not read the log: no files.
    return frame if _index_of(frame).allFiles().size() == len(files) else None


def _index_of(frame: DataFrame) -> Any:
    """Return Spark's list of the files of a frame. ``DataFrame.inputFiles`` would make a JVM call for each."""
    return frame._jdf.queryExecution().analyzed().relation().location()  # noqa: SLF001 - Spark gives it to Scala only.


def _hadoop_path(folder: str) -> str:
    """Return a local folder as Hadoop writes paths: not percent-encoded.

    With characters of patterns in its name, which are escaped, Spark finds the folder, but reads no log in it.
    """
    return "file://" + re.sub(r"([\\{}\[\]*?])", r"\\\1", folder)


def _row_of(number: int, file: ListedFile) -> str:
    """Return a file as a line of the log of Spark's file sink."""
    return json.dumps(
        {
            "path": file.url,
            "size": file.size,
            "isDir": False,
            "modificationTime": number,
            "blockReplication": 1,
            "blockSize": _BLOCK_BYTES,
            "action": "add",
        }
    )
