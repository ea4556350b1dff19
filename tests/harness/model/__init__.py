"""A small Kafka to compare with: lists, no I/O, nothing of txnstore (DIF-13).

It is simple, not fast: it stores nothing that can be computed from the whole log. The rules are those
of KIP-98 with KIP-360, KIP-447 and KIP-890 (``transaction.version`` 2).
"""

from tests.harness.model.broker import Broker, Identity, Transaction
from tests.harness.model.client import Producer
from tests.harness.model.group import Group
from tests.harness.model.log import Batch, Log, RefusedError

__all__ = ["Batch", "Broker", "Group", "Identity", "Log", "Producer", "RefusedError", "Transaction"]
