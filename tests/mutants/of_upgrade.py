"""Mutants of what this release does with objects of format version 2, and with features of later releases."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.chain import codec, version2
from txnstore.chain.chain import Chain
from txnstore.chain.checkpoints.index import _of_version_2
from txnstore.compactor.compact.compaction import _Compaction
from txnstore.compactor.vacuum.vacuum import _Vacuum
from txnstore.compactor.verify.chain import ChainVerifier
from txnstore.connection import Connection
from txnstore.core.log.model import Batch
from txnstore.core.model import Features
from txnstore.core.state import _unknown

_VERSION_2, _FEATURES = "protocol/upgrade/test_version2.py::", "protocol/upgrade/test_features.py::"
_READERS = _VERSION_2 + "test_readers_get_what_the_old_release_gave_them"
_WRITERS = _FEATURES + "test_unknown_write_feature_refuses_writers"

UPGRADE = (
    Mutant(
        "events of version 2 that are not understood are ignored",
        codec.decode,
        "$model.of_version_2(json.loads($body))",
        "$model.readable($model.of_version_2(json.loads($body)))",
        test="unit/chain/test_codec.py::test_event_of_version_2_that_is_not_understood_is_damage",
    ),
    Mutant(
        "a reader ignores a feature that a document requires",
        codec._validated,
        "if $requires is not None:",
        "if False:",
        test=_FEATURES + "test_store_with_an_unknown_read_feature_does_not_open",
    ),
    Mutant(
        "a reader takes the form of an unknown feature for damage",
        codec._validated,
        'check_features($key, required_by($body).read, READ_FEATURES, "read")\n        ',
        "",
        test=_FEATURES + "test_feature_of_an_entry_counts_before_its_form",
    ),
    Mutant(
        "a writer ignores the features that its store requires",
        Chain.check_features,
        "for $chain in self._siblings:",
        "for $chain in ():",
        test=_FEATURES + "test_requirements_of_a_chain_grow",
    ),
    Mutant(
        "a writer looks at the features of its own chain alone",
        Chain.check_features,
        "in self._siblings:",
        "in (self,):",
        test=_WRITERS,
    ),
    Mutant(
        "a commit does not look at the features of entries that it has read meanwhile",
        Chain._commit,
        "self.check_features()",
        "",
        test=_WRITERS,
    ),
    Mutant(
        "a checkpoint is written of a state that requires more than was known before",
        Chain.checkpoint,
        "self.check_features()",
        "",
        test=_WRITERS,
    ),
    Mutant(
        "a vacuum deletes checkpoints without the features that writers need",
        _Vacuum._delete_unannounced,
        "self._connection.check_writable(_CONSEQUENCE)",
        "",
        test=_WRITERS,
    ),
    Mutant(
        "a compaction uploads before it looks at the features",
        _Compaction.run,
        '$connection.check_writable("it cannot be compacted")',
        "None",
        test=_WRITERS,
    ),
    Mutant(
        "a chain requires only what its last entry names",
        Features.union,
        "{*self.write, *$other.write}",
        "{*$other.write}",
        test=_FEATURES + "test_requirements_of_a_chain_grow",
    ),
    Mutant(
        "a verification folds no requirements",
        ChainVerifier._fold,
        "$entry.requires or NO_FEATURES",
        "NO_FEATURES",
        test=_FEATURES + "test_requirements_of_a_chain_grow",
    ),
    Mutant(
        "an unknown event cannot be folded",
        _unknown,
        "return $state",
        "raise KeyError($state)",
        test=_FEATURES + "test_unknown_members_and_events_change_nothing",
    ),
    Mutant(
        "a place of version 2 begins a byte late",
        version2.place_of,
        '.partition(".")[0])',
        '.partition(".")[0]) + 1',
        test=_READERS,
    ),
    Mutant(
        "the batches of an index of version 2 have no places",
        _of_version_2,
        "[$first_byte for _, $first_byte in $places]",
        "[None for _ in $places]",
        test=_READERS,
    ),
    Mutant(
        "records of version 2 keep their own times in a topic with LogAppendTime",
        Batch.time_range,
        "if self.timestamp_type is None and $append_time",
        "if False and $append_time",
        test=_READERS,
    ),
    Mutant(
        "records of version 2 are read as if their times were decided when they were appended",
        version2._batch_appended,
        '"timestamp_type": None,',
        '"timestamp_type": "CreateTime",',
        test=_VERSION_2 + "test_fold_from_the_first_entry_is_what_a_checkpoint_holds",
    ),
    Mutant(
        "records that version 2 compacted are read as if their times were decided when they were appended",
        version2._segments_replaced,
        '"timestamp_type": None}',
        '"timestamp_type": "CreateTime"}',
        test=_VERSION_2 + "test_fold_from_the_first_entry_is_what_a_checkpoint_holds",
    ),
    Mutant(
        "a verification compares what version 2 kept in one list",
        ChainVerifier._compare,
        "if self._older else $folded",
        "if False else $folded",
        test=_VERSION_2 + "test_the_store_verifies",
    ),
    Mutant(
        "a verification requires first entries of transactions that an older release has not stored",
        ChainVerifier._compare,
        "_with_first_entries_of($saved, self._state)",
        "self._state",
        test=_VERSION_2 + "test_the_store_verifies",
    ),
    Mutant(
        "a verification does not compare released and announced objects",
        ChainVerifier._compare,
        "if self._older else $folded",
        "if True else $folded",
        test=_VERSION_2 + "test_released_and_dropped_objects_of_version_3_are_compared",
    ),
    Mutant(
        "a reader that cannot write fails behind an expired transaction",
        Connection._is_writable,
        "except TxnStoreError",
        "except ZeroDivisionError",
        test=_FEATURES + "test_unknown_write_feature_lets_readers_read",
    ),
)
