"""Hostile names and values."""

from __future__ import annotations

import random
from typing import Any

#: Texts that are paths, escapes, keywords, look-alikes, or nothing.
TEXTS = (
    "", " ", ".", "..", "../x", "../../store.json", "/etc/passwd", "a/../b", "a//b", "a/b", "a\\b", "C:\\x", "%2F",
    "%2e%2e",
    "a%00b", "a\x00b", "a\nb", "a\rb", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x7f", "a\u202eb", "\ufeffa",
    "a\u200bb",
    "\u0430", "t\u0301", "\u2024\u2024", "\uff0e\uff0e", "\u2028", "\ud800", "🂡" * 3, "é", "é", "ﬁ", "İ",
    "x" * 249, "x" * 250,
    "x" * 100_000, "é" * 249, "'", '"', "';drop table t;--", '"; DROP TABLE t', "`", "$x", "${x}", "*", "?", "[a]",
    "{a}",
    "~", "#", "a?b#c", "NULL", "null", "None", "true", "-1", "0", "1e9", "nan", "--json", "-h", "CON", "nul.txt",
    "_probe",
    "store.json", "topics", "chains", "txn", "main", "information_schema", "select", "SELECT", "_topic", "_offset",
    "__x",
    "T", "ID", "g", "id", "typed", "arrow",
)  # fmt: skip

#: Values of every JSON type at their limits.
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 2**70, 10**400, 0.5, 1e308, -0.0, [], {}, [[]],
    [{}], {"": None}, [None], ["t", 0], ["t", -1], ["..", 0], {"a": {"b": {}}}, [[[[[[[[[[]]]]]]]]]],
)  # fmt: skip


def text(rng: random.Random) -> str:
    """A text; sometimes two of them together."""
    chosen = rng.choice(TEXTS)
    return chosen + rng.choice(TEXTS) if rng.random() < 0.2 else chosen


def value(rng: random.Random, instead: Any) -> Any:
    """A value to put where ``instead`` is: usually of the same JSON type, so that a check of types does not suffice."""
    if rng.random() < 0.25:
        return rng.choice(VALUES)
    if isinstance(instead, str):
        return text(rng)
    if isinstance(instead, bool):
        return not instead
    if isinstance(instead, int):
        return instead + rng.choice([-2, -1, 1, 2, 1000, 2**31, 2**40]) if rng.random() < 0.7 else -instead - 1
    if isinstance(instead, list) and instead:
        return rng.choice([instead[:-1], instead + instead, instead[::-1], [*instead, instead[0]]])
    return rng.choice(VALUES)
