"""With which processes a process shares entries: the setting, of the call and of the environment."""

from __future__ import annotations

import pytest

from txnstore.chain.committer.sharing import VARIABLE, Address, Sharing, sharing_of
from txnstore.errors import InvalidConfigError

SETTINGS = {
    "on": Sharing(True),
    "off": Sharing(False),
    "tcp://": Sharing(True, Address("", 0)),
    "tcp://10.0.0.7": Sharing(True, Address("10.0.0.7", 0)),
    "tcp://loader-1.internal:7300": Sharing(True, Address("loader-1.internal", 7300)),
    "tcp://[fd00::7]:7300": Sharing(True, Address("fd00::7", 7300)),
}
WRONG = (
    "", "1", "ON", "yes", "tcp:", "tcp:/", "tcp://:7300", "tcp://host:port", "tcp://host:70000", "tcp://host:7300/",
    "tcp://user@host:7300", "tcp://host:7300?tls=off", "udp://host:7300", "host:7300", "tcp://0.0.0.0:7300", "tcp://[::]",
)  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_of_the_call_or_of_the_environment(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, setting)
    assert sharing_of(None) == SETTINGS[setting]
    monkeypatch.setenv(VARIABLE, "maybe")
    assert sharing_of(setting) == SETTINGS[setting]


def test_processes_of_one_machine_share_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert sharing_of(None) == Sharing(True)


@pytest.mark.parametrize("setting", WRONG)
def test_a_setting_that_means_nothing_is_refused(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, setting)
    with pytest.raises(InvalidConfigError, match=f"^{VARIABLE} is .*: write on, off, tcp://HOST:PORT"):
        sharing_of(None)
    with pytest.raises(InvalidConfigError, match=r"^committer is .*: write on, off"):
        sharing_of(setting)
