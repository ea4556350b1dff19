"""A bar on a terminal, for what takes long; nothing otherwise."""

from __future__ import annotations

import sys
import threading

import pytest

from txnstore.cli import progress
from txnstore.cli.output import Output


class _Terminal:
    """A standard error that is a terminal; ``drawn`` is set when it has shown a text."""

    def __init__(self, text: str) -> None:
        self.written, self.drawn, self._text = "", threading.Event(), text

    def write(self, text: str) -> int:
        self.written += text
        if self._text in self.written:
            self.drawn.set()
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError


def _drawing() -> list[threading.Thread]:
    """The threads that draw; threads that other tests left behind may end at any time."""
    return [thread for thread in threading.enumerate() if thread.name == progress.THREAD]


def test_a_long_command_shows_its_share_or_its_detail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", share := _Terminal("50 %"))
    with progress.progress_bar("sending", total=10, delay=0) as advance:
        advance(5)
        assert share.drawn.wait(120)
        assert len(_drawing()) == 1
    assert "sending" in share.written
    monkeypatch.setattr(sys, "stderr", detail := _Terminal("7 requests"))
    with progress.progress_bar("opening [the store]", detail=lambda: "7 requests", delay=0):
        assert detail.drawn.wait(120)
    assert "opening [the store]" in detail.written
    assert not _drawing()


def test_a_command_that_fails_ends_its_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", _Terminal(""))
    with pytest.raises(KeyboardInterrupt), progress.progress_bar("sending", delay=600):
        raise KeyboardInterrupt
    assert not _drawing()


def test_nothing_is_shown_without_a_terminal_or_with_json(monkeypatch: pytest.MonkeyPatch) -> None:
    with Output().progress("sending") as advance:
        advance(1, total=2)
        assert not _drawing()
    monkeypatch.setattr(sys, "stderr", terminal := _Terminal(""))
    with Output(as_json=True).progress("sending"):
        assert not _drawing()
    assert terminal.written == ""
