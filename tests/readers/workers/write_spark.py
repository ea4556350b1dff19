"""Executes statements of Spark on the tables of stores; the argument is the jar of Iceberg's runtime for it.

A request has ``warehouse``, the location of a store, ``statement``, in which ``{catalog}`` is the catalog of it, and
``out``, the path of the Arrow file.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from typing import Any

import pyarrow as pa

from tests.readers.workers.read_spark import new_session
from tests.readers.workers.serving import Request, serve


def main() -> None:
    unused = tempfile.mkdtemp()
    session = new_session(sys.argv[1], unused)
    catalogs: dict[str, str] = {}

    def execute(request: Request) -> Any:
        warehouse = request["warehouse"]
        if warehouse not in catalogs:
            name = catalogs[warehouse] = f"c{len(catalogs)}"
            session.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
            session.conf.set(f"spark.sql.catalog.{name}.type", "hadoop")
            session.conf.set(f"spark.sql.catalog.{name}.warehouse", warehouse)
            session.conf.set(f"spark.sql.catalog.{name}.cache-enabled", "false")
        result = session.sql(request["statement"].format(catalog=catalogs[warehouse]))
        return result.toArrow() if result.columns else pa.table({"nothing": pa.array([], pa.int64())})

    try:
        serve(execute)
    finally:
        session.stop()
        shutil.rmtree(unused, ignore_errors=True)


if __name__ == "__main__":
    main()
