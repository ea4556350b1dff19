"""Reads tables with pyiceberg."""

from __future__ import annotations

import base64
import pickle
from typing import Any

from pyiceberg import expressions as on
from pyiceberg.table import StaticTable

from tests.readers.workers.serving import Request, condition, iceberg_options, serve


def read(request: Request) -> Any:
    table = StaticTable.from_metadata(request["metadata"], iceberg_options(request))
    if request["after"] is not None:
        return table.incremental_append_scan(from_snapshot_id_exclusive=request["after"]).to_arrow()
    where: Any = condition(request, "'{}+00:00'").replace("TRUE", "true")
    if "filter" in request:
        tree = pickle.loads(base64.b64decode(request["filter"]))  # noqa: S301 - the harness has sent it.
        where = on.AlwaysTrue() if tree is None else _expression(*tree)
    columns = tuple(request.get("columns", ["*"]))
    return table.scan(row_filter=where, selected_fields=columns, snapshot_id=request["snapshot"]).to_arrow()


_COMPARISONS = {
    "==": on.EqualTo,
    "!=": on.NotEqualTo,
    "<": on.LessThan,
    "<=": on.LessThanOrEqual,
    ">": on.GreaterThan,
    ">=": on.GreaterThanOrEqual,
    "in": on.In,
    "prefix": on.StartsWith,
    "null": on.IsNull,
    "nan": on.IsNaN,
}


def _expression(kind: str, *of: Any) -> on.BooleanExpression:
    """A condition of :mod:`tests.harness.readers.conditions` as one of pyiceberg's."""
    if kind in {"and", "or", "not"}:
        return {"and": on.And, "or": on.Or, "not": on.Not}[kind](*(_expression(*each) for each in of))
    return _COMPARISONS[kind](*of)


if __name__ == "__main__":
    serve(read)
