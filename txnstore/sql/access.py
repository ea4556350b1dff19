"""What the SQL of a database may read besides the store, whether it checks what it reads, and how it is opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb
    from fsspec.spec import AbstractFileSystem

#: The protocol of the files that DuckDB reads through txnstore.
PROTOCOL = "txnseg"
#: The settings of every database: DuckDB downloads no extensions by itself.
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}


@dataclass(frozen=True, slots=True)
class Access:
    """The access of a database.

    Attributes:
        checksums: Whether the SHA-256 of a segment in a local folder is compared before DuckDB reads the file.
        external: Whether SQL can change settings and reach more than the store: other files, the network, extensions,
            Python variables.
        shared: Whether a query that only selects may run in the database that all calls share.
    """

    checksums: bool = True
    external: bool = True
    shared: bool = True


def open_database(files: AbstractFileSystem, access: Access) -> duckdb.DuckDBPyConnection:
    """Open an in-memory database with these files and this access, except for the lock; see :func:`lock`."""
    import duckdb

    database = duckdb.connect(":memory:", config=_SETTINGS)
    try:
        # The zone in which instants are shown; ICU is part of DuckDB's Python package.
        database.execute("SET GLOBAL TimeZone = 'UTC'")
        database.register_filesystem(files)
        if not access.external:
            # Once external access is off, DuckDB refuses to change these settings. It would allow all access below the
            # temporary directory; without one, a query that needs more than its memory fails.
            database.execute(
                "SET temp_directory = ''; "
                f"SET allowed_directories = ['{PROTOCOL}://']; SET enable_external_access = false"
            )
    except BaseException:
        database.close()
        raise
    return database


def lock(database: duckdb.DuckDBPyConnection) -> None:
    """Lock the settings of a database, but for its search path: logs, for example, are files."""
    database.execute("SET lock_configuration = true")
