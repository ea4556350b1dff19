"""The settings of a client for S3 that is not botocore's, from the options and the environment.

Botocore decides what options, variables and configuration files mean, and needs 0.3 s of processor time to be imported.
So :func:`plain_settings` reads what needs no decision: keys that are given as they are, a region, an endpoint. Where
anything else is set that botocore might read, it returns None, and botocore is asked. A test compares the two.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from configparser import Error, RawConfigParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

#: The access key, the secret key, and the session token or None.
Credentials = tuple[str, str, str | None]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a client for one bucket.

    Attributes:
        endpoint: The URL of the server, without the bucket.
        style: The ``addressing_style``: path, virtual, or auto; None: auto.
        region: The region that requests are signed for.
        connect_timeout: In seconds.
        read_timeout: In seconds, of each read from the connection.
        verify: Whether certificates are checked, or the file of the trusted ones; None: as the system does.
        additional: Parameters of each request, by botocore's names.
        requester_pays: Whether the requester pays.
        credentials: Returns those to sign with now; None: requests are not signed.
        config: The ``botocore.config.Config`` that they were read from; None: none was needed.
    """

    endpoint: str
    style: str | None
    region: str
    connect_timeout: float
    read_timeout: float
    verify: bool | str | None
    additional: Mapping[str, Any]
    requester_pays: bool
    credentials: Callable[[], Awaitable[Credentials | None]]
    config: Any = None


def settings_of(options: Mapping[str, Any]) -> Settings:
    """Return the settings that botocore derives from the ``storage_options``, as s3fs passes them, and environment."""
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.exceptions import NoCredentialsError
    from botocore.session import Session

    client_kwargs = {"use_ssl": options.get("use_ssl", True), **(options.get("client_kwargs") or {})}
    config = {
        "connect_timeout": _CONNECT_TIMEOUT,
        "read_timeout": _READ_TIMEOUT,
        **(options.get("config_kwargs") or {}),
    }
    client_options = {
        "endpoint_url": options.get("endpoint_url"),
        "aws_access_key_id": options.get("key") or options.get("username"),
        "aws_secret_access_key": options.get("secret") or options.get("password"),
        "aws_session_token": options.get("token"),
    }
    client_options = {
        name: value for name, value in client_options.items() if value is not None and value != client_kwargs.get(name)
    }
    if options.get("anon"):
        config["signature_version"] = UNSIGNED
    session = Session(profile=options.get("profile"))
    share_descriptions(session)
    client = session.create_client("s3", config=Config(**config), **client_options, **client_kwargs)
    verify = client_kwargs.get("verify")
    key, secret, token = ({**client_options, **client_kwargs}.get(name) for name in _CREDENTIALS)
    session_credentials: list[Any] = []

    async def credentials() -> Credentials | None:
        """Return the credentials that botocore would sign with now; it renews them before they expire."""
        if options.get("anon"):
            return None
        if key and secret:
            return (key, secret, token)
        if not session_credentials:
            session_credentials.append(await asyncio.to_thread(session.get_credentials))
        if session_credentials[0] is None:
            session_credentials.clear()
            raise NoCredentialsError
        needs_renewal = getattr(session_credentials[0], "refresh_needed", bool)()
        freeze = session_credentials[0].get_frozen_credentials
        frozen_credentials = await asyncio.to_thread(freeze) if needs_renewal else freeze()
        return (frozen_credentials.access_key, frozen_credentials.secret_key, frozen_credentials.token)

    return Settings(
        endpoint=client.meta.endpoint_url,
        style=(client.meta.config.s3 or {}).get("addressing_style"),
        region=client.meta.region_name or "us-east-1",
        connect_timeout=client.meta.config.connect_timeout,
        read_timeout=client.meta.config.read_timeout,
        verify=session.get_config_variable("ca_bundle") if verify is None else verify,
        additional=options.get("s3_additional_kwargs") or {},
        requester_pays=bool(options.get("requester_pays")),
        credentials=credentials,
        config=client.meta.config,
    )


#: What botocore has parsed of its descriptions of services, by process and folders (``AWS_DATA_PATH``).
_LOADERS: dict[tuple[int, str | None], Any] = {}


def share_descriptions(session: Any) -> None:
    """Make a session parse botocore's description of S3 at most once in this process, not once more for each client,
    which costs more than the rest of one. Clients only read it. A fork may find a thread in the middle, so a child
    parses again.
    """
    from botocore.loaders import create_loader

    folders = session.get_config_variable("data_path")
    loader = _LOADERS.setdefault((os.getpid(), folders), create_loader(folders))
    session.register_component("data_loader", loader)


# Without botocore -----------------------------------------------------------------------------------------------------

