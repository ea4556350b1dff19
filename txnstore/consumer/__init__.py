"""Consumers: read partitions from a position on, alone or as members of a group."""

from __future__ import annotations

from txnstore.consumer.consumer import Consumer
from txnstore.consumer.membership import AssignorName, Callback
from txnstore.consumer.subscription import Reset, ResetPolicy
from txnstore.core.groups.model import GroupMetadata
from txnstore.read.plan import OffsetAndTimestamp, PartitionOffsets, partition_offsets
from txnstore.read.records import Record

__all__ = [
    "AssignorName",
    "Callback",
    "Consumer",
    "GroupMetadata",
    "OffsetAndTimestamp",
    "PartitionOffsets",
    "Record",
    "Reset",
    "ResetPolicy",
    "partition_offsets",
]
