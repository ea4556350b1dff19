"""A process that copies from one topic to another, a transaction after the other, with random aborts (TST-22).

``python -m tests.helpers.copier URL NAME PARTITION RECORDS_A_TRANSACTION SEED``. With a PARTITION it reads that one and
commits its positions under the name of the group alone; with ``-`` it is a member of the group, and commits as one.
It works until SIGTERM, and closes what it has then.
"""

from __future__ import annotations

import random
import signal
import sys
from contextlib import ExitStack

import txnstore
from txnstore.errors import TxnStoreError

SOURCE, TARGET, GROUP, PARTITIONS = "in", "out", "copiers", 3
TIMEOUT = 40.0


class Copier:
    """A producer and a consumer, of a partition or of what the group gives."""

    def __init__(
        self, store: txnstore.Store, name: str, partition: int | None, rng: random.Random, stack: ExitStack
    ) -> None:
        self.rng = rng
        self.producer = stack.enter_context(store.producer(transactional_id=name, transaction_timeout=TIMEOUT))
        if partition is None:
            consumer = store.consumer([SOURCE], group=GROUP, group_instance_id=name)
        else:
            consumer = store.consumer(group=GROUP)
        self.consumer = stack.enter_context(consumer)
        if partition is not None:
            self.consumer.assign([(SOURCE, partition)])
        self.metadata = partition is None

    def step(self, size: int) -> None:
        """One transaction; after an abort it reads again from what is committed."""
        records = self.consumer.poll(max_records=self.rng.randint(1, size))
        if not records:
            return
        try:
            self.producer.begin_transaction()
            for record in records:
                self.producer.send(TARGET, record.value, key=record.key, partition=record.offset % PARTITIONS)
            positions = {tp: self.consumer.position(tp) for tp in self.consumer.assignment()}
            self.producer.send_offsets(positions, self.consumer.group_metadata() if self.metadata else GROUP)
            if self.rng.random() < 1 / 3:
                self.producer.flush()
                self.producer.abort_transaction()
                self.consumer.rewind_to_committed()
            else:
                self.producer.commit_transaction()
        except TxnStoreError as error:
            if not error.abortable:
                raise  # Another process takes its place.
            self.producer.abort_transaction()
            self.consumer.rewind_to_committed()


def main(url: str, name: str, partition: str, size: str, seed: str) -> None:
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    with ExitStack() as stack:
        store = stack.enter_context(txnstore.open(url))
        copier = Copier(store, name, None if partition == "-" else int(partition), random.Random(seed), stack)
        while not signals:
            copier.step(int(size))


if __name__ == "__main__":
    main(*sys.argv[1:])
