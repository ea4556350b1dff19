"""The root command and its exit statuses: 0 success, 1 failure, 2 usage, 3 no right, 130 interrupted, 143 ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from txnstore._version import __version__
from txnstore.cli.commands.acl import acl
from txnstore.cli.commands.backup import backup, restore
from txnstore.cli.commands.consume import consume
from txnstore.cli.commands.doctor import doctor
from txnstore.cli.commands.erase import erase
from txnstore.cli.commands.gateway import gateway
from txnstore.cli.commands.group import group
from txnstore.cli.commands.log import log
from txnstore.cli.commands.maintain import maintain
from txnstore.cli.commands.maintenance import checkpoint, compact, expire, vacuum, verify
from txnstore.cli.commands.metrics import metrics
from txnstore.cli.commands.produce import produce
from txnstore.cli.commands.recover import recover
from txnstore.cli.commands.retention import delete_records, retain
from txnstore.cli.commands.sql import sql
from txnstore.cli.commands.store import info, init
from txnstore.cli.commands.table import table
from txnstore.cli.commands.topic import topic
from txnstore.cli.commands.txn import txn
from txnstore.cli.context import App, CommandError, CommandGroup, shared_options
from txnstore.cli.demo.command import demo
from txnstore.errors import (
    ConsumerClosedError,
    FencedInstanceError,
    GroupNotEmptyError,
    GroupNotFoundError,
    IllegalGenerationError,
    InvalidPidMappingError,
    InvalidTxnTimeoutError,
    OffsetOutOfRangeError,
    ProducerClosedError,
    ProducerFencedError,
    ReadOnlyError,
    StorageRefusedError,
    StoreExistsError,
    StoreNotFoundError,
    TopicAuthorizationError,
    TopicExistsError,
    TransactionalIdAuthorizationError,
    TransactionalIdNotFoundError,
    TxnStoreError,
    UnknownMemberError,
    UnsoundStoreError,
)

_REJOIN = "Run the command again: it continues at the committed offsets of the group."
_REPEAT = "Run the command again."
#: The advice for errors, where it differs from that of the library.
_ADVICE: dict[type[Exception], str] = {
    StoreExistsError: "Use the existing store, or add --exist-ok.",
    TopicExistsError: "`txnstore topic show` shows it; --exist-ok accepts an existing topic that is equal.",
    StoreNotFoundError: "Check --store. If a store was here, `txnstore recover` shows what is left of it; "
    "`txnstore init` creates a new one.",
    StorageRefusedError: "",  # The message includes the advice.
    TransactionalIdNotFoundError: "`txnstore txn list` shows all.",
    GroupNotFoundError: "`txnstore group list` shows all.",
    OffsetOutOfRangeError: "Give an offset in that range, or a word for its ends: --help of the command names them.",
    ProducerFencedError: "Another producer uses this --transactional-id now. Run the command again to fence that one.",
    InvalidPidMappingError: _REPEAT,
    ProducerClosedError: _REPEAT,
    ConsumerClosedError: _REPEAT,
    TransactionalIdAuthorizationError: TopicAuthorizationError.advice,
    InvalidTxnTimeoutError: "Give a timeout within these limits.",
    ReadOnlyError: "",  # The message names the operation that needs the right to write.
    UnsoundStoreError: "Look with `txnstore recover --dry-run`; --force vacuums a damaged store, and --foreign ID "
    "deletes the chains of another one.",
    GroupNotEmptyError: "Stop its consumers first, or wait for their session timeout. If their gateways never return, "
    "`txnstore group remove-members` removes the members.",
    IllegalGenerationError: _REJOIN,
    UnknownMemberError: _REJOIN,
    FencedInstanceError: _REJOIN,
}


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@shared_options(hidden=False)
@click.version_option(__version__, prog_name="txnstore", message="%(prog)s %(version)s")
def root() -> None:
    """Kafka's exactly-once transactions on plain object storage.

    The options may be given before or after the command. See `txnstore COMMAND --help` for each command.
    """


for command in (
    init, info, demo, doctor, topic, produce, consume, group, txn, sql, maintain, compact, retain, erase, vacuum,
    expire, verify, recover, checkpoint, backup, restore, log, metrics, acl, gateway, table,
):  # fmt: skip
    root.add_command(command)


topic.add_command(delete_records)


def run(arguments: Sequence[str]) -> int:
    """Run the command line, and return the exit status. Errors are one line on standard error."""
    app = App()
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - Stays open; print would use standard output instead.
    if sys.stdout is None:
        app.out.error("standard output is closed", "Send it somewhere, such as to /dev/null.")
        return 1
    termination = _Termination()
    try:
        with _showing_warnings(app), termination:
            status = root.main(list(arguments), prog_name="txnstore", standalone_mode=False, obj=app)
        app.out.flush()
    except (BrokenPipeError, SystemExit):
        # The reader closed the pipe, such as `head`: click and rich raise SystemExit for this.
        _drop_output()
        return 0
    except (click.Abort, KeyboardInterrupt):
        print("terminated" if termination.was_signaled else "interrupted", file=sys.stderr)
        return 143 if termination.was_signaled else 130
    except Exception as error:  # noqa: BLE001 - The only place that maps errors to exit statuses.
        return _report_error(app, error)
    return status if isinstance(status, int) else 0


class _Termination:
    """Makes SIGTERM interrupt the command in its block: members leave their groups, transactions are aborted.

    Only the first SIGTERM does; a second one, such as to the whole process group, must not stop the clean-up. An
    existing handler of SIGTERM, or its being ignored, is left as it is.
    """

    def __init__(self) -> None:
        self.was_signaled = False
        self._is_installed = False

    def _interrupt(self, *_: object) -> None:
        if not self.was_signaled:
            self.was_signaled = True
            raise KeyboardInterrupt

    def __enter__(self) -> None:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._interrupt)
            self._is_installed = True

    def __exit__(self, *_: object) -> None:
        if self._is_installed:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def _showing_warnings(app: App) -> Iterator[None]:
    """Print each warning of txnstore as one line; other warnings as before."""
    from txnstore.validation import BlockedReadWarning, UnmaintainedStoreWarning

    shown = (BlockedReadWarning, UnmaintainedStoreWarning)
    with warnings.catch_warnings():
        show_other = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **options: Any) -> None:
            if issubclass(category, shown):
                app.out.warning(str(message))
            else:
                show_other(message, category, *where, **options)

        for shown_category in shown:
            warnings.simplefilter("always", shown_category)
        warnings.showwarning = show
        yield


def _report_error(app: App, error: Exception) -> int:
    """Print an error in one line, and return the exit status."""
    if app.debug and not isinstance(error, click.ClickException):
        raise error
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        print(error.format_message(), file=sys.stderr)  # The help text of a group without a command.
        return 2
    if isinstance(error, click.UsageError):
        place = error.ctx.command_path if error.ctx is not None else app.command_path
        app.out.error(error.format_message(), f"See `{place} --help`.")
        return 2
    if isinstance(error, click.ClickException):
        app.out.error(error.format_message())
        return error.exit_code
    if isinstance(error, TxnStoreError | CommandError):
        app.out.error(str(error), _advice(error))
        return 1
    if isinstance(error, OSError):
        _drop_output()
        place = f"{error.filename}: " if error.filename is not None else ""
        app.out.error(f"{place}{error.strerror or error}")
        return 1
    app.out.error(f"{type(error).__name__}: {error}", "Run it again with --debug for a traceback.")
    return 1


def _advice(error: TxnStoreError | CommandError) -> str:
    return _ADVICE.get(type(error), error.advice)


def _drop_output() -> None:
    """Discard buffered output, so that it does not fail a second time when the process exits."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
