"""A small local session of Spark, and a home of Spark in which Python processes start three times as fast.

Spark puts its own archive of PySpark in front of the path of every Python process that it starts. Modules of an archive
are compiled at each start, which takes a second of processor time; and Spark gives up on the process of a streaming
source after 10 seconds, which a busy machine may need for that. Without the archive, the processes import the installed
PySpark, which is compiled already.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from txnstore.cli.demo.spark import link_spark_home as link_spark_home  # noqa: PLC0414 - for all users of this module

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROOT = Path(__file__).parents[2]
_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
}

#: hadoop-aws in the release of PySpark's Hadoop, with the SDK that it was built with: 18 MB in place of the 0.7 GB of
#: the SDK's bundle, which has the clients of all services. Spark fetches it once, into its Ivy cache.
S3A = {
    "spark.jars.packages": ",".join(
        [
            "org.apache.hadoop:hadoop-aws:3.5.0",
            *(f"software.amazon.awssdk:{name}:2.35.4" for name in ("s3-transfer-manager", "apache-client", "sts")),
        ]
    ),
    "spark.jars.excludes": "software.amazon.awssdk:bundle,org.slf4j:slf4j-api,org.wildfly.openssl:wildfly-openssl",
}


def environment(home: Path) -> dict[str, str]:
    """What the JVM must start with, and its Python processes inherit: this interpreter, the project on their path."""
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONWARNINGS": "ignore",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(home),
        "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


def local_session(name: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session with two cores; a task may fail once, the second time its job fails with it."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,2]").appName(name)
    for option, value in {**_SETTINGS, **(settings or {})}.items():
        builder = builder.config(option, value)
    return builder.getOrCreate()
