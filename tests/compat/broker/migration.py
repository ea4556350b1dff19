"""Migrates a topic from a broker with the example for Spark, twice, and compares the records.

``python -m tests.compat.broker.migration KAFKA SPARK``: the folders with the jars of a Kafka release, and of Spark's
source for Kafka. ``python -m tests.harness migration`` fetches both. Exit status 1 if a record is lost, repeated or
changed.
"""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

import txnstore
from tests.compat.broker.client import ClientProducer
from tests.compat.broker.running import RunningBroker
from tests.helpers.spark_home import environment, link_spark_home, local_session

_EXAMPLE = Path(__file__).parents[3] / "examples" / "spark_migrate_kafka.py"
_TOPIC, _PARTITIONS, _RECORDS = "orders", 3, 60
_AT = 1_700_000_000_000


def main(jars: Path, connector: Path) -> int:
    """Run it in a temporary folder; returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="migration-") as folder, RunningBroker(jars) as broker:
        expected = _produce(broker)
        home = Path(folder, "spark")
        home.mkdir()
        os.environ.update(environment(link_spark_home(home)))
        spark = local_session("migration", {"spark.jars": ",".join(map(str, sorted(connector.glob("*.jar"))))})
        url = str(Path(folder, "store"))
        for _ in range(2):
            runpy.run_path(str(_EXAMPLE))["migrate"](spark, broker.cluster.address, url, _TOPIC)
        spark.stop()
        with txnstore.open(url) as store:
            migrated = _records(store)
    if migrated != expected:
        sys.stderr.write(f"expected {expected}\nfound {migrated}\n")
        return 1
    sys.stdout.write(f"{len(migrated)} records of Kafka {broker.cluster.version} migrated once by two runs\n")
    return 0


def _produce(broker: RunningBroker) -> list[dict[str, Any]]:
    """Commit records to the topic, and abort some; returns those that are committed, in the order of the partitions."""
    new_topic = broker.machine.kafka.clients.admin.NewTopic(_TOPIC, _PARTITIONS, 1)
    broker.admin.createTopics([new_topic]).all().get()
    producer = ClientProducer(broker.machine, broker.cluster, "shop", 60_000)
    records: list[dict[str, Any]] = []
    for number in range(_RECORDS):
        if number % 10 == 0:
            producer.begin()
        record: dict[str, Any] = {
            "partition": f"{_TOPIC}-{number % _PARTITIONS}",
            "key": f"k{number % 7}" if number % 5 else None,
            "value": str(number),
            "headers": [["h", "x"]] if number % 2 else [],
            "timestamp": _AT + number,
        }
        producer.send(record)
        records.append(record)
        if number % 10 == 9:
            producer.flush()
            if number == 29:
                producer.abort()
                del records[20:]
            else:
                producer.commit()
    producer.close()
    return sorted(records, key=lambda record: record["partition"])


def _records(store: txnstore.Store) -> list[dict[str, Any]]:
    rows = store.scan(_TOPIC).to_table().sort_by([("_partition", "ascending"), ("_offset", "ascending")]).to_pylist()
    return [
        {
            "partition": f"{_TOPIC}-{row['_partition']}",
            "key": None if row["key"] is None else row["key"].decode(),
            "value": row["value"].decode(),
            "headers": [[each["key"], each["value"].decode()] for each in row["headers"] or []],
            "timestamp": round(row["_timestamp"].timestamp() * 1000),
        }
        for row in rows
    ]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
