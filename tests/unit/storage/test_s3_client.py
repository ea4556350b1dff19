"""What the clients of S3 stores share, and what they do not. No request is sent."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from aiobotocore.session import AioSession
from botocore.loaders import JSONFileLoader
from fsspec.asyn import sync

from txnstore.errors import InvalidConfigError
from txnstore.storage.s3 import client as s3_client
from txnstore.storage.s3 import settings
from txnstore.storage.s3.store import S3Store

NOWHERE = {"key": "one", "secret": "two", "endpoint_url": "http://127.0.0.1:9"}


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often botocore has parsed each file since the test began, which has no loader yet."""
    counts: Counter[str] = Counter()
    original = JSONFileLoader._load_file

    def count(self: JSONFileLoader, full_path: str, open_method: Any) -> Any:
        if Path(full_path).exists():
            counts[full_path] += 1
        return original(self, full_path, open_method)

    monkeypatch.setattr(JSONFileLoader, "_load_file", count)
    monkeypatch.setattr(settings, "_LOADERS", {})
    return counts


@pytest.fixture
def connect() -> Iterator[Any]:
    """Connects as a store does; the clients are closed after the test."""
    made: list[Any] = []

    def one(**options: Any) -> Any:
        made.append(s3_client.connect({**NOWHERE, **options}, "s3://bucket", ()))
        return made[-1]

    yield one
    for files in made:
        files.close_session(files.loop, files.s3)


def _models(parsed: Counter[str]) -> int:
    """How often the operations of S3 were parsed."""
    return sum(times for path, times in parsed.items() if "/s3/" in path and "service-2.json" in path)


def _key(files: Any) -> str:
    async def frozen() -> Any:
        return await files.s3._request_signer._credentials.get_frozen_credentials()

    access_key: str = sync(files.loop, frozen).access_key
    return access_key


def test_only_the_first_client_of_a_process_parses(parsed: Counter[str], connect: Any) -> None:
    """Other credentials, endpoints and settings need no other description of S3."""
    first = connect()
    assert _models(parsed) == 1
    assert set(parsed.values()) == {1}
    before = dict(parsed)
    second = connect(key="three", endpoint_url="http://127.0.0.1:10", config_kwargs={"read_timeout": 7})
    connect(anon=True)
    assert parsed == before
    assert (_key(first), _key(second)) == ("one", "three")
    assert first.s3.meta.endpoint_url != second.s3.meta.endpoint_url
    assert (first.s3.meta.config.read_timeout, second.s3.meta.config.read_timeout) == (15, 7)
    assert first.session is not second.session


@pytest.mark.slow
def test_clients_that_threads_make_at_once_parse_once(parsed: Counter[str], connect: Any) -> None:
    with ThreadPoolExecutor(8) as pool:
        clients = list(pool.map(lambda number: connect(key=f"key {number}"), range(8)))
    assert set(parsed.values()) == {1}
    assert [_key(files) for files in clients] == [f"key {number}" for number in range(8)]


@pytest.mark.slow
def test_a_child_parses_for_itself(parsed: Counter[str], connect: Any) -> None:
    """Its parent may have been in the middle."""
    connect()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            parsed.clear()
            assert _key(connect(key="child")) == "child"
            code = 0 if _models(parsed) == 1 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert _models(parsed) == 1


@pytest.mark.slow
def test_another_data_path_is_searched(
    parsed: Counter[str], connect: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``AWS_DATA_PATH`` may name descriptions of its own, here one that cannot be parsed."""
    connect()
    wrong = tmp_path / "s3" / "2006-03-01" / "service-2.json"
    wrong.parent.mkdir(parents=True)
    wrong.write_text("{")
    monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path))
    with pytest.raises(InvalidConfigError, match="JSONDecodeError"):
        connect()
    monkeypatch.delenv("AWS_DATA_PATH")
    before = dict(parsed)
    connect()
    assert parsed == before


@pytest.mark.slow
def test_a_profile_has_credentials_of_its_own(
    parsed: Counter[str], connect: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "credentials"
    config.write_text("".join(f"[{name}]\naws_access_key_id={name}\naws_secret_access_key=x\n" for name in "ab"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(config))
    clients = [connect(key=None, secret=None, profile=name) for name in "ab"]
    assert [_key(files) for files in clients] == ["a", "b"]
    assert _models(parsed) == 1
    with pytest.raises(InvalidConfigError, match=r"ProfileNotFound.* \(c\)"):
        connect(key=None, secret=None, profile="c")


def test_a_session_of_the_user_is_kept(parsed: Counter[str], connect: Any) -> None:
    session = AioSession()
    session.user_agent_name = "of the user"
    assert connect(session=session).session.user_agent_name == "of the user"
    assert settings._LOADERS == {}


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_ROLE_ARN"])
def test_another_server_or_user_of_the_environment_is_another_identity(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What was probed through one gateway says nothing of another one with the same bucket."""
    identities = set[str]()
    for value in ("http://127.0.0.1:1", "http://127.0.0.1:2"):
        monkeypatch.setenv(name, value)
        identities.add(S3Store("bucket").identity)
    assert len(identities) == 2
