"""``demo``: the whole story on real data. Spark, a crash, a zombie, SQL, a compaction, and a proof of each claim."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from txnstore.cli.context import App, CommandError, pass_app, shared_options

if TYPE_CHECKING:
    from txnstore.cli.demo_story import Setting


@click.command()
@click.option("--keep", is_flag=True, help="Keep the temporary folder, to look around in it.")
@click.option("--limit", type=click.IntRange(min=1_000), help="Only so many of the 336,776 flights, for a short run.")
@shared_options(hidden=False)
@pass_app
def demo(app: App, keep: bool, limit: int | None) -> int:
    """Run the whole story on real data: every flight that left New York City in 2013.

    Spark writes them in transactions. A job turns them into delays, is killed in the middle of a transaction and
    started again, and a zombie of it is fenced. SQL then proves that nothing is missing and nothing is there twice.
    Without --store it uses a temporary folder, also if TXNSTORE_STORE is set. Needs Java 17 and the extra: pip install
    'txnstore[demo]'.
    """
    from txnstore.cli.demo_data import flights
    from txnstore.cli.demo_spark import check_java
    from txnstore.cli.demo_story import tell

    if app.url is not None and app.url.startswith("memory://"):
        msg = "memory:// lives in one process, and the demo has several"
        raise click.UsageError(msg)
    check_java()
    table = flights(limit)
    with _setting(app, keep=keep) as setting:
        return 0 if tell(setting, table) else 1


@contextmanager
def _setting(app: App, *, keep: bool) -> Iterator[Setting]:
    """A store with nothing in its way, and a folder for what else there is."""
    import txnstore
    from txnstore.cli.demo_data import DELAYS, FLIGHTS
    from txnstore.cli.demo_story import Setting

    with ExitStack() as stack:
        if keep:
            folder = Path(tempfile.mkdtemp(prefix="txnstore-demo-"))
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txnstore-demo-")))
        # The demo never takes a store from the environment: that one may be somebody's.
        url, options = (app.url, app.storage_options) if app.url is not None else (str(folder / "store"), {})
        store = stack.enter_context(txnstore.create(url, storage_options=options or None, exist_ok=True))
        taken = {topic.name for topic in store.topics()} & {FLIGHTS, DELAYS}
        if taken:
            msg = f"there is a topic {min(taken)!r} at {store.url} already"
            raise CommandError(msg, "Give the demo a store of its own with --store.")
        yield Setting(app.out, store, url, options, folder)
        if keep or app.url is not None:
            app.out.note(f"\nLook around: txnstore --store {store.url} topic list")
        if keep:
            app.out.note(f"Everything is kept in {folder}")
