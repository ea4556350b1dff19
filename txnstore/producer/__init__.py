"""Producers: append records in batches, idempotently or in transactions.

A record goes from :class:`Producer` into the open batch of its partition (:mod:`~txnstore.producer.buffer`). The
:mod:`~txnstore.producer.sender` uploads full batches and registers uploaded ones with the chain on a flush, a full
buffer or a commit. The :mod:`~txnstore.producer.transaction` decides which call each state allows.
"""

from txnstore.producer.futures import RecordFuture, RecordMetadata, TableFuture
from txnstore.producer.prepared import PreparedTxn
from txnstore.producer.producer import Producer

__all__ = ["PreparedTxn", "Producer", "RecordFuture", "RecordMetadata", "TableFuture"]