#: The variables that are read here, and those that change nothing where keys are given.
_VARIABLES = {
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE",
    "AWS_REGION", "AWS_EC2_METADATA_DISABLED", "AWS_EXECUTION_ENV", "AWS_PAGER",
}  # fmt: skip
#: The options of s3fs that are read here, with their types, and those that have no effect on the requests of a store.
_OPTIONS: Mapping[str, type | tuple[type, ...]] = {
    "key": str, "secret": str, "token": str, "anon": bool, "endpoint_url": str, "client_kwargs": dict,
    "config_kwargs": dict, "s3_additional_kwargs": dict, "requester_pays": bool, "use_listings_cache": bool,
    "skip_instance_cache": bool,
}  # fmt: skip
_CLIENT: Mapping[str, type | tuple[type, ...]] = {"region_name": str, "endpoint_url": str, "verify": (bool, str)}
_CONFIG: Mapping[str, type | tuple[type, ...]] = {
    "connect_timeout": (int, float), "read_timeout": (int, float), "max_pool_connections": int, "s3": dict,
}  # fmt: skip
_STYLES = ("auto", "path", "virtual")
#: What s3fs has set, in seconds.
_CONNECT_TIMEOUT, _READ_TIMEOUT = 5, 15
#: The lines of a profile that are its credentials; those that are read here, and one that changes nothing.
_CREDENTIALS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_PROFILE = {*_CREDENTIALS, "region", "output"}
#: A section that botocore may take for the default profile, or for a part of each, because of its rules for names.
_DOUBTFUL = re.compile(r"default|[\"'\\]", re.IGNORECASE)
#: Regions that botocore takes as they are, with an endpoint; and those whose servers are below amazonaws.com.
_NAME = re.compile(r"(?!.*fips)[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")
_REGION = re.compile(r"(us|eu|ap|sa|ca|me|af|il|mx)-(north|south|east|west|central|northeast|southeast|northwest)-\d")


def plain_settings(options: Mapping[str, Any], environment: Mapping[str, str]) -> Settings | None:
    """Return the settings from options and environment, if they need no decision of botocore, else None."""
    client, config = (options.get(name) or {} for name in ("client_kwargs", "config_kwargs"))
    if not (
        _has_only_known(options, _OPTIONS) and _has_only_known(client, _CLIENT) and _has_only_known(config, _CONFIG)
    ):
        return None
    style = config.get("s3") or {}
    if style and style not in ({"addressing_style": known_style} for known_style in _STYLES):
        return None
    set_names = [name for name in environment if name.startswith(("AWS_", "FSSPEC_"))]
    if not _VARIABLES.issuperset(set_names) or not all(environment[name] for name in set_names):
        return None
    home = Path(environment.get("HOME") or "~").expanduser()
    profile = _default_profile(home)
    if profile is None or (home / ".config/fsspec").exists():
        return None
    keys = [*_given_keys(options, environment, profile)]
    endpoints = {
        "options": options.get("endpoint_url"),
        "client": client.get("endpoint_url"),
        "variable": environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL"),
    }
    region = client.get("region_name") or environment.get("AWS_DEFAULT_REGION") or profile.get("region")
    endpoint = endpoints["options"] or endpoints["client"] or endpoints["variable"] or _aws_endpoint(region)
    if not keys or endpoint is None or not is_server(endpoint) or (endpoints["options"] and endpoints["client"]):
        return None
    if region is not None and not _NAME.fullmatch(region):
        return None

    async def credentials() -> Credentials | None:
        return keys[0]

    return Settings(
        endpoint=endpoint,
        style=style.get("addressing_style"),
        region=region or "us-east-1",
        connect_timeout=config.get("connect_timeout", _CONNECT_TIMEOUT),
        read_timeout=config.get("read_timeout", _READ_TIMEOUT),
        verify=client.get("verify", environment.get("AWS_CA_BUNDLE")),
        additional=options.get("s3_additional_kwargs") or {},
        requester_pays=options.get("requester_pays", False),
        credentials=credentials,
    )


def is_server(url: str) -> bool:
    """Whether this is the URL of a server of S3."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # Refuses one that is none.
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and url.split() == [url]


def _has_only_known(options: Mapping[str, Any], types: Mapping[str, type | tuple[type, ...]]) -> bool:
    """Whether all names are known, with values of their types. botocore reads an empty value in different ways."""
    return all(
        name in types and isinstance(value, types[name]) and (value or isinstance(value, bool | dict))
        for name, value in options.items()
    )


def _given_keys(
    options: Mapping[str, Any], environment: Mapping[str, str], profile: Mapping[str, str]
) -> Iterator[Credentials | None]:
    """Return the first keys that are given; none if an incomplete pair is given, or if there is none."""
    if "anon" in options:
        if options["anon"] and not {"key", "secret", "token"} & options.keys():
            yield None
        return
    for source, names in (
        (options, ("key", "secret", "token")),
        (environment, tuple(name.upper() for name in _CREDENTIALS)),
        (profile, _CREDENTIALS),
    ):
        key, secret, token = (source.get(name) or None for name in names)
        if key and secret:
            yield (key, secret, token)
        elif key or secret or (token and source is options):
            return


def _aws_endpoint(region: str | None) -> str | None:
    """Return the server of AWS for a region whose name is a part of the server's."""
    if region in (None, "us-east-1"):
        return "https://s3.amazonaws.com"
    return f"https://s3.{region}.amazonaws.com" if region is not None and _REGION.fullmatch(region) else None


def _default_profile(home: Path) -> dict[str, str] | None:
    """Read the default profile in the files of AWS; None if it has settings that are not supported here.

    Botocore merges its other settings, but takes credentials from one file only: where both have some, it decides.
    """
    profile: dict[str, str] = {}
    for name, sections in (("config", ("default", "profile default")), ("credentials", ("default",))):
        parser = RawConfigParser(default_section="")
        try:
            parser.read(home / ".aws" / name, "utf-8")
        except (Error, OSError, UnicodeError):
            return None
        own_sections = [section for section in sections if parser.has_section(section)]
        other_sections = set(parser.sections()).difference(own_sections)
        if len(own_sections) > 1 or any(map(_DOUBTFUL.search, other_sections)):
            return None
        settings = dict(parser.items(own_sections[0])) if own_sections else {}
        if any(name in profile for name in _CREDENTIALS) and any(name in settings for name in _CREDENTIALS):
            return None
        profile |= settings
    is_plain = all(name in _PROFILE and value and "\n" not in value for name, value in profile.items())
    return profile if is_plain else None
