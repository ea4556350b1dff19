"""With which processes a process shares entries: the setting."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from txnstore.core.model import value_class
from txnstore.errors import InvalidConfigError

#: The setting of a process that is given none: ``on`` (also if it is not set), ``off``, or an address.
VARIABLE = "TXNSTORE_COMMITTER"


@value_class()
class Address:
    """Where a process can be reached by those of other machines.

    Attributes:
        host: A name or an IP address; empty: nowhere, so that it only calls others.
        port: 0: one that is free.
    """

    host: str
    port: int


@value_class()
class Sharing:
    """With which processes a process shares entries.

    Attributes:
        is_on: Whether with those of its user on its machine.
        address: Also with those of other machines; None: not.
    """

    is_on: bool
    address: Address | None = None


def sharing_of(setting: str | None) -> Sharing:
    """Parse a setting: ``on``, ``off``, ``tcp://HOST:PORT``, ``tcp://HOST`` (a free port) or ``tcp://`` (only call).

    Args:
        setting: None: that of the environment (:data:`VARIABLE`), else ``on``.

    Raises:
        InvalidConfigError: It is none of these.
    """
    name = VARIABLE if setting is None else "committer"
    value = os.environ.get(VARIABLE, "on") if setting is None else setting
    if value in ("on", "off"):
        return Sharing(value == "on")
    try:
        parts = urlsplit(value)
        port = parts.port
        is_reached = parts.hostname not in ("0.0.0.0", "::")  # noqa: S104 - refused
        is_complete = "@" not in value and (bool(parts.hostname) or not parts.netloc)
        is_address = value == f"tcp://{parts.netloc}" and is_complete and is_reached
    except ValueError:
        is_address = False
    if not is_address:
        msg = f"{name} is {value!r}: write on, off, tcp://HOST:PORT, tcp://HOST (a free port), or tcp:// (only call)"
        raise InvalidConfigError(msg)
    return Sharing(True, Address(parts.hostname or "", port or 0))
