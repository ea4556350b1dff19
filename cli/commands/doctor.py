"""``doctor``: looks at a store, its storage and what it has to do, and prints the commands to run."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import click

from txnstore.cli.context import App, pass_app, shared_options

_COLUMNS = ["severity", "section", "message", "command"]


@click.command()
@click.option(
    "--probe", is_flag=True, help="Also check by writes below _probe/ that a name is created once, and deletes."
)
@shared_options()
@pass_app
def doctor(app: App, probe: bool) -> int:
    """Look at the store and its storage, and print what to do; the exit status is 1 if something should be done.

    Severities: ok; note: nothing has to be done; warn: the store works, and something should be done; bad: data or
    availability is at risk. Without --probe nothing is written. No data is read.
    """
    from txnstore.compactor import doctor as look

    with app.connect_unloaded(read_only=not probe) as connection, app.progress("looking at the store"):
        report = look(connection, probe=probe)
    if app.out.as_json:
        app.out.record({"ok": report.ok, **asdict(report)})
        return 0 if report.ok else 1
    app.out.rows([asdict(finding) for finding in report.findings], _COLUMNS)
    counts = Counter(finding.severity for finding in report.findings)
    app.out.note(", ".join(f"{count} {severity}" for severity, count in counts.items()))
    return 0 if report.ok else 1
