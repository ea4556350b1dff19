"""``demo``: shows exactly-once processing on real data, with Spark, a crash, a zombie, SQL and a compaction."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from txnstore.cli.context import App, CommandError, pass_app, shared_options
from txnstore.cli.values import Integer

if TYPE_CHECKING:
    from txnstore.cli.demo.run import DemoRun


@click.command()
@click.option("--keep", is_flag=True, help="Keep the temporary folder.")
@click.option("--limit", type=Integer(min=1_000), help="Use only this number of the 336,776 flights.")
@click.option(
    "--streaming", is_flag=True, help="Let the flights arrive as a stream, and kill the driver of the stream."
)
@shared_options(hidden=False)
@pass_app
def demo(app: App, keep: bool, limit: int | None, streaming: bool) -> int:
    """Show exactly-once processing on real data: all flights that left New York City in 2013.

    Spark writes the flights in transactions. A job computes delays from them; it is killed in the middle of a
    transaction and restarted, and a zombie instance is fenced. SQL then verifies that no record is missing or
    duplicate. With --streaming, Spark computes the delays while the flights arrive; the driver of its query is killed
    in a micro-batch and restarted from its checkpoint. Without --store, the demo uses a temporary folder, even if
    TXNSTORE_STORE is set. It needs Java 17 and the extra ``demo``.
    """
    from txnstore.cli.demo.data import flights
    from txnstore.cli.demo.spark import check_spark
    from txnstore.cli.demo.story import run_demo
    from txnstore.cli.demo.stream_story import run_stream

    if app.url is not None and app.url.startswith("memory://"):
        msg = "memory:// is in the memory of one process, but the demo uses several"
        raise click.UsageError(msg)
    check_spark()
    table = flights(limit)
    with _demo_run(app, keep=keep) as run:
        return 0 if (run_stream if streaming else run_demo)(run, table) else 1


@contextmanager
def _demo_run(app: App, *, keep: bool) -> Iterator[DemoRun]:
    """Create the store, which must not have the topics of the demo, and a folder for logs and Spark's files."""
    import tempfile

    import txnstore
    from txnstore.cli.demo.data import DELAYS, FLIGHTS
    from txnstore.cli.demo.run import DemoRun

    with ExitStack() as stack:
        if keep:
            folder = Path(tempfile.mkdtemp(prefix="txnstore-demo-"))
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txnstore-demo-")))
        # The demo ignores the environment variable: it could name a store with other data.
        url, options = (app.url, app.storage_options) if app.url is not None else (str(folder / "store"), {})
        stack.enter_context(_as_principal(app.principal()))
        store = stack.enter_context(txnstore.create(url, storage_options=options or None, exist_ok=True))
        taken_names = {topic.name for topic in store.topics()} & {FLIGHTS, DELAYS}
        if taken_names:
            msg = f"topic {min(taken_names)!r} already exists at {store.url}"
            raise CommandError(msg, "Give the demo an empty store with --store.")
        yield DemoRun(app.out, store, url, options, folder)
        if keep or app.url is not None:
            app.out.note(f"\nTo explore the store: txnstore --store {store.url} topic list")
        if keep:
            app.out.note(f"All files are in {folder}")
        elif app.url is None:
            app.out.note(
                "\nThe store is deleted now. To keep one and explore it: txnstore demo --keep, or make demo KEEP=1"
            )


@contextmanager
def _as_principal(name: str) -> Iterator[None]:
    """Set the principal of this process, its jobs and Spark's workers while the block runs."""
    from txnstore.connection import PRINCIPAL

    old_name = os.environ.get(PRINCIPAL)
    os.environ[PRINCIPAL] = name
    try:
        yield
    finally:
        if old_name is None:
            del os.environ[PRINCIPAL]
        else:
            os.environ[PRINCIPAL] = old_name
