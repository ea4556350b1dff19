"""The order of batches that a client sends without waiting for answers."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka
import pytest

import txnstore
from tests.helpers.gateway import serving


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("chains", [1, 3])
def test_batches_of_a_partition_keep_their_order(tmp_path: Path, chains: int, idempotent: bool) -> None:
    """Five requests are in flight at a time; a broker appends them one after the other."""
    with txnstore.create(str(tmp_path), chains) as store:
        store.create_topic("t", partitions=2)
        with serving(store) as gateway:
            settings = {"linger.ms": 0, "batch.num.messages": 3, "enable.idempotence": idempotent}
            producer = confluent_kafka.Producer({"bootstrap.servers": gateway.bootstrap, **settings})
            for number in range(400):
                producer.produce("t", b"%d" % number, partition=number % 2)
            assert producer.flush(60) == 0
        records = store.scan("t", columns=["_partition", "_offset", "value"]).to_table().sort_by("_offset").to_pylist()
        for partition in range(2):
            values = [int(each["value"]) for each in records if each["_partition"] == partition]
            assert values == list(range(partition, 400, 2))
