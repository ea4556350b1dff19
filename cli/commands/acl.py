"""``acl``: who may do what."""

from __future__ import annotations

import click

from txnstore.cli.commands.acl_policy import policy
from txnstore.cli.context import NounGroup


@click.group(cls=NounGroup)
def acl() -> None:
    """Set who may do what: rules (ACLs), and policies for the storage."""


acl.add_command(policy)
