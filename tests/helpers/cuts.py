"""Cuts of tables that a test writes down, and requests to the catalog that serves them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from txnstore.catalog.iceberg.cut import CutDocument, PublishedTable
from txnstore.catalog.iceberg.location import Location
from txnstore.chain import keys
from txnstore.chain.codec import content_hash
from txnstore.tables.serve.messages import Request, Response
from txnstore.tables.serve.routes import Newest, Router

LOCATION = Location("file:///lake")


class WrittenCuts:
    """Cuts in memory, for a router. The newest one is that of the highest number.

    Attributes:
        cuts: The cuts by number.
        objects: The metadata of tables by key.
        stale: What :attr:`txnstore.tables.serve.routes.Newest.stale` is.
        remembered: The cut that looks find that ask for known cuts; None: the newest one.
    """

    def __init__(self) -> None:
        self.cuts: dict[int, CutDocument] = {}
        self.objects: dict[str, bytes] = {}
        self.stale: str | None = None
        self.remembered: CutDocument | None = None

    def publish(self, versions: Mapping[str, int], *, dropped: tuple[str, ...] = ()) -> CutDocument:
        """The next cut, with these versions of tables."""
        number = max(self.cuts, default=0) + 1
        tables = {name: self._table(name, version, name in dropped) for name, version in versions.items()}
        cut = CutDocument(
            store_id="s", number=number, publication_id=f"p{number}", heads=[number * 10, 3], timestamp=number,
            tables=tables, changed=sorted(tables),
        )  # fmt: skip
        self.cuts[number] = cut
        return cut

    def _table(self, name: str, version: int, dropped: bool) -> PublishedTable:
        key = keys.table_metadata(name, f"{version:05d}.metadata.json")
        # Spaces, which JSON of txnstore does not have: who encodes it again loses them.
        data = self.objects.setdefault(key, f'{{"table":  "{name}",  "version": {version}}}'.encode())
        return PublishedTable(
            topic_id=name, number=version, metadata=key, sha256=content_hash(data), snapshot_id=version, dropped=dropped
        )

    def newest(self, *, uncached: bool = False) -> Newest:
        if self.remembered is not None and not uncached:
            return Newest(self.remembered, self.stale)
        return Newest(self.cuts[max(self.cuts)] if self.cuts else None, self.stale)

    def numbered(self, number: int) -> CutDocument | None:
        return self.cuts.get(number)

    def metadata(self, table: PublishedTable) -> bytes | None:
        return self.objects.get(table.metadata)


def ask(router: Router, target: str, method: str = "GET", **headers: str) -> Response:
    """The response to a request; names of headers have underscores for dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return router.answer(Request(method, target, named))


def document(response: Response) -> Any:
    """The document of a response with status 200."""
    assert response.status == 200, response
    return json.loads(response.body)


def refusal(response: Response) -> tuple[int, str, str]:
    """The status, the kind and the message of an error in Iceberg's form."""
    error = json.loads(response.body)["error"]
    assert set(error) == {"message", "type", "code"}
    assert error["code"] == response.status
    return response.status, error["type"], error["message"]
