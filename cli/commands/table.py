"""``table``: topics as Apache Iceberg tables."""

from __future__ import annotations

import click

from txnstore.cli.commands.table_serve import serve
from txnstore.cli.context import NounGroup


@click.group(cls=NounGroup)
def table() -> None:
    """Show topics to engines as Apache Iceberg tables (docs/tables.md)."""


table.add_command(serve)
