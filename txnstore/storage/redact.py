"""Taking credentials out of URLs before anybody sees them."""

from __future__ import annotations

import os
import re

# User and password before an @. A password may hold slashes, a host may have a port, and a key may hold an @.
_USERINFO = re.compile(r"(?<=://)(?:[^/\s@:]*:(?!\d{1,5}(?:/|$))\S*@|[^/\s]*@)")
_QUERY = re.compile(r"(://[^\s?#]*)[?#][^\s\"']*")


def redact(url: str | os.PathLike[str]) -> str:
    """The URL without user name, password and query, fit for messages. Also cleans every URL inside a longer text."""
    return _QUERY.sub(r"\1", _USERINFO.sub("", os.fspath(url)))
