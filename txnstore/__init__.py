"""Kafka's exactly-once transactions on plain object storage, with no broker and no server.

    import txnstore

    store = txnstore.create("s3://bucket/events")
    store.create_topic("orders", partitions=4)
    with store.producer(transactional_id="loader-7") as producer, producer.transaction() as txn:
        txn.send("orders", key=b"42", value=b"...")
    store.sql("select count(*) from orders")

Names are loaded when they are first used, so that the command line starts fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from txnstore._version import __version__

if TYPE_CHECKING:
    from txnstore import errors as errors
    from txnstore import testing as testing
    from txnstore.admin.descriptions import HangingTransaction as HangingTransaction
    from txnstore.admin.descriptions import OpenData as OpenData
    from txnstore.admin.descriptions import ProducerDescription as ProducerDescription
    from txnstore.admin.descriptions import TransactionDescription as TransactionDescription
    from txnstore.admin.descriptions import TransactionHistory as TransactionHistory
    from txnstore.admin.groups import GroupDescription as GroupDescription
    from txnstore.admin.groups import GroupMember as GroupMember
    from txnstore.admin.groups import GroupPosition as GroupPosition
    from txnstore.admin.logs import LogDump as LogDump
    from txnstore.catalog.description import Topic as Topic
    from txnstore.consumer import Consumer as Consumer
    from txnstore.consumer import PartitionOffsets as PartitionOffsets
    from txnstore.coordinator.expiration import ExpiryReport as ExpiryReport
    from txnstore.coordinator.recovery import RecoveryReport as RecoveryReport
    from txnstore.core.blocked import BlockedPartition as BlockedPartition
    from txnstore.core.groups.model import GroupMetadata as GroupMetadata
    from txnstore.core.groups.model import OffsetAndMetadata as OffsetAndMetadata
    from txnstore.core.groups.model import PartitionHolder as PartitionHolder
    from txnstore.core.history import TransactionStep as TransactionStep
    from txnstore.core.log.dump import LogLine as LogLine
    from txnstore.core.log.slices import Slice as Slice
    from txnstore.core.model import Isolation as Isolation
    from txnstore.core.model import Outcome as Outcome
    from txnstore.core.model import ProducerIdentity as ProducerIdentity
    from txnstore.core.model import TopicPartition as TopicPartition
    from txnstore.core.transactions.model import Transaction as Transaction
    from txnstore.core.transactions.model import TxnState as TxnState
    from txnstore.errors import TxnStoreError as TxnStoreError
    from txnstore.metrics import ChainStatus as ChainStatus
    from txnstore.metrics import GroupLag as GroupLag
    from txnstore.metrics import GroupStatus as GroupStatus
    from txnstore.metrics import Histogram as Histogram
    from txnstore.metrics import PartitionStatus as PartitionStatus
    from txnstore.metrics import StoreMetrics as StoreMetrics
    from txnstore.metrics import StoreStatus as StoreStatus
    from txnstore.metrics import TransactionStatus as TransactionStatus
    from txnstore.producer import Producer as Producer
    from txnstore.producer.futures import RecordFuture as RecordFuture
    from txnstore.producer.futures import RecordMetadata as RecordMetadata
    from txnstore.producer.futures import TableFuture as TableFuture
    from txnstore.producer.prepared import PreparedTxn as PreparedTxn
    from txnstore.producer.scope import TransactionScope as TransactionScope
    from txnstore.read.plan import IsolationLevel as IsolationLevel
    from txnstore.read.plan import OffsetAndTimestamp as OffsetAndTimestamp
    from txnstore.read.records import Record as Record
    from txnstore.runtime import Runtime as Runtime
    from txnstore.scan import Scan as Scan
    from txnstore.snapshot import Snapshot as Snapshot
    from txnstore.store import Store as Store
    from txnstore.store import create as create
    from txnstore.store import open as open  # noqa: A004 - txnstore.open(url) is the public name
    from txnstore.store import restore as restore
    from txnstore.validation import BlockedReadWarning as BlockedReadWarning
    from txnstore.validation import UnmaintainedStoreWarning as UnmaintainedStoreWarning

_HOMES = {
    "Acl": "txnstore.core.authorization.model",
    "Acls": "txnstore.admin.acls",
    "AuthorizationSettings": "txnstore.admin.acls",
    "BlockedPartition": "txnstore.core.blocked",
    "BlockedReadWarning": "txnstore.validation",
    "ChainStatus": "txnstore.metrics",
    "CheckReport": "txnstore.tables.check",
    "Consumer": "txnstore.consumer",
    "ExpiryReport": "txnstore.coordinator.expiration",
    "GroupDescription": "txnstore.admin.groups",
    "GroupLag": "txnstore.metrics",
    "GroupMember": "txnstore.admin.groups",
    "GroupMetadata": "txnstore.core.groups.model",
    "GroupPosition": "txnstore.admin.groups",
    "GroupStatus": "txnstore.metrics",
    "HangingTransaction": "txnstore.admin.descriptions",
    "Histogram": "txnstore.metrics",
    "Isolation": "txnstore.core.model",
    "IsolationLevel": "txnstore.read.plan",
    "LogDump": "txnstore.admin.logs",
    "LogLine": "txnstore.core.log.dump",
    "MaintenanceStatus": "txnstore.metrics",
    "OffsetAndMetadata": "txnstore.core.groups.model",
    "OffsetAndTimestamp": "txnstore.read.plan",
    "OpenData": "txnstore.admin.descriptions",
    "Outcome": "txnstore.core.model",
    "PartitionHolder": "txnstore.core.groups.model",
    "PartitionOffsets": "txnstore.consumer",
    "PartitionStatus": "txnstore.metrics",
    "PreparedTxn": "txnstore.producer.prepared",
    "Producer": "txnstore.producer",
    "ProducerDescription": "txnstore.admin.descriptions",
    "ProducerIdentity": "txnstore.core.model",
    "Record": "txnstore.read.records",
    "RecordFuture": "txnstore.producer.futures",
    "RecordMetadata": "txnstore.producer.futures",
    "RecoveryReport": "txnstore.coordinator.recovery",
    "RetentionStatus": "txnstore.metrics",
    "Runtime": "txnstore.runtime",
    "Scan": "txnstore.scan",
    "Slice": "txnstore.core.log.slices",
    "Snapshot": "txnstore.snapshot",
    "SnapshotDescription": "txnstore.tables.tables",
    "StoragePolicy": "txnstore.admin.policies",
    "Store": "txnstore.store",
    "StoreMetrics": "txnstore.metrics",
    "StoreStatus": "txnstore.metrics",
    "SyncReport": "txnstore.tables.publish",
    "TableChange": "txnstore.tables.publish",
    "TableDescription": "txnstore.tables.tables",
    "TableDetails": "txnstore.tables.tables",
    "TableFuture": "txnstore.producer.futures",
    "TableProblem": "txnstore.tables.check",
    "TableStatus": "txnstore.metrics",
    "Tables": "txnstore.tables.tables",
    "Topic": "txnstore.catalog.description",
    "TopicPartition": "txnstore.core.model",
    "Transaction": "txnstore.core.transactions.model",
    "TransactionDescription": "txnstore.admin.descriptions",
    "TransactionHistory": "txnstore.admin.descriptions",
    "TransactionScope": "txnstore.producer.scope",
    "TransactionStatus": "txnstore.metrics",
    "TransactionStep": "txnstore.core.history",
    "TxnState": "txnstore.core.transactions.model",
    "UnmaintainedStoreWarning": "txnstore.validation",
    "Verdict": "txnstore.core.authorization.rules",
    "create": "txnstore.store",
    "open": "txnstore.store",
    "restore": "txnstore.store",
}
_MODULES = frozenset({"catalog", "compactor", "errors", "spark", "sql", "testing"})

__all__ = [
    "Acl",
    "Acls",
    "AuthorizationSettings",
    "BlockedPartition",
    "BlockedReadWarning",
    "ChainStatus",
    "CheckReport",
    "Consumer",
    "ExpiryReport",
    "GroupDescription",
    "GroupLag",
    "GroupMember",
    "GroupMetadata",
    "GroupPosition",
    "GroupStatus",
    "HangingTransaction",
    "Histogram",
    "Isolation",
    "IsolationLevel",
    "LogDump",
    "LogLine",
    "MaintenanceStatus",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OpenData",
    "Outcome",
    "PartitionHolder",
    "PartitionOffsets",
    "PartitionStatus",
    "PreparedTxn",
    "Producer",
    "ProducerDescription",
    "ProducerIdentity",
    "Record",
    "RecordFuture",
    "RecordMetadata",
    "RecoveryReport",
    "RetentionStatus",
    "Runtime",
    "Scan",
    "Slice",
    "Snapshot",
    "SnapshotDescription",
    "StoragePolicy",
    "Store",
    "StoreMetrics",
    "StoreStatus",
    "SyncReport",
    "TableChange",
    "TableDescription",
    "TableDetails",
    "TableFuture",
    "TableProblem",
    "TableStatus",
    "Tables",
    "Topic",
    "TopicPartition",
    "Transaction",
    "TransactionDescription",
    "TransactionHistory",
    "TransactionScope",
    "TransactionStatus",
    "TransactionStep",
    "TxnState",
    "TxnStoreError",
    "UnmaintainedStoreWarning",
    "Verdict",
    "__version__",
    "create",
    "errors",
    "open",
    "restore",
]


def __getattr__(name: str) -> Any:
    """Load a public name at its first use; every error class is one."""
    if name in _MODULES:
        return importlib.import_module(f"txnstore.{name}")
    home = _HOMES.get(name)
    if home is None and name.endswith("Error"):
        home = "txnstore.errors"
    if home is not None:
        value = getattr(importlib.import_module(home), name, None)
        if value is not None:
            globals()[name] = value
            return value
    msg = f"module 'txnstore' has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    """The public names: those of ``__all__``, the public modules, every error class."""
    from txnstore import errors

    return sorted({*__all__, *_MODULES, *dir(errors)})
