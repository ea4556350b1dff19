"""Tables of Spark's catalog, which a Python data source cannot serve: the errors say what to write instead.

Spark (4.0 to 4.3) gives the options of a table to a Python data source when it creates the table without columns, and
at no other time: neither a SELECT nor an INSERT gets them. So a table would not know its store. These refuse all that
Spark asks the source about; with columns, Spark creates a table without asking, and the first use of it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from txnstore.errors import InvalidConfigError

#: Properties of a table, which Spark adds to the options where it creates one.
_PROPERTY = "provider"
_WHY = "Spark does not give a Python data source the options of a table"


def check_columns(options: Mapping[str, str]) -> None:
    """Refuse ``CREATE TABLE`` without columns: Spark asks for them with the options and the properties of the table.

    Raises:
        InvalidConfigError: The message has the statement for a view of the same topic.
    """
    if _PROPERTY in options:
        msg = (
            f"{_WHY} when it is read or written, so a topic cannot be a table of Spark's catalog. For SELECT and "
            f"INSERT INTO, make a view: {_suggested_view(options)}"
        )
        raise InvalidConfigError(msg)


def check_read(options: Mapping[str, str]) -> None:
    """Refuse a SELECT from a table: it comes without any options.

    Raises:
        InvalidConfigError: The message says what to write instead.
    """
    if not options:
        msg = (
            f"this read has no options; {_WHY}. Read a view: {_suggested_view(options)}; or with "
            'spark.read.format("txnstore").option("topic", "…").load("…"); or name the store in the statement: '
            "the table WITH (path = '…', topic = '…')"
        )
        raise InvalidConfigError(msg)


def check_write(options: Mapping[str, str]) -> None:
    """Refuse an INSERT into a table, and ``CREATE TABLE … AS SELECT``: they come without any options.

    Raises:
        InvalidConfigError: The message says what to write instead.
    """
    if not options:
        msg = f"this write has no options; {_WHY}. {_describe_writes(options)}"
        raise InvalidConfigError(msg)


def new_table_message() -> str:
    """Return the message for a write that creates a table: ``saveAsTable``, ``writeTo(…).create()`` and others."""
    return f"{_WHY}, so the new table could not be read, and nothing was written. {_describe_writes({})}"


def _describe_writes(options: Mapping[str, str]) -> str:
    return (
        'Write a DataFrame with df.write.format("txnstore").option("topic", "…").mode("append").save("…"), '
        'where option("createTopic", "true") creates the topic; or INSERT INTO a view: '
        f"{_suggested_view(options)}; or name the store in the statement: "
        "INSERT INTO the table WITH (path = '…', topic = '…') …"
    )


def _suggested_view(options: Mapping[str, str]) -> str:
    path = options.get("option.path") or options.get("path") or "…"
    if path.startswith("file:/") and not path.startswith("file://"):
        path = path.replace("file:", "file://", 1)  # Hadoop writes it with one slash.
    view_options = {"path": path, "topic": options.get("topic") or "…", "systemColumns": "ignore"}
    options_text = ", ".join(f"{name} '{_escape_text(value)}'" for name, value in view_options.items())
    return f"CREATE TEMPORARY VIEW name USING txnstore OPTIONS ({options_text})"


def _escape_text(text: str) -> str:
    """Escape a text for a string of Spark's SQL, which users copy."""
    return text.replace("\\", r"\\").replace("'", r"\'")
