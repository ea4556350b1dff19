"""Looks at the tables of a store: whether they are published, how far they are behind, and what was copied."""

from __future__ import annotations

from collections.abc import Iterator

from txnstore.catalog.settings import publishes_table
from txnstore.compactor.doctor.findings import Finding, Severity
from txnstore.connection import Connection
from txnstore.core.view import View
from txnstore.errors import CorruptionError, UnsupportedFormatError
from txnstore.phrases import counted, duration, size, some
from txnstore.tables.check import name_problems
from txnstore.tables.lost_entries import check_lost_entries, exceeds_view
from txnstore.tables.published import published_of

#: Tables that are this much behind the store give a warning, in ms; and copies of so many bytes a note.
_LATE_MS, _MANY_BYTES = 3_600_000, 256 << 20


def table_findings(connection: Connection, view: View) -> Iterator[Finding]:
    """Report tables that are not published, or behind; nothing for a store whose topics have none.

    Costs the requests that find the newest cut, one GET for each chain with newer entries, and four for each table.
    """
    topics = [topic for topic in view.sorted_topics() if publishes_table(topic.config)]
    if not topics:
        return
    sync_command = "txnstore table sync"
    try:
        cut = published_of(connection).newest()
    except (CorruptionError, UnsupportedFormatError) as error:
        yield Finding("tables", "published", Severity.BAD, f"the tables cannot be published: {error}", sync_command)
        return
    tables = {name: table for name, table in cut.tables.items() if not table.dropped} if cut is not None else {}
    unpublished = [
        topic.name for topic in topics if topic.name not in tables or tables[topic.name].topic_id != topic.topic_id
    ]
    if unpublished:
        message = f"the tables of {some(unpublished)} are not published yet"
        yield Finding("tables", "published", Severity.NOTE, message, sync_command)
    if cut is None:
        return
    if exceeds_view(cut, view):
        view = connection.view()  # Others have committed and published since the doctor has begun.
    try:
        if cut.has_tables:
            check_lost_entries(connection, cut, view)
    except CorruptionError as error:
        yield Finding("tables", "lag", Severity.BAD, str(error), f"{sync_command} --rebuild '*'")
        return
    entries_behind, lag_ms = view.sequence - sum(cut.heads), view.timestamp - cut.timestamp
    severity = Severity.WARN if lag_ms > _LATE_MS else Severity.OK
    lag_text = (
        f"{counted(entries_behind, 'entry', 'entries')} and {duration(lag_ms)} behind"
        if entries_behind > 0
        else "up to date"
    )
    message = f"{counted(len(tables), 'table')} in cut {cut.number}, {lag_text}"
    yield Finding("tables", "lag", severity, message, sync_command if severity is Severity.WARN else "")
    outdated = [name for name, table in sorted(tables.items()) if table.moment is not None]
    if outdated:
        message = f"the tables of {some(outdated)} could not be published with the cut, and show an earlier moment"
        yield Finding("tables", "outdated", Severity.BAD, message, sync_command)
    for name, table in sorted(tables.items()):
        for problem in name_problems(connection.objects, name, table):
            yield Finding("tables", "names", Severity.WARN, f"{name}: {problem.message}", sync_command)
    copied_bytes = sum(table.copied_bytes for table in tables.values())
    if copied_bytes > _MANY_BYTES:
        message = f"{size(copied_bytes)} of the tables are copies of rows that no compaction has written yet"
        yield Finding("tables", "copies", Severity.NOTE, message, "txnstore compact")
