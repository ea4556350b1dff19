"""Copies the topic ``in`` to ``out`` exactly once, as a member of a group of KIP-848, until it is killed.

Run as ``python -m tests.helpers.kafka_copier BOOTSTRAP ID``.
"""

from __future__ import annotations

import sys

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

GROUP = "copiers"


def copy(bootstrap: str, name: str) -> None:
    """Copy record by record; a failed transaction is repeated from the committed offsets."""
    common = {"bootstrap.servers": bootstrap, "log_level": 0}
    producer = Producer({**common, "transactional.id": name})
    producer.init_transactions()
    consumer = Consumer(
        {
            **common,
            "group.id": GROUP,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe(["in"])
    while True:
        messages = [message for message in consumer.consume(5, timeout=0.2) if message.error() is None]
        if not messages:
            continue
        producer.begin_transaction()
        try:
            ends: dict[int, int] = {}
            for message in messages:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                producer.produce("out", message.value(), partition=partition)
                ends[partition] = offset + 1
            offsets = [TopicPartition("in", partition, offset) for partition, offset in ends.items()]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 30)
            producer.commit_transaction(30)
        except KafkaException:
            producer.abort_transaction(30)
            owned = consumer.committed(consumer.assignment(), timeout=30)
            for tp in owned:
                consumer.seek(TopicPartition(tp.topic, tp.partition, max(tp.offset, 0)))


if __name__ == "__main__":
    copy(sys.argv[1], sys.argv[2])
