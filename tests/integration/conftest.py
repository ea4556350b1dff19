"""One Spark session for the whole run: starting it costs more than all of its tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.helpers.spark_home import environment, link_spark_home, local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of all tests."""
    home = link_spark_home(tmp_path_factory.mktemp("spark"))
    with pytest.MonkeyPatch.context() as patch:  # The processes of other tests must not inherit it.
        for name, value in environment(home).items():
            patch.setenv(name, value)
        warehouse = str(tmp_path_factory.mktemp("warehouse"))
        settings = {"spark.sql.session.timeZone": "UTC", "spark.sql.warehouse.dir": warehouse}
        session = local_session("txnstore-tests", settings)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
