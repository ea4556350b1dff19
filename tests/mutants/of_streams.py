"""Mutants of the commits and offsets of streaming queries, each killed by a test."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.core.transactions import lookups as transaction_lookups
from txnstore.spark.streams import commits, microbatch, positions, stream

_COMMITS = "unit/spark/test_commits.py::"
_POSITIONS = "unit/spark/test_positions.py::"

#: Faults of streaming queries.
STREAMS = (
    Mutant(
        "the commit of another process with the identity counts as a repetition",
        transaction_lookups.earlier_outcome,
        "if $outcome is Outcome.COMMIT and $command.versions and not knows_version($txn, $command.versions):",
        "if False:",
        test=_COMMITS + "test_processes_of_one_run_commit_in_turn",
    ),
    Mutant(
        "a process of a run does not see what another one has committed",
        commits.commit_micro_batch,
        "if $current in {None, $identity}:",
        "if True:",
        test=_COMMITS + "test_processes_of_one_run_commit_in_turn",
    ),
    Mutant(
        "a fenced run continues with the epoch of another query of its group",
        microbatch.identity_of_run,
        "or not $batch.is_of_last_transaction($txn)",
        "",
        test=_COMMITS + "test_a_query_with_a_new_checkpoint_fences_one_with_the_old_one",
    ),
    Mutant(
        "the older driver takes the micro-batch of the newer one for its own",
        commits._commit,
        "if $txn is not None and $identity is not None and $batch.is_overtaken($txn):",
        "if False:",
        test=_COMMITS + "test_the_older_of_two_drivers_is_fenced",
    ),
    Mutant(
        "a query commits what another query of its group has read",
        microbatch._is_due,
        "if $stored is not None and $stored.offset != $start and ($new or $stored.offset != $end):",
        "if False:",
        test=_COMMITS + "test_a_query_with_a_new_checkpoint_fences_one_with_the_old_one",
    ),
    Mutant(
        "a new query commits again what another query of its group has read in the same micro-batch",
        microbatch._is_due,
        "($new or $stored.offset != $end)",
        "$stored.offset != $end",
        test=_COMMITS + "test_two_queries_that_have_read_the_same_records_commit_them_once",
    ),
    Mutant(
        "a query of Spark 4.1 that is started again reads from where its options say",
        stream.Stream.plan_without_start,
        "positions.following($start, self._logs, until=$end.end)",
        "positions.replayed($end, self._logs)",
        test="unit/spark/test_stream.py::test_a_restarted_query_goes_on_from_the_start_of_its_plan",
    ),
    Mutant(
        "a micro-batch writes to a topic that was created again",
        commits._check_topics,
        "if $topic is None or $topic.topic_id != $topic_id:",
        "if $topic is None:",
        test=_COMMITS + "test_a_topic_that_was_deleted_meanwhile_is_not_written",
    ),
    Mutant(
        "a repeated micro-batch starts where the last one has ended",
        positions._ranges,
        "$position.start.get($tp, 0)",
        "$position.end.get($tp, 0)",
        test=_POSITIONS + "test_a_repeated_micro_batch_reads_its_own_start",
    ),
    Mutant(
        "a stream passes over records that were deleted before it has read them",
        positions._resume,
        "if $at < $log.start:",
        "if False:",
        test=_POSITIONS + "test_lost_records_are_reported_and_can_be_passed_over",
    ),
    Mutant(
        "a stream takes a topic that was created again for the one that it has read",
        positions.is_same,
        "and $position.topic_ids.get($tp.topic) == $logs.topic_ids.get($tp.topic)",
        "",
        test="unit/spark/test_stream.py::test_a_topic_that_was_created_again_is_not_the_one_that_was_read",
    ),
    Mutant(
        "a group gets the offsets of a deleted topic for the one that was created again",
        stream.Stream._behind,
        "if positions.is_same($position, self._logs, $tp) and",
        "if $tp in self._logs.partitions and",
        test="unit/spark/test_stream.py::test_a_group_does_not_get_offsets_of_a_deleted_topic",
    ),
    Mutant(
        "a micro-batch is committed again under another transactional id",
        commits._commit,
        "if any(map($batch.is_committed, $view.transactions.values())):",
        "if False:",
        test=_COMMITS + "test_a_repeated_micro_batch_is_known_under_another_transactional_id",
    ),
    Mutant(
        "a checkpoint that has gone back skips records",
        microbatch.MicroBatch.is_committed,
        "if self.number < $last:",
        "if False:",
        test=_COMMITS + "test_a_checkpoint_that_has_gone_back_skips_no_records",
    ),
    Mutant(
        "a micro-batch that was planned again is taken for the committed one",
        commits._commit,
        "_check_plan($view, $connection, $options, $batch)",
        "pass",
        test=_COMMITS + "test_a_committed_micro_batch_that_was_planned_again_is_no_repetition",
    ),
)
