"""All scenarios by name. Each runs against a broker, or a store, of its own names: topics have that of the scenario."""

from __future__ import annotations

from collections.abc import Callable

from tests.compat.wire import administration, groups, records, transactions
from tests.compat.wire.connection import Wire

#: By name. The docstring of each cites the items of the list of conformance.
SCENARIOS: dict[str, Callable[[Wire], None]] = {
    each.__name__: each
    for each in (
        administration.versions_of_apis,
        administration.coordinators,
        administration.metadata,
        administration.topics,
        administration.producers_of_partitions,
        administration.transactions,
        administration.markers_by_hand,
        administration.of_duplicates,
        administration.without_users,
        records.appends,
        records.sequences,
        records.transactional_appends,
        records.without_acknowledgement,
        records.fetches,
        records.listed_offsets,
        records.epochs_of_leaders,
        records.deletions,
        transactions.producer_ids,
        transactions.partitions_of_transactions,
        transactions.groups_of_transactions,
        transactions.offsets_of_transactions,
        transactions.ends,
        transactions.late_requests,
        groups.committed_offsets,
        groups.pending_offsets,
        groups.members,
        groups.transactions_of_members,
        groups.static_members,
        groups.heartbeats_of_kip_848,
        groups.descriptions_of_groups,
    )
}
