"""Asks before a command deletes, resets or aborts: the plan first, then the question, both on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from txnstore.cli.context import CommandError

F = TypeVar("F", bound=Callable[..., Any])


def yes_option(function: F) -> F:
    """The option ``--yes`` of a command that asks."""
    return click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal.")(function)


def must_ask(action: str, *, yes: bool, dry_run: bool | None = None) -> bool:
    """Whether the command has to ask before it acts.

    Call it first: a refused command makes no request. For a command on one named object, call it after the object was
    found, so that a missing object is reported before the question.

    Args:
        action: What the command does, as in ``delete topic 'orders'``.
        yes: Whether ``--yes`` was given.
        dry_run: Whether ``--dry-run`` was given; None if the command has no such option.

    Raises:
        click.UsageError: The command has to ask, but there is no terminal.
    """
    if yes or dry_run:
        return False
    if can_ask():
        return True
    alternative = "" if dry_run is None else ", or look at the plan with --dry-run"
    msg = f"there is no terminal to ask whether to {action}: confirm with --yes{alternative}"
    raise click.UsageError(msg)


def can_ask() -> bool:
    """Whether there is a terminal to ask on."""
    return is_terminal(sys.stdin) and is_terminal(sys.stderr)


def ask(question: str) -> None:
    """Ask the question; an answer other than yes ends the command.

    Raises:
        CommandError: The answer is no.
        click.Abort: The question was interrupted.
    """
    if not click.confirm(question, err=True):
        msg = "not confirmed, so nothing was changed"
        raise CommandError(msg)


def is_terminal(stream: Any) -> bool:
    """Whether a stream is open, and a terminal."""
    return stream is not None and not stream.closed and stream.isatty()
