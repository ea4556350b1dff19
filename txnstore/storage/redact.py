"""Removes credentials from URLs in messages."""

from __future__ import annotations

import os
import re

# User and password before an @. A password may hold slashes, a host may have a port, and a key may hold an @.
_USERINFO = re.compile(r"(?<=://)(?:[^/\s@:]*:(?!\d{1,5}(?:/|$))\S*@|[^/\s]*@)")
_QUERY = re.compile(r"(://[^\s?#]*)[?#][^\s\"']*")


def redact(url: str | os.PathLike[str]) -> str:
    """Return the URL, or any text with URLs in it, without user names, passwords and queries."""
    return _QUERY.sub(r"\1", _USERINFO.sub("", os.fspath(url)))
