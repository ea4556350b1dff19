"""Faults in the fence table of a chain, and in the rules for topics that are deleted and recreated."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.coordinator import copies
from txnstore.coordinator.coordinator import Coordinator
from txnstore.coordinator.coordinator import _has_added as has_all
from txnstore.core import fences
from txnstore.core.catalog import rules as catalog_rules
from txnstore.core.groups import offsets as group_offsets
from txnstore.core.log import appending as log_appending
from txnstore.core.transactions import rules as transactions_rules
from txnstore.core.transactions.commands import DecidedTransaction

_FENCES = "protocol/chains/test_fences.py::"
_STEPS = "protocol/chains/test_steps.py::"

FENCES = (
    Mutant(
        "a late batch is not compared with the fence of its chain",
        fences.check_fence,
        "if $producer.epoch < $fence.epoch:",
        "if False:",
        chains=3,
    ),
    Mutant(
        "the first offset of a partition needs the newest catalog",
        group_offsets._check_catalog,
        "$replacing = [$item for $item in $new if $ids[$item.tp]]",
        "$replacing = $new",
        test="protocol/chains/test_stale_catalogs.py::test_first_offset_of_a_partition_needs_no_newest_catalog",
    ),
    Mutant(
        "offsets whose lookup another process has outdated are not looked up again",
        Coordinator._submit_part,
        "if $catalog is None or self._chains[CATALOG].refresh().sequence == $catalog:",
        "if True:",
        test="protocol/chains/test_stale_catalogs.py::test_offset_by_name_is_one_of_the_new_topic",
    ),
    Mutant(
        "the evidence of a coordinator is never renewed",
        Coordinator._may_be_too_old,
        "return $now - $added.timestamp > MAX_ADDED_AGE_MS // 2",
        "return False",
        test="protocol/producer/test_two_phase.py::test_long_transaction_over_chains_continues_after_days",
    ),
    Mutant(
        "a prepared transaction accepts late batches in other chains",
        fences.check_fence,
        "if $fence.prepared:",
        "if False:",
        chains=3,
    ),
    Mutant(
        "a prepare is not written to the other chains",
        Coordinator._prepare,
        "$others = chains_of($txn, len(self._chains)) - {$home}",
        "$others = set()",
        chains=3,
    ),
    Mutant(
        "a partition is added to a prepared transaction without its coordinator",
        has_all,
        "and not $txn.is_prepared",
        "",
        test=_FENCES + "test_tpc_03_prepared_transaction_refuses_batches_in_all_chains",
    ),
    Mutant(
        "a repeated marker ignores the fence of its chain",
        fences.lacks_markers,
        "is_foreign($state, $producer_id) and fenced_epoch($state, $producer_id) <= $epoch",
        "is_foreign($state, $producer_id)",
        test=_STEPS + "test_end_08_markers_may_be_written_again_at_any_time",
    ),
    Mutant(
        "a marker fences only its own partition",
        fences.with_fence,
        "return replace($state, fences=$state.fences.insert($producer_id, $fence))",
        "return $state",
        chains=3,
    ),
    Mutant(
        "an init fences no other chain",
        transactions_rules.fence,
        "if fenced_epoch($draft.state, $producer.producer_id) < $producer.epoch:",
        "if False:",
        test=_FENCES + "test_fen_02_takeover_fences_topics_unknown_to_chain",
    ),
    Mutant(
        "a marker is written to a recreated topic",
        DecidedTransaction.names,
        "not $topic_ids or $topic.topic_id in $topic_ids",
        "True",
        chains=3,
    ),
    Mutant(
        "a closed topic accepts records",
        log_appending.partition_of,
        "if $partition is not None and $state.is_closed($state.topics[$tp.topic]):",
        "if False:",
        chains=3,
    ),
    Mutant(
        "a topic is deleted before other chains close it",
        copies._close_and_delete,
        "$others = leaders_of($topic, len($chains)) - {CATALOG}",
        "$others = set()",
        test=_FENCES + "test_deletion_fails_if_chain_cannot_close_topic",
    ),
    Mutant(
        "a late copy recreates a deleted topic",
        catalog_rules._newest_revision,
        "$state.deleted.get($name, 0)",
        "0",
        test=_FENCES + "test_topic_altered_during_deletion_is_closed_again",
    ),
    Mutant(
        "the topics of offsets are not copied to the chain of their group",
        group_offsets.partitions_of_offsets,
        "return ($item.tp for $item in $command.offsets.offsets)",
        "return iter(())",
        test=_FENCES + "test_off_18_offsets_of_topic_unknown_to_chain_of_group",
    ),
)
