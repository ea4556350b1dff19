"""Reads what Spark has stored about a streaming query in its checkpoint location."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, closing

from txnstore.errors import InvalidConfigError, StorageError
from txnstore.spark.options import Location
from txnstore.spark.streams.positions import Position, parse_lines
from txnstore.storage.base import ObjectStore
from txnstore.storage.registry import open_store

_NEEDED = (
    "The option group needs a checkpointLocation in a folder or on S3, which Python can read, too: change "
    "checkpointLocation, or leave out group"
)


def planned_positions(checkpoint: str, number: int, location: Location) -> list[Position]:
    """Read the positions that the sources of txnstore read in a micro-batch. One GET, or the read of a local file.

    Args:
        checkpoint: The checkpoint location, as the query names it.
        number: The number of the micro-batch; Spark stores its offsets before it runs.
        location: The store; its storage options also open a checkpoint on S3.

    Raises:
        InvalidConfigError: The checkpoint cannot be read from Python.
    """
    try:
        with _open_file_system(checkpoint, location) as objects:
            log = objects.get(f"offsets/{number}")
        return parse_lines(log.decode().splitlines())
    except (InvalidConfigError, StorageError, UnicodeDecodeError) as error:
        msg = f"the offsets of micro-batch {number} cannot be read from {checkpoint}: {error}. {_NEEDED}"
        raise InvalidConfigError(msg) from error


def check_checkpoint(checkpoint: str, location: Location) -> None:
    """Check that Python can read a checkpoint location, which need not exist yet. One LIST.

    Raises:
        InvalidConfigError: It cannot.
    """
    try:
        with _open_file_system(checkpoint, location) as objects:
            objects.list("offsets/", limit=1)
    except (InvalidConfigError, StorageError) as error:
        msg = f"the checkpoint {checkpoint} cannot be read: {error}. {_NEEDED}"
        raise InvalidConfigError(msg) from error


def _open_file_system(checkpoint: str, location: Location) -> AbstractContextManager[ObjectStore]:
    # A path of Hadoop is not percent-encoded, and may have one slash after file:.
    local = re.match(r"(?:file:(?://(?:localhost)?)?)?(?=/)|(?![a-z0-9+.-]+:)", checkpoint)
    root = checkpoint if local is None else checkpoint[local.end() :]
    options = {} if local is not None or location.url.startswith("file:") else location.storage_options
    return closing(open_store(root, options))
