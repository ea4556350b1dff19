"""What a command does around its work: errors, signals, logs, and the session of an engine."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal

import click
import pytest

from txnstore.cli.app import _report_error, _Termination
from txnstore.cli.context import App
from txnstore.cli.engine import start_engine
from txnstore.cli.logs import printed_logs


def test_an_error_of_the_system_names_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    with os.fdopen(os.dup(1), "w") as standard_output, contextlib.redirect_stdout(standard_output):
        assert _report_error(App(), PermissionError(errno.EACCES, "Permission denied", "/data")) == 1
    assert _report_error(App(), RuntimeError("no")) == 1
    assert capsys.readouterr().err == (
        "error: /data: Permission denied\nerror: RuntimeError: no. Run it again with --debug for a traceback.\n"
    )


def test_a_handler_of_sigterm_is_left_as_it_is() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with _Termination():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        assert signal.signal(signal.SIGTERM, signal.SIG_DFL) is signal.SIG_IGN
        with _Termination():
            assert callable(signal.getsignal(signal.SIGTERM))
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_settings_of_spark_are_for_spark() -> None:
    start_engine("spark", ("spark.master=local[1]",), is_used=False)
    with pytest.raises(click.UsageError, match="--spark-conf needs --engine spark"):
        start_engine("duckdb", ("spark.master=local[1]",), is_used=False)


def test_an_error_that_the_message_of_a_log_record_contains_is_no_field(capsys: pytest.CaptureFixture[str]) -> None:
    with printed_logs(name="txnstore.test"):
        logging.getLogger("txnstore.test").warning("it failed: %s", "no", extra={"error": "no", "key": "it"})
        logging.getLogger("txnstore.test").warning("it failed", extra={"error": "no"})
    assert capsys.readouterr().err == (
        "WARNING txnstore.test: it failed: no key=it\nWARNING txnstore.test: it failed error=no\n"
    )
