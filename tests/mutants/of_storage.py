"""Faults in what is taken for durable, for an answer of the store, for one name, or for one key."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.chain.chain import Chain
from txnstore.compactor.vacuum.vacuum import _Vacuum
from txnstore.core.catalog.model import folded
from txnstore.core.state import check_observed
from txnstore.segment.partition import _big_endian
from txnstore.sql.views import view_names
from txnstore.storage import proofs
from txnstore.storage.base import Claim
from txnstore.storage.local import LocalStore
from txnstore.storage.s3.errors import check_absence
from txnstore.storage.s3.loop import own_loop
from txnstore.storage.s3.requests import ETags
from txnstore.storage.s3.settings import _keys, _profile, plain_settings

_OBSERVED = "protocol/chains/test_observed.py::"

_POWER = "protocol/chain/test_power_loss.py::"
_LOCAL = "unit/storage/test_local.py::"
_ANSWERS = "unit/storage/test_s3_answers.py::"
_TOPICS = "unit/catalog/test_topics.py::"

STORAGE = (
    Mutant(
        "a variable that only botocore knows is passed over",
        plain_settings,
        "if not _VARIABLES.issuperset($set_ones) or",
        "if",
        test="unit/storage/test_s3_settings.py::test_all_else_is_left_to_botocore[a variable of a later botocore]",
    ),
    Mutant(
        "the keys of the environment count before those of the options",
        _keys,
        '($options, ("key", "secret", "token")),',
        "",
        test="unit/storage/test_s3_settings.py::test_plain_settings_are_those_of_the_client"
        "[keys before those of the environment]",
    ),
    Mutant(
        "credentials of both files of AWS are put together",
        _profile,
        "if not _CREDENTIALS.isdisjoint($merged) and not _CREDENTIALS.isdisjoint($settings):",
        "if False:",
        test="unit/storage/test_s3_settings.py::test_files_mean_what_botocore_makes_of_them[default]",
    ),
    Mutant(
        "any text is a region where an endpoint is given",
        plain_settings,
        "if $region is not None and not _NAME.fullmatch($region):",
        "if False:",
        test="unit/storage/test_s3_settings.py::test_all_else_is_left_to_botocore[no region]",
    ),
    Mutant(
        "a section for all profiles is passed over",
        _profile,
        " or any(map(_DOUBTFUL.search, $others))",
        "",
        test="unit/storage/test_s3_settings.py::test_files_mean_what_botocore_makes_of_them[DEFAULT]",
    ),
    Mutant(
        "a loop is shared before its thread starts",
        own_loop,
        "start(partial(_serve, $begun),",
        "$begun.run()\n        start(partial(_serve, $begun),",
        test="unit/storage/test_s3_loop.py::test_thread_that_cannot_start_leaves_no_loop",
    ),
    Mutant(
        "a proof of a storage does not expire",
        proofs.is_proven,
        "< VALID_MS",
        "< 10**20",
        test="unit/storage/test_probe.py::test_what_one_process_has_probed_another_one_does_not",
    ),
    Mutant(
        "a proof of one store counts for all in its bucket",
        proofs.proof_of,
        "\\n{$store_id}",
        "",
        test="unit/storage/test_probe.py::test_what_one_process_has_probed_another_one_does_not",
    ),
    Mutant(
        "a create that finds its name taken flushes only the last folder",
        LocalStore.put_if_absent,
        "self._flush_folders($path)",
        "pass",
        test=_LOCAL + "test_create_of_a_taken_name_writes_nothing",
    ),
    Mutant(
        "own bytes that are visible are taken for durable",
        Claim.settle,
        "if $stored is not None and ($exists or not $visible):",
        "if $stored is not None:",
        test=f"{_POWER}test_acknowledged_commit_survives_a_power_cut",
    ),
    Mutant(
        "an own entry that a reader has found is taken for durable",
        Chain._settle,
        "if not self._or_begin_again(partial(self.boundaries.check, $attempt.entry.sequence)):",
        "if self.state.sequence >= $attempt.entry.sequence:",
        test=f"{_POWER}test_entry_that_a_reader_of_the_process_has_found_is_not_taken_for_durable",
    ),
    Mutant(
        "a create that lost does not flush the content of the object",
        LocalStore.put_if_absent,
        "if not $created:",
        "if False:",
        test=f"{_LOCAL}test_losing_create_flushes_the_existing_object",
    ),
    Mutant(
        "a store that was opened on a full disk is written to unprobed",
        Chain._check_writable,
        "self._check_storage()",
        "pass",
        test="protocol/store/test_bad_storage.py::"
        "test_store_that_was_opened_on_a_full_disk_is_not_written_to_before_it_is_probed",
    ),
    Mutant(
        "a deletion flushes only what it finds",
        LocalStore.delete,
        "for $path in $paths}",
        "for $path in $paths if False}",
        test=f"{_LOCAL}test_repeated_deletion_flushes_what_the_first_one_could_not",
    ),
    Mutant(
        "a vacuum deletes what objects replace that are not flushed",
        _Vacuum._delete_unannounced,
        "_make_durable(self._connection, $view, $checkpoints.remaining, $past)",
        "pass",
        test=f"{_POWER}test_vacuum_flushes_what_replaces_the_objects_that_it_deletes",
    ),
    Mutant(
        "any ETag shows that a create was the store's",
        ETags.fit,
        "$text == hashlib.md5($data, usedforsecurity=False).hexdigest()",
        "$text",
        test=f"{_ANSWERS}test_etags_of_an_encrypted_bucket_are_learnt_with_one_request",
    ),
    Mutant(
        "any ETag of the length of an encrypted object is new",
        ETags.fit,
        "return $is_new and",
        "return",
        test=f"{_ANSWERS}test_etags_of_an_encrypted_bucket_are_learnt_with_one_request",
    ),
    Mutant(
        "any 404 means that an object does not exist",
        check_absence,
        "if $answer.status == 404 and $answer.code not in _ABSENT:",
        "if False:",
        test=f"{_ANSWERS}test_only_an_s3_server_can_report_an_absence",
    ),
    Mutant(
        "topics may differ in case only",
        folded,
        ".casefold()",
        "",
        test=f"{_TOPICS}test_names_that_differ_in_case_only_collide",
    ),
    Mutant(
        "a new topic takes the name of an older view",
        view_names,
        "$topic.name if $number == 1",
        "$topic.name if len(topics) == 1",
        test="unit/sql/test_views.py::test_views_have_their_topics_names_unless_only_the_case_differs",
    ),
    Mutant(
        "NaN keys with different bits are different keys",
        _big_endian,
        'if $values.dtype.kind == "f":',
        "if False:",
        test="protocol/read/test_column_types.py::test_every_nan_is_one_key",
    ),
    Mutant(
        "an entry may rest on a chain that does not exist",
        check_observed,
        "if not 0 <= $chain < $state.chains:",
        "if False:",
        test="protocol/chain/test_damage.py::test_command_that_rests_on_a_chain_that_does_not_exist_is_refused",
    ),
    Mutant(
        "an entry may rest on one of its own chain",
        check_observed,
        "if $chain == $state.chain:",
        "if False:",
        test=_OBSERVED + "test_an_entry_that_cannot_be_one_of_another_chain_is_refused",
    ),
    Mutant(
        "an entry may rest on one before the first",
        check_observed,
        "if $sequence < 1:",
        "if False:",
        test=_OBSERVED + "test_an_entry_that_cannot_be_one_of_another_chain_is_refused",
    ),
    Mutant(
        "an entry may rest on one that its writer has not read",
        Chain._commit,
        "$self._read_observed($attempt)",
        "pass",
        test=_OBSERVED + "test_an_entry_that_follows_from_one_that_does_not_exist_is_not_written",
    ),
)
