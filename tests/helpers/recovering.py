"""One transaction over all chains, and how it ended."""

from __future__ import annotations

from tests.helpers.chains import groups_of, ids_of, value_counts
from tests.helpers.connections import connection_of
from txnstore.core.groups.offsets import committed
from txnstore.core.invariants.check import check_view
from txnstore.core.model import TopicPartition
from txnstore.core.transactions.model import DECIDED, TxnState
from txnstore.store import Store

CHAINS, PARTITIONS = 3, 6
T0 = TopicPartition("t", 0)


def name_and_group(store: Store) -> tuple[str, str]:
    """A transactional id of chain 1, and a group of chain 2."""
    return ids_of(store, 1), groups_of(store, 2)


def outcome(store: Store) -> bool:
    """Whether the transaction over all chains is committed; it is seen whole or not at all, offsets included."""
    values = value_counts(store)
    _, group = name_and_group(store)
    offset = committed(connection_of(store).view(), group, T0, require_stable=False)
    assert (values, offset and offset.offset) in [({}, None), ({b"first": PARTITIONS, b"second": PARTITIONS}, 7)]
    return bool(values)


def ended(store: Store) -> bool:
    """The outcome, when nothing is left open anywhere."""
    view = connection_of(store).view()
    assert check_view(view) == []
    for tp in view.partitions:
        log = view.log(tp)
        assert log is not None
        assert not log.open_txns
    assert all(txn.state not in DECIDED and txn.state is not TxnState.ONGOING for txn in view.transactions.values())
    assert not any(group.pending for state in view.states for group in state.groups.values())
    report = store.verify(deep=True)
    assert report.ok, report.violations
    return outcome(store)
