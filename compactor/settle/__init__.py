"""Settling: small commits become segments of a topic by themselves. See docs/internals/design/compaction.md."""

from txnstore.compactor.settle.settling import settle as settle
from txnstore.compactor.settle.settling import settle_later as settle_later
