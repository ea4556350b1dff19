"""The job of the demo, a separate process: consumes flights and produces delays in transactions.

``python -m txnstore.cli.demo.job`` reads its configuration, one JSON object, from standard input, and reports its
progress as JSON lines on standard output. With ``pause_after`` *n*, it pauses in the middle of the transaction after
the first *n* ones, with a part of the records in the log, until it reads a line or the end of its standard input.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from txnstore.cli.demo.data import DELAYS, FLIGHTS, GROUP, JOB, delays
from txnstore.cli.demo.process import report

if TYPE_CHECKING:
    import pyarrow as pa

    from txnstore.consumer import Consumer
    from txnstore.producer import Producer


def main() -> None:
    """Run the job until all flights are done."""
    import txnstore
    from txnstore.errors import ProducerFencedError

    config = json.loads(sys.stdin.readline())
    # Create the producer first: it fences the previous instance of the job and aborts its open transaction.
    with (
        txnstore.open(config["url"], config["storage_options"] or None) as store,
        store.producer(transactional_id=JOB, transaction_timeout=600.0) as producer,
    ):
        report("started", producer_id=producer.producer_id, epoch=producer.epoch)
        try:
            # A static member: the next instance of the job gets the partitions without waiting for a session timeout.
            with store.consumer([FLIGHTS], group=GROUP, group_instance_id=JOB) as consumer:
                _work(consumer, producer, config["batch"], config["pause_after"])
        except ProducerFencedError as error:
            report("fenced", error=str(error))
            return
    report("finished")


def _work(consumer: Consumer, producer: Producer, batch: int, pause_after: int | None) -> None:
    """Process all flights, one transaction for each batch, and pause in one of them."""
    transactions = 0
    while (table := consumer.poll_table(max_records=batch)).num_rows:
        producer.begin_transaction()
        _send(consumer, producer, delays(table), pause=transactions == pause_after)
        producer.commit_transaction()
        transactions += 1
        report("committed", records=table.num_rows)


def _send(consumer: Consumer, producer: Producer, table: pa.Table, *, pause: bool) -> None:
    """Send the records of a transaction and the positions of the group after them."""
    half = table.num_rows // 2 if pause else 0
    if pause:
        producer.send_table(DELAYS, table.slice(0, half))
        producer.flush()
        report("flushed", records=half)
        sys.stdin.readline()
    producer.send_table(DELAYS, table.slice(half))
    positions = {tp: consumer.position(tp) for tp in consumer.assignment()}
    producer.send_offsets(positions, consumer.group_metadata())


if __name__ == "__main__":
    main()
