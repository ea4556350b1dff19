"""Where the store of a harness is: a folder, or a bucket of an S3 server that it starts."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

from tests.harness.s3.programs import PROGRAMS
from tests.harness.s3.servers import Kind, S3Server
from txnstore.runtime import Runtime

#: ``s3`` is the default server of :class:`~tests.harness.s3.servers.S3Server`.
PLACES = ("local", "s3", *(kind for kind in get_args(Kind) if kind != "given"))


@dataclass(frozen=True)
class Place:
    """A place for a store.

    Attributes:
        url: The URL; there is no store yet.
        options: The storage options.
        server: The server; None for a folder.
    """

    url: str
    options: dict[str, Any] = field(default_factory=dict)
    server: S3Server | None = None


def check_server_kills(store: str) -> None:
    """Raise ValueError if the server forgets its objects when it is killed."""
    if store not in PROGRAMS:
        raise ValueError(f"Only {' and '.join(PROGRAMS)} keep their objects when they are killed, not {store}.")


def place(store: str, folder: Path, stack: ExitStack) -> Place:
    """A place in a folder that does not exist, which has the store, or the objects of the server. The stack ends it."""
    if store == "local":
        return Place(str(folder))
    folder.mkdir()
    server = stack.enter_context(S3Server(None if store == "s3" else cast("Kind", store), folder=folder))
    return Place(server.create_bucket(f"harness-{Runtime().new_id()}"), server.storage_options, server)
