"""Mutants of the producer: its states, sequences, sender, buffer and errors."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.connection import Connection
from txnstore.core.transactions.commands import InitProducer
from txnstore.producer import Producer
from txnstore.producer.batches import ProducerBatch
from txnstore.producer.records import _integers
from txnstore.producer.sender import fenced_or_aborted
from txnstore.producer.transaction_manager import TransactionManager
from txnstore.producer.upload import deliver

_MANAGER = "unit/producer/test_transaction_manager.py::"
_FAILURES = "protocol/producer/test_failures.py::"

PRODUCER = (
    Mutant(
        "an event without a transition is ignored",
        TransactionManager._move,
        "raise self._refusal($event)",
        "return",
        test=_MANAGER + "test_every_event_in_every_state",
    ),
    Mutant(
        "a refused record does not make the transaction abortable",
        TransactionManager.record_refused,
        "self._move(ManagerEvent.ABORTABLE)",
        "pass",
        test=_FAILURES + "test_refused_record_makes_the_transaction_abortable",
    ),
    Mutant(
        "refused offsets do not make the transaction abortable",
        Producer.send_offsets,
        "self._sender.record_refused($error)",
        "pass",
        test="protocol/producer/test_offsets.py::test_invalid_group_is_refused",
    ),
    Mutant(
        "records that wait in the buffer have no timeout",
        TransactionManager.check_timeout,
        "if $now - self._first_at > self._timeout_ms:",
        "if False:",
        test="protocol/producer/test_timeouts.py::test_timeout_runs_from_the_first_record_or_offsets",
    ),
    Mutant(
        "the timeout of a transaction runs from its last record",
        TransactionManager.begin_timeout,
        "if self._first_at is None:",
        "if True:",
        test="protocol/producer/test_timeouts.py::test_timeout_runs_from_the_first_record_or_offsets",
    ),
    Mutant(
        "the timeout of a transaction runs from the one before",
        TransactionManager.begin,
        "self._unreported_outcome = self._first_at = None",
        "self._unreported_outcome = None",
        test="protocol/producer/test_timeouts.py::test_timeout_runs_from_the_first_record_of_its_own_transaction",
    ),
    Mutant(
        "the largest timeout of the store is not obeyed",
        Connection._completed,
        "if isinstance($command, InitProducer):",
        "if False:",
        test="protocol/producer/test_timeouts.py::test_init_11_store_has_its_own_largest_timeout",
    ),
    Mutant(
        "two-phase commit does not lift the timeout",
        InitProducer.granted_timeout_ms,
        "if self.two_phase:",
        "if False:",
        test="protocol/producer/test_two_phase.py::test_tpc_02_an_id_with_two_phase_commit_has_no_timeout",
    ),
    Mutant(
        "a commit that certainly failed does not resume the transaction",
        TransactionManager.not_ended,
        "self._move(ManagerEvent.RESUME if self._prepared is None else ManagerEvent.RESUME_PREPARED)",
        "pass",
        test=_MANAGER + "test_an_unknown_end_is_repeated_and_a_certain_failure_resumes",
    ),
    Mutant(
        "a failed abort leaves the transaction committable",
        TransactionManager.not_ended,
        "elif $outcome is Outcome.ABORT:",
        "elif False:",
        test="protocol/producer/test_unknown.py::test_failed_abort_may_only_be_repeated",
    ),
    Mutant(
        "sequences continue in the next epoch",
        TransactionManager.ended,
        "self._sequences, self._offsets, self._started = {}, [], False",
        "self._offsets, self._started = [], False",
        test=_MANAGER + "test_sequences_are_contiguous_and_begin_anew_in_each_epoch",
    ),
    Mutant(
        "offsets are sent with each command of a transaction",
        TransactionManager.acknowledged,
        "if id($offsets) not in $registered",
        "",
        test=_MANAGER + "test_offsets_go_with_one_command_only",
    ),
    Mutant(
        "an error in the background is not reported",
        TransactionManager.failed_in_background,
        "self._unreported_error = $error",
        "pass",
        test=_FAILURES + "test_a_batch_that_failed_in_the_background_is_reported_by_the_next_call",
    ),
    Mutant(
        "an abort abandons a command without an answer",
        TransactionManager.drop_unsent,
        "self._started = self._started or self._pending is not None",
        "pass",
        test=_MANAGER + "test_a_command_without_an_answer_is_ended_in_the_chain",
    ),
    Mutant(
        "a fenced producer may abort and continue",
        fenced_or_aborted,
        "if $txn is None or outcome_of($txn, $identity) is not Outcome.ABORT:",
        "if False:",
        test="protocol/producer/test_timeouts.py::test_fen_01_producer_past_its_timeout_is_fenced_by_newer_instance",
    ),
    Mutant(
        "a timeout of its transaction is fatal for a producer",
        fenced_or_aborted,
        "if $txn is None or outcome_of($txn, $identity) is not Outcome.ABORT:",
        "if True:",
        test="protocol/producer/test_timeouts.py::test_tmo_02_producer_paused_past_its_timeout_aborts_and_continues",
    ),
    Mutant(
        "a failed upload is not retried",
        deliver,
        "if $given_up() or",
        "if True or $given_up() or",
        test=_FAILURES + "test_an_upload_that_fails_for_a_while_is_tried_again",
    ),
    Mutant(
        "the rows of a batch are dropped before its upload",
        ProducerBatch.table,
        "self._pieces, self._rows = [], None",
        "self._pieces, self._rows, self._table = [], None, None",
        test="unit/producer/test_batching.py::test_taking_rows_releases_them",
    ),
    Mutant(
        "an integer out of the range of its column is accepted",
        _integers,
        "and $low <= $value <= $high",
        "",
        test=_FAILURES + "test_a_wrong_row_fails_alone",
    ),
)
