"""Faults in the index files of checkpoints."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.chain.checkpoints import checkpoint, index
from txnstore.chain.checkpoints.index import IndexFile, KnownEdges
from txnstore.chain.checkpoints.saver import Saver
from txnstore.compactor.vacuum import checkpoints as old_checkpoints
from txnstore.core.log.batches import BatchList

_INDEX = "unit/chain/test_index.py::"
_HISTORIES = f"{_INDEX}test_files_of_a_checkpoint_are_the_batches_of_its_state"

INDEX = (
    Mutant(
        "removed batches stay in the index",
        IndexFile.apply,
        "$batches.replace($removed, ())",
        "$batches",
        test=_HISTORIES,
    ),
    Mutant(
        "batches of a deleted topic stay in the index",
        index._changes,
        "if $tp not in $after]",
        "if False]",
        test=_HISTORIES,
    ),
    Mutant(
        "removed ranges reach over a batch that stays",
        index._removed_ranges,
        "if $staying is not None:",
        "if False:",
        test=_HISTORIES,
    ),
    Mutant(
        "batches that were added below others follow them",
        BatchList.extended,
        "$runs[0].base_offset < $own[-1].limit",
        "False",
        test=_HISTORIES,
    ),
    Mutant(
        "an index file may follow any other",
        index.decoded_edges,
        "if ($this.after, $this.previous) != ($last.sequence, $last.entry_hash):",
        "if False:",
        test=f"{_INDEX}test_a_file_that_does_not_follow_the_one_before_is_damage",
    ),
    Mutant(
        "an index file with fewer rows than its line says is read",
        index._Rows.decode,
        "if $table.num_rows != ",
        "if 0 > ",
        test="unit/chain/test_checkpoint.py::test_index_whose_rows_do_not_fit_its_line_is_damage",
    ),
    Mutant(
        "a checkpoint shares files with logs of another entry",
        checkpoint._shared,
        "lambda $pair: $pair[0].sequence == $pair[1]",
        "lambda $pair: True",
        test="protocol/verify/test_store.py::test_an_index_file_is_read_once",
    ),
    Mutant(
        "a process forgets the logs at the edges",
        KnownEdges.add,
        "if $earlier.sequence in $numbers",
        "if False",
        test=_HISTORIES,
    ),
    Mutant(
        "a writer believes forever that a shared file is there",
        Saver._save,
        "if self._saves % _LIST_EVERY == 0:",
        "if False:",
        test=f"{_INDEX}test_a_writer_notices_that_a_shared_file_is_gone",
    ),
    Mutant(
        "files count as stored although their checkpoint failed",
        Saver._save,
        "        self._objects.put($key, $data)",
        "        self._stored = frozenset(index_keys)\n        self._objects.put($key, $data)",
        test=f"{_INDEX}test_a_failed_file_is_written_with_the_next_checkpoint",
    ),
    Mutant(
        "a vacuum deletes an index file that a kept checkpoint names",
        old_checkpoints._is_garbage,
        "and not any(may_need($sequence, *$covered) for $sequence in $remaining)",
        "",
        test="protocol/chain/test_past_snapshots.py::test_a_vacuum_keeps_the_checkpoint_before_the_grace_period",
    ),
    Mutant(
        "a vacuum deletes the index file of a checkpoint that is being written",
        old_checkpoints._is_garbage,
        "$covered[1] <= $newest and",
        "",
        test="protocol/vacuum/test_leftovers.py::test_old_incomplete_checkpoint_is_deleted",
    ),
    Mutant(
        "a large state is saved as often as a small one",
        checkpoint.interval,
        "$every << min(_MAX_INTERVAL_SHIFT, ($names // MANY_NAMES).bit_length())",
        "$every",
        test="protocol/chain/test_checkpoints.py::test_a_large_state_is_saved_less_often",
    ),
    Mutant(
        "released objects do not count for the size of a state",
        checkpoint.interval,
        "+ len($state.released)",
        "",
        test="protocol/chain/test_checkpoints.py::test_a_state_with_many_released_objects_is_saved_less_often",
    ),
    Mutant(
        "a column named like one of version 2 makes an index file one of version 2",
        index._Rows.decode,
        "$of_version_2 = self._version <= version2.VERSION",
        '$of_version_2 = "key" in table.column_names',
        test="unit/chain/test_index.py::test_columns_of_a_later_release_are_ignored",
    ),
)
