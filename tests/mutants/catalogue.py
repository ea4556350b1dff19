"""The mutants, each with a name that describes its fault."""

from __future__ import annotations

from tests.harness.simulation import Mishap
from tests.mutants.mutant import Mutant
from tests.mutants.of_admin import ADMIN
from tests.mutants.of_answers import ANSWERS
from tests.mutants.of_authorization import AUTHORIZATION
from tests.mutants.of_care import CARE
from tests.mutants.of_chains import MANY_CHAINS
from tests.mutants.of_classic import CLASSIC
from tests.mutants.of_cleans import CLEANS
from tests.mutants.of_compaction import COMPACTION
from tests.mutants.of_consumer import CONSUMER
from tests.mutants.of_engines import ENGINES
from tests.mutants.of_expiry import EXPIRY
from tests.mutants.of_fences import FENCES, SIMULATED_FENCES
from tests.mutants.of_fresh import FRESH
from tests.mutants.of_gateways import GATEWAYS
from tests.mutants.of_groups import GROUPS
from tests.mutants.of_heads import HEADS
from tests.mutants.of_history import HISTORY
from tests.mutants.of_identity import IDENTITY
from tests.mutants.of_index import INDEX
from tests.mutants.of_inlining import INLINING
from tests.mutants.of_names import NAMES
from tests.mutants.of_past import PAST
from tests.mutants.of_plans import PLANS
from tests.mutants.of_power import POWER
from tests.mutants.of_producer import PRODUCER
from tests.mutants.of_ranges import RANGES
from tests.mutants.of_readers import READERS
from tests.mutants.of_retention import RETENTION
from tests.mutants.of_serving import SERVING
from tests.mutants.of_sessions import SESSIONS, SIMULATED_SESSIONS
from tests.mutants.of_settling import SETTLING
from tests.mutants.of_sharing import SHARING
from tests.mutants.of_storage import STORAGE
from tests.mutants.of_streams import STREAMS
from tests.mutants.of_tables import TABLES
from tests.mutants.of_time import TIME
from tests.mutants.of_turns import TURNS
from tests.mutants.of_upgrade import UPGRADE
from tests.mutants.of_wire import WIRE
from tests.mutants.of_worlds import WORLDS
from txnstore.chain.chain import Chain
from txnstore.chain.checkpoints import document as head_document
from txnstore.core import maintenance
from txnstore.core.groups import fold as groups_fold
from txnstore.core.groups import offsets as groups_offsets
from txnstore.core.log import appending as log_appending
from txnstore.core.log import visibility as log_visibility
from txnstore.core.log.model import Partition
from txnstore.core.transactions import init as transactions_init
from txnstore.core.transactions import rules as transactions_rules
from txnstore.core.transactions.model import Transaction
from txnstore.producer.transaction_manager import TransactionManager
from txnstore.storage.base import Claim

