"""Kafka's exactly-once transactions on plain object storage, without a broker."""

from __future__ import annotations

from txnstore._version import __version__

__all__ = ["__version__"]
