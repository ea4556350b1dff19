"""Checks the statements of a query before it runs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from txnstore.errors import InvalidConfigError

if TYPE_CHECKING:
    import duckdb

#: Words of queries that list or change what the database contains, or that may contain such a query.
_LISTING = re.compile(
    r"\b(?:(?:duckdb|pg|sqlite)_\w*|pragma\w*|information_schema|show|describe|summarize|query|query_table"
    r"|current_schemas?|current_setting|(?:in_)?search_path|has_\w+_privilege|getvariables?|json_execute_\w+"
    r"|json_serialize_plan|\w+_(?:logging|logs|profiling|grammar_extension|external_resource(?:_type)?))\b"
    r"|(?:^|[;(])\s*desc\b",
    re.IGNORECASE,
)
#: A statement that lists, or the direction of an order. Before the first one there may be comments, which nest, and
#: whose signs may stand in a text.
_DESC, _COMMENT_START = re.compile(r"\bdesc\b", re.IGNORECASE), re.compile(r"--|/\*")
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_WORD = re.compile(r"[\w$]+")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_QUOTE = re.compile(r"[\"']")
#: Statements that change the database of a call only, which ends with the call.
_FORGOTTEN = frozenset(
    {
        "ALTER", "ANALYZE", "ATTACH", "CREATE", "CREATE_FUNC", "DELETE", "DETACH", "DROP", "INSERT", "LOAD",
        "MERGE_INTO", "PREPARE", "SET", "TRANSACTION", "UPDATE", "VACUUM", "VARIABLE_SET",
    }
)  # fmt: skip


def parse(connection: duckdb.DuckDBPyConnection, query: str) -> list[Any]:
    """Parse the statements of a query that runs in a database of its own, and is forgotten with it.

    Raises:
        InvalidConfigError: There is no statement; the last one has no effect that lasts; or one downloads an extension.
        duckdb.ParserException: The text is no SQL.
    """
    statements = connection.extract_statements(query)
    if not statements:
        msg = "the query contains no statement"
        raise InvalidConfigError(msg)
    for statement in statements:
        if _statement_kind(statement) == "LOAD" and _first_word(statement) in {"INSTALL", "FORCE"}:
            msg = (
                "INSTALL is refused, because queries download nothing: install the extension with DuckDB itself, then "
                "LOAD it"
            )
            raise InvalidConfigError(msg)
    # What follows ATTACH may write to another database, which lasts.
    if _statement_kind(statements[-1]) in _FORGOTTEN and not any(
        _statement_kind(statement) == "ATTACH" for statement in statements[:-1]
    ):
        msg = (
            f"{_first_word(statements[-1])} would change only the database of this call, which ends with it: end with "
            "a query, write records with a producer, or keep a connection (store.duckdb()) for tables and settings"
        )
        raise InvalidConfigError(msg)
    return list(statements)


def is_plain(query: str, statements: list[Any]) -> bool:
    """Whether a query can run in a shared database: it only selects, and from relations that its text names.

    Other statements may create objects or change settings. A listing such as ``SHOW TABLES`` must contain all topics.
    When in doubt, the answer is no.
    """
    if _LISTING.search(query) or (_DESC.search(query) and _COMMENT_START.search(query)):
        return False
    return all(_statement_kind(statement) == "SELECT" for statement in statements)


def names_in(query: str) -> set[str]:
    """All names that a query may refer to, in lower case: every word, and every text between two quotation marks."""
    text = query.lower()
    return set(_WORD.findall(text)).union(_QUOTE.split(text))


def quoting_advice(query: str, topics: Iterable[str]) -> str:
    """What to write instead, if a query names topics that SQL reads as something else: ``my-topic``, ``a.b``, ``24h``.

    Empty if it names none, or has them in quotation marks.
    """
    names = [
        name
        for name in topics
        if not _IDENTIFIER.fullmatch(name)
        and re.search(rf"(?<![\w\"'.-]){re.escape(name)}(?![\w\"'-])", query, re.IGNORECASE)
    ]
    if not names:
        return ""
    quoted = ", ".join(f'"{name}"' for name in names)
    return (
        f"Put quotation marks around {'names' if len(names) > 1 else 'a name'} that SQL does not read as one: {quoted}."
    )


def _statement_kind(statement: Any) -> str:
    return str(statement.type.name)


def _first_word(statement: Any) -> str:
    word = _WORD.search(_COMMENT.sub(" ", statement.query))
    return word.group().upper() if word is not None else "the statement"
