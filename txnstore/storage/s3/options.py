"""The ``storage_options`` of a store on S3, whichever library sends its requests; misspelt ones are named."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from txnstore.errors import InvalidConfigError
from txnstore.storage.redact import redact
from txnstore.storage.s3.errors import scrub
from txnstore.storage.s3.settings import is_server

_UNKNOWN_OPTION = re.compile(r"unexpected keyword argument '([^']*)'")
#: What was meant by options that s3fs does not have.
_REGION_HINT = "Write client_kwargs={'region_name': …}, or set AWS_DEFAULT_REGION."
_MEANT = {
    "region": _REGION_HINT,
    "region_name": _REGION_HINT,
    "aws_region": _REGION_HINT,
    "endpoint": "Write endpoint_url=….",
    "access_key": "Write key=….",
    "aws_access_key_id": "Write key=….",
    "secret_key": "Write secret=….",
    "aws_secret_access_key": "Write secret=….",
    "session_token": "Write token=….",
    "aws_session_token": "Write token=….",
}


_OPTIONS = ("key", "secret", "token", "endpoint_url", "anon", "profile", "client_kwargs", "config_kwargs", "use_ssl")


def suggest_option(name: str) -> str:
    """Return what to write instead of an unknown option; empty if no option resembles it."""
    close = difflib.get_close_matches(name, _OPTIONS, n=1)
    return _MEANT.get(name) or (f"Did you mean {close[0]}?" if close else "")


def wrong_option_error(error: Exception, url: str, secrets: Collection[str]) -> InvalidConfigError:
    """Return the error for one of a library that makes a client from the options."""
    message = scrub(f"{type(error).__name__}: {error}", secrets)
    match = _UNKNOWN_OPTION.search(message)
    if match is not None:
        return unknown_option_error(match[1], url)
    return InvalidConfigError(f"Cannot create a client for {url}: {message}. Check storage_options.")


def unknown_option_error(name: str, url: str) -> InvalidConfigError:
    hint = suggest_option(name) or "Its options are those of s3fs.S3FileSystem."
    return InvalidConfigError(f"There is no storage option {name!r} for {url}. {hint}")


def check_options(options: Mapping[str, Any]) -> None:
    """Check the ``endpoint_url`` and numbers, whose errors the libraries report late or misleadingly."""
    client, config = (options.get(name) or {} for name in ("client_kwargs", "config_kwargs"))
    for endpoint in (options.get("endpoint_url"), client.get("endpoint_url")):
        if endpoint and redact(endpoint) != endpoint:
            raise InvalidConfigError(
                f"The endpoint_url {redact(endpoint)} contains credentials or a query. "
                "Pass key and secret as storage_options."
            )
        if endpoint and not str(endpoint).lower().startswith(("http://", "https://")):
            host = str(endpoint).rpartition("//")[2]
            raise InvalidConfigError(f"The endpoint_url {endpoint} is no URL: write http://{host} or https://{host}.")
        if endpoint and not is_server(endpoint):
            raise InvalidConfigError(f"The endpoint_url {endpoint} names no server: check its host and port.")
    for name in _POSITIVE & config.keys():
        value = config[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise InvalidConfigError(f"{name} in config_kwargs must be a positive number, not {value!r}.")


#: Timeouts, in seconds, and the number of connections. A negative number of them makes aiohttp wait forever.
_POSITIVE = {"connect_timeout", "read_timeout", "max_pool_connections"}
_SECRET_NAMES = {"key", "secret", "token", "username", "password", "aws_access_key_id", "aws_secret_access_key",
                 "aws_session_token", "SSECustomerKey"}  # fmt: skip


def secrets_in(options: Mapping[str, Any]) -> Iterator[str]:
    """Return the values of the options that no message may contain."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from secrets_in(value)
        elif name in _SECRET_NAMES and isinstance(value, str) and value:
            yield value
