"""``metrics``: the state of a store for a monitoring system."""

from __future__ import annotations

from dataclasses import asdict

import click

from txnstore.cli.context import App, pass_app, shared_options


@click.command()
@click.option(
    "--process",
    is_flag=True,
    help="Also print the metrics of this process: the requests that this command made, and their durations.",
)
@shared_options()
@pass_app
def metrics(app: App, process: bool) -> None:
    """Print the state of the store in Prometheus's text format: offsets, lag, open transactions, checkpoints.

    For the textfile collector of the node exporter, run it by cron, and rename its output into place:
    `txnstore metrics > orders.tmp && mv orders.tmp orders.prom`. With --json: one JSON object. Nothing is written
    to the store.
    """
    from txnstore.store import Store

    with Store(app.connect()) as store:
        if app.out.as_json:
            values = asdict(store.metrics(status=True))
            app.out.record(values if process else values["status"])
        else:
            app.out.write(store.prometheus(process=process).encode())
