"""Makes the client of s3fs for a store, from its ``storage_options``; misspelt ones are named."""

from __future__ import annotations

import copy
import difflib
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from txnstore.errors import InvalidConfigError
from txnstore.storage.redact import redact
from txnstore.storage.s3.errors import scrub
from txnstore.storage.s3.loop import own_loop
from txnstore.storage.s3.requests import parameters
from txnstore.storage.s3.session import single_attempt_session
from txnstore.storage.s3.settings import is_server

#: Whatever the options say: requests are counted and repeated above, and each store has a client of its own.
_FIXED = {"use_listings_cache": False, "skip_instance_cache": True, "asynchronous": False}
#: The operations that ``s3_additional_kwargs`` may have parameters of.
_OPERATIONS = ("put_object", "get_object", "list_objects_v2", "delete_objects", "create_multipart_upload")


def connect(options: Mapping[str, Any], url: str, secrets: Collection[str]) -> Any:
    """A connected ``s3fs.S3FileSystem``. Sends no request, but may read files and ask for credentials.

    Args:
        options: The ``storage_options``.
        url: The store, for messages.
        secrets: Texts that no message may contain.

    Raises:
        InvalidConfigError: s3fs is not installed, its HTTP client would repeat requests, or an option is wrong.
    """
    try:
        import s3fs
    except ImportError:
        raise InvalidConfigError("s3:// URLs need the package s3fs: install txnstore[s3].") from None
    arguments = copy.deepcopy(dict(options))
    config = {
        "max_pool_connections": 64,
        "http_session_cls": single_attempt_session(),
        **arguments.pop("config_kwargs", {}),
        "retries": {"total_max_attempts": 1},
    }
    try:
        files = s3fs.S3FileSystem(**{**arguments, **_FIXED, "loop": own_loop()}, config_kwargs=config)
        if files.session is None:
            files.session = _session(files.kwargs)
        files.connect()
        unknown_name = _not_a_parameter(files, arguments.get("s3_additional_kwargs") or {})
        files.s3.meta.events.register("before-call.s3.HeadBucket", _never_redirected)
        if unknown_name is None:
            return files
        message = f"unexpected keyword argument '{unknown_name}'"
    except Exception as error:  # noqa: BLE001 - Invalid options can make s3fs raise any class.
        message = scrub(f"{type(error).__name__}: {error}", secrets)
    unknown = _UNKNOWN_OPTION.search(message)
    if unknown is not None:
        name = unknown[1]
        raise InvalidConfigError(f"There is no storage option {name!r} for {url}. {_meant_by(name)}")
    raise InvalidConfigError(f"Cannot create a client for {url}: {message}. Check storage_options.")


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


def _meant_by(name: str) -> str:
    close = difflib.get_close_matches(name, _OPTIONS, n=1)
    return _MEANT.get(name) or (f"Did you mean {close[0]}?" if close else "Its options are those of s3fs.S3FileSystem.")


#: What botocore has parsed of its descriptions of services, by process and folders (``AWS_DATA_PATH``).
_LOADERS: dict[tuple[int, str | None], Any] = {}


def _session(arguments: Mapping[str, Any]) -> Any:
    """A session as s3fs would make it, with credentials and settings of its own. It parses botocore's description of
    S3 at most once in this process, instead of once in each session, which costs more than the rest of a client.

    Clients only read what is parsed, and s3fs makes all clients of a process in one thread, its event loop. A fork may
    find that thread in the middle, so a child parses again.
    """
    from aiobotocore.session import AioSession
    from botocore.loaders import create_loader

    session = AioSession(**arguments)
    folders = session.get_config_variable("data_path")
    loader = _LOADERS.setdefault((os.getpid(), folders), create_loader(folders))
    session.register_component("data_loader", loader)
    return session


def _not_a_parameter(files: Any, names: Mapping[str, Any]) -> str | None:
    """A name in ``s3_additional_kwargs`` that no request for an object has; it would be ignored."""
    accepted = frozenset[str]().union(*(parameters(files.s3, operation) for operation in _OPERATIONS))
    return next((name for name in names if name not in accepted), None)


def _never_redirected(params: dict[str, Any], **_: object) -> None:
    """Keep botocore from following a redirect of the request by which it follows redirects.

    It asks for the region of a bucket by HeadBucket; a server that answers this with 301, and without a region, would
    be asked again until the stack is exhausted.
    """
    params["context"].setdefault("s3_redirect", {})["redirected"] = True


def check_options(options: Mapping[str, Any]) -> None:
    """Check those whose errors the libraries report late, or as something else.

    Raises:
        InvalidConfigError: The ``endpoint_url`` contains credentials or a query, or is no URL of a server; or a timeout
            or the number of connections is not a positive number.
    """
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
    """The values of the options that no message may contain."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from secrets_in(value)
        elif name in _SECRET_NAMES and isinstance(value, str) and value:
            yield value
