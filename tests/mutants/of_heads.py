"""Faults in finding the head of a chain, in deciding its next entry, and in what follows from it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.chain import codec
from txnstore.chain import group_commit as waiting
from txnstore.chain.chain import Chain
from txnstore.chain.checkpoints.saver import Saver
from txnstore.chain.loading import Loader
from txnstore.chain.tail import Tail, _end_of_window
from txnstore.consumer import Consumer
from txnstore.core.log import appending
from txnstore.core.transactions import rules as transactions_rules
from txnstore.producer.sender import Sender
from txnstore.storage.base import Claim
from txnstore.storage.local import LocalStore, RootFolder

_RUNS = "unit/core/test_runs.py"
_OPENING = "protocol/chain/test_opening.py::"

HEADS = (
    Mutant(
        "the first name without an entry is the end of a chain",
        Tail._missing,
        "if $sure and not any($unfolded.values()):",
        "if False:",
        test="protocol/chain/test_holes.py::test_missing_entry_at_the_end_of_what_was_read_together_is_named",
    ),
    Mutant(
        "the first window of an open ends before the head that its hint names",
        Tail.ahead,
        "range($sequence + 1, $last + 1)",
        "range($sequence + 1, $last)",
        test=f"{_OPENING}test_entries_up_to_the_head_that_a_hint_names_are_read_at_once[40-36]",
    ),
    Mutant(
        "an open does not see how many entries follow",
        _end_of_window,
        "$absent + ABSENT - 1 if $absent else",
        "$absent + ABSENT - 1 if False else",
        test=f"{_OPENING}test_an_open_takes_three_round_trips_and_few_requests_beside_the_tail[43]",
    ),
    Mutant(
        "entries far ahead are no evidence",
        Tail._missing,
        "if all($follower is None for $follower in $unfolded.values()):",
        "if all($unfolded.get(sequence + distance) is None for distance in range(ABSENT)):",
        test=f"{_OPENING}test_entries_far_ahead_show_that_one_is_lost[11]",
    ),
    Mutant(
        "a head that was read long ago is trusted",
        Chain._is_stale,
        "abs($now - self._head_read_at) > _TRUST_MS",
        "False",
        test="protocol/chain/test_holes.py::test_missing_entry_after_the_known_head_is_named",
    ),
    Mutant(
        "an open that was suspended counts as a look at the head",
        Chain.load,
        "sure=True, now=$now)",
        "sure=True)",
        test="protocol/chain/test_holes.py::test_an_open_that_was_suspended_is_no_look_at_the_head",
    ),
    Mutant(
        "a chain that lost its beginning is empty",
        Loader.check,
        "$state.sequence < self._every:",
        "False:",
        test="protocol/chain/test_holes.py::test_chain_that_lost_its_beginning_is_not_empty",
    ),
    Mutant(
        "a refused repetition decides an interrupted create",
        Claim.settle,
        "if $refused_so_far:",
        "if True:",
        test="protocol/chain/test_undecided.py::test_undecided_slot_gets_no_other_bytes",
    ),
    Mutant(
        "a command with a value of a wrong type is decided",
        Chain.enqueue,
        "check($command)",
        "pass",
        test="unit/chain/test_combining.py::test_unencodable_command_fails_alone",
    ),
    Mutant(
        "an entry is written without a comparison of its types",
        codec.encode,
        'warnings="error"',
        "warnings=False",
        test="unit/chain/test_codec.py::test_a_value_of_a_wrong_type_is_not_written",
    ),
    Mutant(
        "a long entry is written without a comparison of its types",
        codec.written_in_parts,
        'to_json([*$run], warnings="error")',
        "to_json([*$run], warnings=False)",
        test="unit/chain/test_codec.py::test_a_value_of_a_wrong_type_is_not_written",
    ),
    Mutant(
        "all batches of a command are decided in the same state",
        appending.begin_append,
        "if $tp in $run:",
        "if False:",
        test=f"{_RUNS}::test_a_batch_is_checked_after_those_of_its_partition_before_it",
    ),
    Mutant(
        "the last event of a partition is folded, and not those before it",
        appending._in_partitions,
        "$changed.get($tp) or",
        "",
        test=f"{_RUNS}::test_events_folded_together_and_one_by_one_give_the_same_state",
    ),
    Mutant(
        "a batch that is folded with its marker is not in the log",
        appending.marker_written,
        "$batches = $batches.append($last)",
        "pass",
        test=f"{_RUNS}::test_batches_folded_with_their_markers_and_before_them_give_the_same_state",
    ),
    Mutant(
        "a transaction that is aborted in its only entry is not in the aborted index",
        appending.marker_written,
        "$first_offset = $last.base_offset if $first_offset is None else $first_offset",
        "pass",
        test=f"{_RUNS}::test_batches_folded_with_their_markers_and_before_them_give_the_same_state",
    ),
    Mutant(
        "the marker takes the offset of the batch before it",
        transactions_rules._marker_of,
        "$partition.high_watermark if $last is None else $last.limit",
        "$partition.high_watermark",
        test=f"{_RUNS}::test_batches_folded_with_their_markers_and_before_them_give_the_same_state",
    ),
    Mutant(
        "batches and markers raise no fence of their producer",
        appending._with_fences,
        "if is_foreign($state, $producer_id):",
        "if False:",
        test="protocol/chains/test_steps.py",
    ),
    Mutant(
        "a command that was never offered has an unknown outcome",
        waiting.error_of,
        "if $attempt is not None and $waiter.command in $attempt.commands:",
        "if $attempt is not None:",
        test="protocol/chain/test_undecided.py::test_only_commands_of_the_undecided_entry_have_an_unknown_outcome",
    ),
    Mutant(
        "an interrupt of one thread fails the commands of others that were never offered",
        Chain._commit_round,
        "and is_unwritten(self._undecided, $waiter)",
        "and False",
        test="unit/chain/test_combining.py"
        "::test_interrupt_of_a_leader_that_has_not_offered_a_command_leaves_it_to_its_own_thread",
    ),
    Mutant(
        "a commit puts an older state over that of a reader",
        Chain._publish,
        "if $state.sequence > self.state.sequence:",
        "if True:",
        test="protocol/chain/test_undecided.py::test_reader_may_see_an_entry_before_its_own_process_is_told",
    ),
    Mutant(
        "an error of a checkpoint that is not the storage's fails the commit",
        Saver._save_all,
        "except Exception as $error:",
        "except OSError as $error:",
        test="protocol/chain/test_checkpoints.py::test_any_failure_of_a_checkpoint_leaves_the_commit_alone",
    ),
    Mutant(
        "a folder that was created again is the old one",
        RootFolder.check,
        "os.path.samestat(os.fstat($descriptor), self._path.stat())",
        "Path(self.path).stat()",
        test="protocol/repair/test_vanished_stores.py::test_commit_into_a_store_that_was_created_again_fails",
    ),
    Mutant(
        "an exception of a signal handler refuses a command",
        Sender._submit,
        "except TxnStoreError as $error:",
        "except Exception as $error:",
        test="protocol/store/test_alarms.py::test_alarm_anywhere_in_a_commit_is_no_refusal",
    ),
    Mutant(
        "an exception of a signal handler is an error of a link",
        LocalStore._link,
        "if $error.errno is None:",
        "if False:",
        test="protocol/store/test_alarms.py::test_alarm_after_a_file_was_linked_is_not_the_error_of_the_link",
    ),
    Mutant(
        "a commit does not restore the positions of an interrupted poll",
        Consumer._open,
        "self._poller.restore()",
        "pass",
        test="protocol/consumer/test_interrupts.py::test_second_interrupt_while_positions_are_restored_skips_no_record",
    ),
)
