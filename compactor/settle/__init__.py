"""Settling: small commits become segments of a topic by themselves. See docs/design/0033-settling.md."""

from txnstore.compactor.settle.settling import settle as settle
from txnstore.compactor.settle.settling import settle_later as settle_later
