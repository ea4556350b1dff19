"""``acl policy``: the rules of a principal as a policy for the storage."""

from __future__ import annotations

import json

import click

from txnstore.cli.context import App, CommandError, pass_app, shared_options
from txnstore.phrases import some


@click.command()
@click.argument("principal")
@click.option(
    "--provider",
    type=click.Choice(["aws", "minio"]),
    default="aws",
    show_default=True,
    help="Whose policies: those of MinIO have no condition under which entries can only be created.",
)
@shared_options()
@pass_app
def policy(app: App, principal: str, provider: str) -> None:
    """Print the policy that lets PRINCIPAL do with the bucket what the rules need, and nothing else.

    Standard output is the policy: `txnstore acl policy User:billing > billing.json`. What it cannot do is printed to
    standard error. With --json: one object with the policy, its principal and these notes. If the settings of a topic
    cannot be read, a note names it, the policy is whole, and the exit status is 1.
    """
    with app.operations() as store:
        storage_policy = store.acls.policy(principal, "minio" if provider == "minio" else "aws")
    if app.out.as_json:
        app.out.record(
            {
                "principal": storage_policy.principal,
                "provider": storage_policy.provider,
                "policy": storage_policy.document,
                "notes": list(storage_policy.notes),
            }
        )
    else:
        app.out.line(json.dumps(storage_policy.document, indent=2))
        for note in storage_policy.notes:
            app.out.note(f"note: {note}")
    if storage_policy.unreadable:
        msg = f"the settings of {some(storage_policy.unreadable)} cannot be read; the policy does not depend on them"
        raise CommandError(msg, "To see the damage: txnstore verify")