#: Faults that a store of one chain shows.
ONE_CHAIN = (
    Mutant(
        "an append skips the check of the epoch",
        transactions_rules.append,
        "if ($txn.producer_id, $txn.epoch) != ($producer.producer_id, $producer.epoch):",
        "if False:",
    ),
    Mutant(
        "an end skips the check of the epoch",
        transactions_rules.end,
        "or ($txn.producer_id, $txn.epoch) != ($producer.producer_id, $producer.epoch)",
        "",
        test="protocol/core/test_end.py::test_late_end_does_not_end_next_transaction",
    ),
    Mutant(
        "init leaves the transaction of its predecessor open",
        transactions_init.init_producer,
        "if $txn.state is TxnState.ONGOING:",
        "if False:",
    ),
    Mutant(
        "init commits the transaction of its predecessor",
        transactions_init.init_producer,
        "_end($draft, $txn, Outcome.ABORT, session=$in_session)",
        "_end($draft, $txn, Outcome.COMMIT)",
    ),
    Mutant(
        "init grants the epoch of its predecessor again",
        transactions_init.init_producer,
        "return _grant($draft, $command, $txn.producer_id, $txn.epoch + 1)",
        "return _grant($draft, $command, $txn.producer_id, $txn.epoch)",
    ),
    Mutant(
        "an end does not bump the epoch",
        transactions_rules.decide_end,
        "next_epoch=0 if $rotate else $txn.epoch + 1",
        "next_epoch=0 if $rotate else $txn.epoch",
    ),
    Mutant(
        "an abort by another process has no effect",
        transactions_rules.abort,
        "return decide_end($draft, $txn, Outcome.ABORT)",
        "return None",
        test="protocol/chains/test_steps.py::test_tmo_01_only_expired_transaction_is_aborted",
    ),
    Mutant(
        "a marker carries the epoch of its transaction",
        transactions_rules._marker_of,
        "$decided.epoch + 1",
        "$decided.epoch",
    ),
    Mutant(
        "the marker of one partition is not written",
        transactions_rules.emit_markers,
        "for $tp in $decided.partitions:",
        "for $tp in $decided.partitions[:2]:",
    ),
    Mutant(
        "the markers of groups are not written",
        transactions_rules.emit_markers,
        "for $group in $decided.groups:",
        "for $group in ():",
    ),
    Mutant(
        "only one partition of a batch joins the transaction",
        transactions_rules.join,
        "sorted($joining - $txn.partitions)",
        "sorted(set(list($joining)[:1]) - $txn.partitions)",
    ),
    Mutant(
        "a repeated commit is refused as fenced",
        transactions_rules._repeated_end,
        "if $outcome is None or ($outcome is Outcome.ABORT and $command.outcome is Outcome.COMMIT "
        "and not $txn.in_session):",
        "if True:",
        mishaps=(Mishap.OUTAGE,),
    ),
    Mutant(
        "a repeated commit succeeds after an abort",
        transactions_rules._repeated_end,
        "if $outcome is None or ($outcome is Outcome.ABORT and $command.outcome is Outcome.COMMIT "
        "and not $txn.in_session):",
        "if $outcome is Outcome.ABORT:\n        $outcome = $command.outcome\n    if $outcome is None:",
        test="protocol/chains/test_steps.py::test_commit_after_abort_by_other_process_is_fenced",
    ),
    Mutant(
        "the epoch of a batch is not checked in its partition",
        log_appending._check_sequence,
        "if $current is not None and $producer.epoch < $current.epoch:",
        "if False:",
        test="protocol/core/test_sequences.py",
    ),
    Mutant(
        "a gap in the sequences is accepted",
        log_appending._check_sequence,
        "if $batch.base_sequence != $expected:",
        "if $batch.base_sequence < $expected:",
        test="protocol/core/test_sequences.py::test_sequence_gap_is_refused",
    ),
    Mutant(
        "a duplicate outside of the window is accepted",
        log_appending._check_sequence,
        "if $batch.base_sequence != $expected:",
        "if $batch.base_sequence > $expected:",
        test="protocol/core/test_sequences.py::test_batch_overlapping_window_is_refused",
    ),
    Mutant(
        "a duplicate inside of the window is appended again",
        log_appending._check_sequence,
        "$repeated = _in_window($window, $batch)",
        "$repeated = None",
        test="protocol/core/test_sequences.py::test_duplicate_in_window_gets_first_answer",
    ),
    Mutant(
        "the window holds one batch",
        log_appending._remember,
        "(*$window, $metadata)[-WINDOW:]",
        "($metadata,)",
        test="protocol/core/test_sequences.py::test_duplicate_in_window_gets_first_answer",
    ),
    Mutant(
        "a new epoch keeps the window of the previous one",
        log_appending._remember,
        "if $producer is not None and $producer.epoch == $batch.epoch else ()",
        "if $producer is not None else ()",
        test="protocol/core/test_sequences.py::test_new_epoch_starts_at_sequence_0",
    ),
    Mutant(
        "a vacuumed upload is registered",
        log_appending._check_upload,
        "if $batch.segment.object in $state.dropped:",
        "if False:",
        test="protocol/vacuum/test_segments.py::test_vacuumed_upload_is_refused_and_the_producer_can_retry",
    ),
    Mutant(
        "the LSO is that of committed data only",
        Partition.last_stable_offset,
        "min(self.open_txns.values(), default=self.high_watermark)",
        "max((batch.limit for batch in self.batches if batch.producer_id not in self.open_txns), default=0)",
    ),
    Mutant(
        "the LSO is the start of the newest open transaction",
        Partition.last_stable_offset,
        "min(self.open_txns.values(), default=self.high_watermark)",
        "max(self.open_txns.values(), default=self.high_watermark)",
    ),
    Mutant(
        "a consumer reads past the LSO",
        Partition.read_limit,
        "self.last_stable_offset if $isolation is Isolation.READ_COMMITTED else self.high_watermark",
        "self.high_watermark",
    ),
    Mutant(
        "aborted data is read",
        log_visibility.each_visible,
        "if $is_aborted is None or not $is_aborted($batch)",
        "if True",
    ),
    Mutant(
        "the aborted index is searched without the producer id",
        log_visibility.aborted_batches.__init__,
        "self._firsts.setdefault($entry.producer_id, []).append($entry.first_offset)",
        "self._firsts.setdefault(0, []).append($entry.first_offset)",
    ),
    Mutant(
        "the aborted index also holds commits",
        log_appending.marker_written,
        "if $event.outcome is Outcome.ABORT and $first_offset is not None:",
        "if $first_offset is not None:",
    ),
    Mutant(
        "the aborted index loses the transactions of other producers",
        log_appending.marker_written,
        "$aborted = (*$aborted, AbortedTxn(",
        "$aborted = (*(a for a in $aborted if a.producer_id == event.producer_id), AbortedTxn(",
    ),
    Mutant(
        "the second transaction of a producer starts at the first one",
        log_appending.marker_written,
        "$open_txns = $partition.open_txns.discard($event.producer_id)",
        "$open_txns = $partition.open_txns",
    ),
    Mutant(
        "pending offsets take effect immediately",
        groups_fold._offsets_committed,
        "$pending = $event.producer_id != NO_PRODUCER",
        "$pending = False",
    ),
    Mutant(
        "pending offsets of an aborted transaction take effect",
        groups_fold.decided_offsets,
        "if $outcome is Outcome.COMMIT:",
        "if True:",
    ),
    Mutant(
        "offsets ignore the order of the log",
        groups_fold.decided_offsets,
        "if $current is None or $current.position < $value.position:",
        "if True:",
        test="protocol/core/test_offsets.py::test_offset_with_later_position_wins",
    ),
    Mutant(
        "a stable fetch returns while an offset is pending",
        groups_offsets.committed,
        "if $require_stable and any(",
        "if False and any(",
        test="protocol/core/test_offsets.py::test_stable_fetch_refuses_partition_with_pending_offset",
    ),
    Mutant(
        "a checkpoint has no open transactions",
        head_document._partition,
        "open_txns=Map($item.open_txns)",
        "open_txns=Map()",
    ),
    Mutant(
        "a checkpoint has no sequences",
        head_document._partition,
        "producers=Map($item.producers)",
        "producers=Map()",
    ),
    Mutant(
        "an unknown outcome counts as success",
        Claim.settle,
        "except UnknownOutcomeError as $error:",
        "except UnknownOutcomeError as $error:\n            return self.data",
    ),
    Mutant(
        "an unknown outcome counts as failure",
        Claim.settle,
        "except UnknownOutcomeError as $error:",
        "except UnknownOutcomeError as $error:\n            raise StorageError('failed') from $error",
        test="protocol/chain/test_slots.py",
    ),
    Mutant(
        "an entry of unknown outcome is not settled before the next one",
        Chain._settle,
        "self._offer($attempt)",
        "pass",
        test="protocol/chain/test_slots.py",
    ),
    Mutant(
        "commands are not decided again after a conflict",
        Chain._offer,
        "if $stored != $attempt.claim.data and line_of($stored) != line_of($attempt.claim.data):",
        "if False:",
    ),
    Mutant(
        "a 412 for the writer's own entry counts as a conflict",
        Chain._offer,
        "if $stored != $attempt.claim.data and line_of($stored) != line_of($attempt.claim.data):",
        "if $attempt.claim.unknown_outcomes > unknown_before:",
        test="protocol/chain/test_slots.py",
    ),
    Mutant(
        "a commit of unknown outcome is not repeated",
        TransactionManager.not_ended,
        "if $pending is not None:",
        "if False:",
        test="protocol/producer/test_unknown.py",
    ),
    Mutant(
        "sequences of a transaction start at 1",
        TransactionManager.numbered,
        "$sequence = $following.get($upload.batch.tp, 0)",
        "$sequence = $following.get($upload.batch.tp, 1)",
    ),
    Mutant(
        "a transaction never expires",
        Transaction.expired,
        "$started + self.timeout_ms < $now",
        "False",
        test="protocol/store/test_administration_hanging.py",
    ),
    Mutant(
        "a compaction merges batches above the LSO",
        maintenance._check_removed,
        "if $limit > $partition.last_stable_offset and not $decided:",
        "if False:",
        test="unit/compactor/test_replace.py::test_batches_of_an_open_transaction_are_not_replaced",
    ),
    Mutant(
        "a compaction keeps aborted records",
        log_visibility.aborted_batches.__call__,
        "return $at >= 0 and $batch.base_offset <= self._lasts[$batch.producer_id][$at]",
        "return False",
    ),
    Mutant(
        "a vacuum drops segments that were registered during it",
        maintenance.drop_objects,
        "if $key not in $named)",
        ")",
        test="protocol/vacuum/test_segments.py::test_deletion_of_referenced_segments_is_refused",
    ),
)

MUTANTS = (
    *(*ONE_CHAIN, *HEADS, *IDENTITY, *MANY_CHAINS, *FENCES, *SIMULATED_FENCES, *GROUPS, *GATEWAYS, *READERS),
    *(
        *ENGINES,
        *EXPIRY,
        *TABLES,
        *TIME,
        *PRODUCER,
        *ANSWERS,
        *WORLDS,
        *STORAGE,
        *STREAMS,
        *CLEANS,
        *COMPACTION,
        *RETENTION,
        *CARE,
        *RANGES,
        *FRESH,
        *SETTLING,
        *INLINING,
        *SHARING,
        *HISTORY,
        *INDEX,
        *NAMES,
        *PAST,
        *PLANS,
        *TURNS,
        *UPGRADE,
        *POWER,
        *ADMIN,
        *AUTHORIZATION,
        *CLASSIC,
        *CONSUMER,
        *SERVING,
        *SESSIONS,
        *SIMULATED_SESSIONS,
        *WIRE,
    ),
)
