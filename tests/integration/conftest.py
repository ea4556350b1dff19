"""One Spark session for the whole run: starting it costs more than all of its tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.helpers.spark_home import S3A, environment, link_spark_home, local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Set by ``python -m tests.harness s3a``: the session has hadoop-aws, which Spark fetches from Maven Central.
_WITH_S3A = bool(os.environ.get("TXNSTORE_S3A"))
collect_ignore = [] if _WITH_S3A else ["spark/test_s3a.py"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of all tests."""
    home = link_spark_home(tmp_path_factory.mktemp("spark"))
    with pytest.MonkeyPatch.context() as patch:  # The processes of other tests must not inherit it.
        for name, value in environment(home).items():
            patch.setenv(name, value)
        warehouse = str(tmp_path_factory.mktemp("warehouse"))
        settings = {"spark.sql.session.timeZone": "UTC", "spark.sql.warehouse.dir": warehouse}
        session = local_session("txnstore-tests", {**settings, **(S3A if _WITH_S3A else {})})
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
