"""Compares txnstore with the model: both run the same operations, and every observation must be equal.

A trace is a list of operations with the observations after each. ``python -m tests.harness.differential``
replays traces and records them. Operations:

- ``init begin send flush send_offsets send_bad_offsets commit abort close kill``: a producer, by the name of its
  ``init``; old ones stay as zombies. ``what`` is wrong with bad offsets: group, metadata, partition or topic.
- ``raw_init raw_append raw_add_partitions raw_txn_offset_commit raw_end_txn``: one request of any identity;
  without ``id`` the producer has no transactions.
- ``commit_offsets committed fence``: a group outside transactions; the administrator.
- ``join heartbeat leave``: a member of a group, by name; ``instance`` makes it static, ``protocol: consumer`` makes the
  group one of KIP-848. After a join or leave all members join again or send heartbeats until each has seen the others.
- ``consumer assign subscribe poll position seek seek_to pause resume commit_positions offsets_for_times``,
  ``close_consumer``: a consumer, by name. ``poll`` returns everything that can be read.
- ``poll_all commit_all``: all consumers of a group; what they read is compared, not which of them read it.
- ``at_once``: calls at the same time (``ops``), whose order makes no difference.
- ``fetch end_offsets describe_producers describe_txn list_txn``: queries, whose results are compared.
- ``create_topic delete_topic tick sweep restart compact delete_records set_epoch``: the environment. ``sweep`` is
  ``store.recover()``; ``set_epoch`` stands for many transactions. A topic may have a ``config`` in Kafka's names.
- ``clean retain``: a clean of everything dirty, or with ``due`` one that its ``config`` makes due; a retention by age
  (``ms``), or to the bytes that the ``keep`` oldest batches leave. Records may have an ``age_ms``.

A commit of offsets may name its ``member``: it then carries the member's id, ``instance`` and last generation, or one
that is ``ahead`` of it. An explicit ``generation`` or ``instance`` replaces the member's. An unknown one
never joined.
"""

from tests.harness.differential.compare import WHITELIST, Comparison
from tests.harness.differential.difference import Difference
from tests.harness.differential.model_driver import ModelDriver
from tests.harness.differential.names import ProducerIds
from tests.harness.differential.replay import Driver, MismatchError, record, replay
from tests.harness.differential.store_driver import StoreDriver
from tests.harness.traces import Trace

__all__ = [
    "WHITELIST",
    "Comparison",
    "Difference",
    "Driver",
    "MismatchError",
    "ModelDriver",
    "ProducerIds",
    "StoreDriver",
    "Trace",
    "record",
    "replay",
]
