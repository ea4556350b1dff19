"""What the options and the environment give without botocore is what its client and that of s3fs have."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.session import Session

from txnstore.storage.s3.client import connect
from txnstore.storage.s3.loop import own_loop, run_on
from txnstore.storage.s3.settings import Credentials, Settings, plain_settings, settings_of

KEYS = {"key": "one", "secret": "two"}
OF_THE_ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "env", "AWS_SECRET_ACCESS_KEY": "env-secret"}
NOWHERE = "http://127.0.0.1:9"
PAIR = "aws_access_key_id = file\naws_secret_access_key = file-secret\n"
CREDENTIALS = f"[default]\n{PAIR}"
WITH_REGION = f"{CREDENTIALS}region = us-west-2\n"

#: Options, environment, and files of AWS, which plain settings are read from.
PLAIN: dict[str, tuple[Mapping[str, Any], Mapping[str, str], Mapping[str, str]]] = {
    "keys": (KEYS, {}, {}),
    "keys with token": ({**KEYS, "token": "three"}, {}, {}),
    "keys before those of the environment": (KEYS, {**OF_THE_ENVIRONMENT, "AWS_SESSION_TOKEN": "other"}, {}),
    "anon": ({"anon": True}, OF_THE_ENVIRONMENT, {}),
    "endpoint": ({**KEYS, "endpoint_url": NOWHERE}, {}, {}),
    "endpoint of the client": ({**KEYS, "client_kwargs": {"endpoint_url": NOWHERE}}, {}, {}),
    "region": ({**KEYS, "client_kwargs": {"region_name": "eu-central-1"}}, {"AWS_DEFAULT_REGION": "us-west-2"}, {}),
    "region and endpoint": ({**KEYS, "endpoint_url": NOWHERE, "client_kwargs": {"region_name": "eu-west-3"}}, {}, {}),
    "region of another server": (
        {**KEYS, "endpoint_url": NOWHERE, "client_kwargs": {"region_name": "auto"}},
        {},
        {},
    ),
    "us-east-1": ({**KEYS, "client_kwargs": {"region_name": "us-east-1"}}, {}, {}),
    "region of another variable": (KEYS, {"AWS_REGION": "eu-west-1"}, {}),
    "environment": ({}, {**OF_THE_ENVIRONMENT, "AWS_DEFAULT_REGION": "ap-southeast-2"}, {}),
    "environment with token": ({}, {**OF_THE_ENVIRONMENT, "AWS_SESSION_TOKEN": "token"}, {}),
    "endpoint of the environment": (KEYS, {"AWS_ENDPOINT_URL": NOWHERE}, {}),
    "endpoint of S3": (KEYS, {"AWS_ENDPOINT_URL": "http://127.0.0.1:10", "AWS_ENDPOINT_URL_S3": NOWHERE}, {}),
    "timeouts": ({**KEYS, "config_kwargs": {"connect_timeout": 2, "read_timeout": 60}}, {}, {}),
    "style": ({**KEYS, "config_kwargs": {"s3": {"addressing_style": "path"}}}, {}, {}),
    "verify": ({**KEYS, "client_kwargs": {"verify": False}}, {}, {}),
    "trusted": ({**KEYS, "client_kwargs": {"verify": "/etc/ssl/cert.pem"}}, {}, {}),
    "trusted by the environment": (KEYS, {"AWS_CA_BUNDLE": "/etc/ssl/cert.pem"}, {}),
    "trusted before the environment": ({**KEYS, "client_kwargs": {"verify": False}}, {"AWS_CA_BUNDLE": "/other"}, {}),
    "encryption": (
        {**KEYS, "s3_additional_kwargs": {"ServerSideEncryption": "AES256"}, "requester_pays": True},
        {},
        {},
    ),
    "config": (KEYS, {}, {"config": "[default]\nregion = eu-north-1\noutput = json\n[profile x]\nrole_arn = arn\n"}),
    "credentials": ({}, {}, {"config": "[default]\nregion = eu-north-1\n", "credentials": CREDENTIALS}),
    "credentials with token": ({}, {}, {"credentials": f"{CREDENTIALS}aws_session_token = file-token\n"}),
    "environment before files": ({}, OF_THE_ENVIRONMENT, {"credentials": CREDENTIALS}),
    "default among the profiles": ({}, {}, {"config": f"[profile default]\n{PAIR}region = eu-west-1\n"}),
    "region of the credentials": ({}, {}, {"config": "[default]\nregion = eu-west-1\n", "credentials": WITH_REGION}),
}
#: The same of what only botocore reads.
MORE: dict[str, tuple[Mapping[str, Any], Mapping[str, str], Mapping[str, str]]] = {
    "names of fsspec": ({"username": "one", "password": "two"}, {}, {}),
    "keys of the client": ({"client_kwargs": {"aws_access_key_id": "one", "aws_secret_access_key": "two"}}, {}, {}),
    "keys twice": ({**KEYS, "client_kwargs": {"aws_access_key_id": "one"}}, {}, {}),
    "a profile": ({"profile": "x"}, OF_THE_ENVIRONMENT, {"config": f"[profile x]\n{PAIR}region = eu-west-3\n"}),
    "a profile of the environment": ({}, {"AWS_PROFILE": "x"}, {"config": f"[profile x]\n{PAIR}"}),
    "a server in a file": (KEYS, {}, {"config": f"[default]\nendpoint_url = {NOWHERE}\n"}),
    "a style in a file": (KEYS, {}, {"config": "[default]\ns3 =\n  addressing_style = path\n"}),
    "without TLS": ({**KEYS, "use_ssl": False}, {}, {}),
    "China": ({**KEYS, "client_kwargs": {"region_name": "cn-north-1"}}, {}, {}),
    "region of the configuration": ({**KEYS, "config_kwargs": {"region_name": "eu-west-3"}}, {}, {}),
}
#: The same of what is left to botocore.
OTHER: dict[str, tuple[Mapping[str, Any], Mapping[str, str], Mapping[str, str]]] = {
    "nothing": ({}, {}, {}),
    "half of the keys": ({"key": "one"}, {}, {}),
    "half of the environment": ({}, {"AWS_ACCESS_KEY_ID": "env"}, {"credentials": CREDENTIALS}),
    "a token alone": ({"token": "three"}, OF_THE_ENVIRONMENT, {}),
    "anonymous with keys": ({**KEYS, "anon": True}, {}, {}),
    "profile": ({"profile": "x"}, OF_THE_ENVIRONMENT, {}),
    "profile of the environment": (KEYS, {"AWS_PROFILE": "x"}, {}),
    "another file": (KEYS, {"AWS_CONFIG_FILE": "/other"}, {}),
    "settings of fsspec": (KEYS, {"FSSPEC_S3_ENDPOINT_URL": NOWHERE}, {}),
    "an empty variable": (KEYS, {"AWS_ENDPOINT_URL": ""}, {}),
    "a variable of a later botocore": (KEYS, {"AWS_NEW": "1"}, {}),
    "another cloud": ({**KEYS, "client_kwargs": {"region_name": "cn-north-1"}}, {}, {}),
    "a region without a pattern": ({**KEYS, "client_kwargs": {"region_name": "us-gov-west-1"}}, {}, {}),
    "two endpoints": ({**KEYS, "endpoint_url": NOWHERE, "client_kwargs": {"endpoint_url": NOWHERE}}, {}, {}),
    "empty": ({**KEYS, "endpoint_url": ""}, {}, {}),
    "a wrong type": ({**KEYS, "config_kwargs": {"read_timeout": "60"}}, {}, {}),
    "a misspelt option": ({**KEYS, "region": "eu-west-1"}, {}, {}),
    "an option of the client": ({**KEYS, "client_kwargs": {"api_version": "1"}}, {}, {}),
    "acceleration": ({**KEYS, "config_kwargs": {"s3": {"use_accelerate_endpoint": True}}}, {}, {}),
    "no style": ({**KEYS, "config_kwargs": {"s3": {"addressing_style": "bogus"}}}, {}, {}),
    "no region": ({**KEYS, "endpoint_url": NOWHERE, "client_kwargs": {"region_name": "eu west"}}, {}, {}),
    "no region of the environment": ({**KEYS, "endpoint_url": NOWHERE}, {"AWS_DEFAULT_REGION": "-"}, {}),
    "a region for another kind of endpoint": (
        {**KEYS, "endpoint_url": NOWHERE, "client_kwargs": {"region_name": "fips-us-east-1"}},
        {},
        {},
    ),
    "no port": (KEYS, {"AWS_ENDPOINT_URL": "http://127.0.0.1:99999"}, {}),
    "no host": (KEYS, {"AWS_ENDPOINT_URL": "http://[::1"}, {}),
    "no scheme": (KEYS, {"AWS_ENDPOINT_URL": "127.0.0.1:9"}, {}),
    "endpoint in a file": (KEYS, {}, {"config": f"[default]\nendpoint_url = {NOWHERE}\n"}),
    "style in a file": (KEYS, {}, {"config": "[default]\ns3 =\n  addressing_style = path\n"}),
    "role": ({}, {}, {"config": "[default]\nrole_arn = arn\nsource_profile = x\n"}),
    "process": ({}, {}, {"config": "[default]\ncredential_process = /bin/x\n", "credentials": CREDENTIALS}),
    "damaged file": (KEYS, {}, {"config": "region = eu-north-1\n"}),
    "credentials in both files": ({}, {}, {"config": CREDENTIALS, "credentials": CREDENTIALS}),
    "token in the other file": ({}, {}, {"config": "[default]\naws_session_token = t\n", "credentials": CREDENTIALS}),
    "values of all profiles": ({}, {}, {"config": "[DEFAULT]\nregion = eu-west-3\n", "credentials": CREDENTIALS}),
    "quoted profile": (KEYS, {}, {"config": "[profile 'default']\nregion = eu-west-3\n"}),
    "a value of two lines": ({}, {}, {"credentials": f"{CREDENTIALS}aws_session_token =\n  a = b\n"}),
    "an empty value": ({}, {}, {"credentials": f"{CREDENTIALS}aws_session_token =\n"}),
}
#: Names of sections that are the default profile to botocore, in one of the files or in both, and that are not.
SECTIONS = ("default", "profile default", 'profile "default"', " default ", "DEFAULT")
#: What they may contain.
PARTS = (
    "", "aws_access_key_id", "aws_secret_access_key", "aws_session_token", "aws_access_key_id aws_secret_access_key",
    "aws_access_key_id aws_secret_access_key aws_session_token", "region",
)  # fmt: skip


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Mapping[str, str]]:
    """Makes an environment with these variables and files, and no others."""

    def make(variables: Mapping[str, str], files: Mapping[str, str]) -> Mapping[str, str]:
        for name in [*os.environ]:
            if name.startswith(("AWS_", "FSSPEC_")):
                monkeypatch.delenv(name)
        (tmp_path / ".aws").mkdir()
        for name, text in files.items():
            (tmp_path / ".aws" / name).write_text(text)
        environment = {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true", **variables}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return environment

    return make


@pytest.mark.parametrize(("options", "variables", "files"), PLAIN.values(), ids=PLAIN)
def test_plain_settings_are_those_of_the_client(
    given: Callable[..., Mapping[str, str]],
    options: Mapping[str, Any],
    variables: Mapping[str, str],
    files: Mapping[str, str],
) -> None:
    environment = given(variables, files)
    plain = plain_settings(options, environment)
    expected = settings_of(options)
    assert plain is not None
    assert _signed_with(plain) == _signed_with(expected)
    assert replace(plain, credentials=_none) == replace(expected, credentials=_none, config=None)


@pytest.mark.parametrize(("options", "variables", "files"), [*PLAIN.values(), *MORE.values()], ids=[*PLAIN, *MORE])
def test_botocore_gives_what_s3fs_makes_of_it(
    given: Callable[..., Mapping[str, str]],
    options: Mapping[str, Any],
    variables: Mapping[str, str],
    files: Mapping[str, str],
) -> None:
    given(variables, files)
    settings = settings_of(options)
    client = connect(options, "s3://bucket", ())
    try:
        meta = client.s3.meta
        assert (settings.endpoint, settings.region) == (meta.endpoint_url, meta.region_name)
        assert settings.style == (meta.config.s3 or {}).get("addressing_style")
        assert settings.connect_timeout == meta.config.connect_timeout
        assert settings.read_timeout == meta.config.read_timeout
        assert _signed_with(settings) == run_on(own_loop(), lambda: _of_s3fs(client)).result()
    finally:
        client.close_session(client.loop, client.s3)


def _signed_with(settings: Settings) -> Credentials | None:
    return run_on(own_loop(), settings.credentials).result()


async def _of_s3fs(client: Any) -> Credentials | None:
    if client.anon:
        return None
    frozen = await client.s3._request_signer._credentials.get_frozen_credentials()
    return (frozen.access_key, frozen.secret_key, frozen.token)


@pytest.mark.parametrize(("options", "variables", "files"), OTHER.values(), ids=OTHER)
def test_all_else_is_left_to_botocore(
    given: Callable[..., Mapping[str, str]],
    options: Mapping[str, Any],
    variables: Mapping[str, str],
    files: Mapping[str, str],
) -> None:
    assert plain_settings(options, given(variables, files)) is None


def test_configuration_of_fsspec_is_left_to_it(given: Callable[..., Mapping[str, str]]) -> None:
    environment = given({}, {})
    Path(environment["HOME"], ".config/fsspec").mkdir(parents=True)
    assert plain_settings(KEYS, environment) is None


@pytest.mark.parametrize("section", SECTIONS)
def test_files_mean_what_botocore_makes_of_them(given: Callable[..., Mapping[str, str]], section: str) -> None:
    """Both may have parts of the credentials, which are never put together, in sections with any of the names."""
    environment = given({}, {})
    folder = Path(environment["HOME"], ".aws")
    plain_ones = 0
    for parts, other, other_parts in itertools.product(PARTS, SECTIONS, PARTS):
        (folder / "config").write_text(_section(section, parts, "eu-west-1"))
        (folder / "credentials").write_text(_section(other, other_parts, "us-west-2"))
        plain = plain_settings({}, environment)
        if plain is not None:
            plain_ones += 1
            session = Session()
            found = session.get_credentials()
            assert found is not None, (parts, other, other_parts)
            frozen = found.get_frozen_credentials()
            assert _signed_with(plain) == (
                frozen.access_key,
                frozen.secret_key,
                frozen.token,
            )
            assert plain.region == (session.get_config_variable("region") or "us-east-1")
    assert plain_ones or section not in SECTIONS[:2]


def _section(name: str, parts: str, region: str) -> str:
    lines = (f"{part} = {region if part == 'region' else f'{part} for {region}'}\n" for part in parts.split())
    return f"[{name}]\n{''.join(lines)}" + "[default]\n" * (name == "DEFAULT")  # Which takes what all profiles have.


async def _none() -> None:
    return None
