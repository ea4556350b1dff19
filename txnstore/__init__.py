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
    from txnstore.consumer import Consumer as Consumer
    from txnstore.consumer import PartitionOffsets as PartitionOffsets
    from txnstore.core.catalog.model import Topic as Topic
    from txnstore.core.groups.model import OffsetAndMetadata as OffsetAndMetadata
    from txnstore.core.model import Isolation as Isolation
    from txnstore.core.model import TopicPartition as TopicPartition
    from txnstore.errors import TxnStoreError as TxnStoreError
    from txnstore.producer import Producer as Producer
    from txnstore.producer.futures import RecordMetadata as RecordMetadata
    from txnstore.producer.prepared import PreparedTxn as PreparedTxn
    from txnstore.read.records import Record as Record
    from txnstore.runtime import Runtime as Runtime
    from txnstore.scan import Scan as Scan
    from txnstore.snapshot import Snapshot as Snapshot
    from txnstore.store import Store as Store
    from txnstore.store import create as create
    from txnstore.store import open as open  # noqa: A004 - txnstore.open(url) is the public name

_HOMES = {
    "Consumer": "txnstore.consumer",
    "Isolation": "txnstore.core.model",
    "OffsetAndMetadata": "txnstore.core.groups.model",
    "PartitionOffsets": "txnstore.consumer",
    "PreparedTxn": "txnstore.producer.prepared",
    "Producer": "txnstore.producer",
    "Record": "txnstore.read.records",
    "RecordMetadata": "txnstore.producer.futures",
    "Runtime": "txnstore.runtime",
    "Scan": "txnstore.scan",
    "Snapshot": "txnstore.snapshot",
    "Store": "txnstore.store",
    "Topic": "txnstore.core.catalog.model",
    "TopicPartition": "txnstore.core.model",
    "create": "txnstore.store",
    "open": "txnstore.store",
}
_MODULES = frozenset({"catalog", "compactor", "errors", "spark", "sql", "testing"})

__all__ = [
    "Consumer",
    "Isolation",
    "OffsetAndMetadata",
    "PartitionOffsets",
    "PreparedTxn",
    "Producer",
    "Record",
    "RecordMetadata",
    "Runtime",
    "Scan",
    "Snapshot",
    "Store",
    "Topic",
    "TopicPartition",
    "TxnStoreError",
    "__version__",
    "create",
    "errors",
    "open",
]


def __getattr__(name: str) -> Any:
    """Load a public name at its first use; every error class is one."""
    if name in _MODULES:
        return importlib.import_module(f"txnstore.{name}")
    home = _HOMES.get(name)
    if home is None and name.endswith("Error"):
        home = "txnstore.errors"
    if home is not None:
        found = getattr(importlib.import_module(home), name, None)
        if found is not None:
            globals()[name] = found
            return found
    msg = f"module 'txnstore' has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    """The public names: those of ``__all__``, the public modules, every error class."""
    from txnstore import errors

    return sorted({*__all__, *_MODULES, *dir(errors)})
