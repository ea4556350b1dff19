"""Compares what clients see at a gateway with what they saw at a broker, and lists the differences that are allowed.

The clients are Kafka's own, so far fewer rules are needed than for producers and consumers of the library.
"""

from __future__ import annotations

from tests.harness.differential.compare import WHITELIST, Allowed, Comparison
from tests.harness.differential.difference import Difference
from tests.harness.traces import Op

#: The rules of :data:`~tests.harness.differential.compare.WHITELIST` that hold for clients of a gateway, too.
SHARED = frozenset(
    {
        "ADD-09", "CMP-02", "CMP-07", "CMP-08", "CMP-17", "CMP-25", "END-07", "INIT-07", "OFF-18", "PST-03", "RET-01",
        "RET-04", "RET-12", "TV2-02",
    }
)  # fmt: skip


def _newer_protocol(comparison: Comparison, op: Op, difference: Difference) -> bool:
    """A commit for a group of KIP-848 with the epoch before a rebalance, or with the name of a former instance."""
    errors = difference.expected, difference.actual
    both: set[tuple[str | None, str]] = {("UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID")}
    if op.get("ahead", 0) < 0:
        both |= {(None, "STALE_MEMBER_EPOCH"), (None, "ILLEGAL_GENERATION")}
    return difference.path == ("error",) and op.get("group") in comparison.newer_groups and errors in both


def _beyond_the_window(comparison: Comparison, op: Op, difference: Difference) -> bool:
    """A batch of the open transaction, sent again after more than five others."""
    both = difference == Difference(("error",), "OUT_OF_ORDER_SEQUENCE_NUMBER", None)
    return op["op"] == "raw_append" and op.get("id") is not None and both


def _epoch_of_the_chain(comparison: Comparison, op: Op, difference: Difference) -> bool:
    """The epoch of each transaction of a session, in markers and in DescribeProducers; Kafka has that of the client.

    A marker raises it and forgets the sequences; of a producer whose transaction is open all else must be equal.
    """
    if not comparison.of_sessions or difference.path[-1] not in {"markers", "producers"}:
        return False
    both = difference.expected, difference.actual
    if difference.path[-1] == "markers":
        kafka, ours = ([row[:3] for row in rows] for rows in both)
        return kafka == ours
    kafka, ours = ([[row[0], row[3], None if row[3] is None else row[2]] for row in rows] for rows in both)
    return kafka == ours


def _noticed_later(comparison: Comparison, op: Op, difference: Difference) -> bool:
    """A fenced producer that sends to another partition hears of it from its sender: with this call or the next one."""
    errors = {(None, "PRODUCER_FENCED"), ("PRODUCER_FENCED", None)}
    is_error = difference.path == ("error",) and (difference.expected, difference.actual) in errors
    nothing = difference == Difference(("answer",), {"offsets": {}}, None)
    return comparison.of_sessions and op["op"] in {"flush", "send"} and (is_error or nothing)


#: The allowed differences.
AT_A_GATEWAY: tuple[Allowed, ...] = (
    *(entry for entry in WHITELIST if entry.item in SHARED),
    Allowed("OFF-07", "each change of the members fences all of them with KIP-848, and names fence", _newer_protocol),
    Allowed("SEQ-04", "a batch of the open transaction is a duplicate behind the window, too", _beyond_the_window),
    Allowed("TV2-01", "each transaction of a session has an epoch of its own in the chain", _epoch_of_the_chain),
    Allowed("FEN-09", "a producer of transactions v1 hears from its sender that it is fenced", _noticed_later),
)


def gateway_comparison(source: str) -> Comparison:
    """A comparison of a gateway with the broker that ``source`` names."""
    return Comparison(source, AT_A_GATEWAY, merges=True)
