"""What Spark looks for: a top-level package ``pyspark_*`` with a ``DefaultSource``.

Spark imports it when a data source name is first looked up, and so finds ``format("txnstore")`` without a line of
registration. An error here would hide every other data source too, so this imports nothing but the source itself.
"""

from __future__ import annotations

from txnstore.spark import TxnStoreSource as DefaultSource

__all__ = ["DefaultSource"]
