"""Faults in what orders the reads of a plan, and in what is checked when it becomes an entry."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.compactor import retention as maintenance_retention
from txnstore.compactor.compact import background
from txnstore.compactor.compact.replacements import Replacements
from txnstore.coordinator.coordinator import Coordinator
from txnstore.core import maintenance
from txnstore.core.catalog import versions
from txnstore.core.log import appending, retention
from txnstore.producer import upload
from txnstore.read import reader, rows

_PLANS = "protocol/compact/test_plans.py::"
_KEEPS = _PLANS + "test_step_keeps_what_was_acknowledged_by_a_version_that_it_did_not_plan_with"
_REFUSES = _PLANS + "test_step_refuses_columns_that_it_does_not_know"
_SCHEMAS = "protocol/chains/test_schemas.py::"
_READERS = "protocol/read/test_plans_of_one_age.py::"

PLANS = (
    Mutant(
        "a chain takes rows of a version of their topic that it does not know",
        appending._check_topic,
        "is_outdated($state, $batch.topic, $batch.topic_id, $batch.topic_version)",
        "pass",
        test=_SCHEMAS + "test_table_gets_a_column_that_the_chain_of_its_partition_learns_from_the_rows",
    ),
    Mutant(
        "a batch does not say which version of its topic it has",
        upload.encode_rows,
        "topic_version=$writer.topic.version",
        "topic_version=None",
        test=_READERS + "test_a_reader_that_is_overtaken_returns_whole_rows[scan-widen_and_die-3]",
    ),
    Mutant(
        "a chain takes plans of a version of their topic that it does not know",
        versions.is_outdated,
        "if $copy.version < $version:",
        "if False:",
        test=_PLANS + "test_plan_of_a_newer_version_than_the_chain_has_copies_the_topic",
    ),
    Mutant(
        "a clean has an effect though its topic was altered since",
        maintenance.check_version,
        "if is_outdated($state, $tp.topic, $topic_id, $planned):",
        "if False:",
        test=_KEEPS + "[policy-compact-1]",
    ),
    Mutant(
        "a replacement does not say which version of its topic it was planned with",
        Replacements.submit,
        "topic_version=$topic.version",
        "topic_version=None",
        test=_KEEPS + "[policy-compact-2]",
    ),
    Mutant(
        "the retention deletes records by settings that were changed since",
        retention.delete_records,
        "if is_outdated($state, $tp.topic, $topic.topic_id, $deletion.topic_version):",
        "if False:",
        test=_KEEPS + "[retention-retain-1]",
    ),
    Mutant(
        "a deletion by the retention does not say which version of its topic it was planned with",
        maintenance_retention.apply_retention,
        "$topic.topic_id, $topic.version)",
        "$topic.topic_id)",
        test=_KEEPS + "[retention-compact-2]",
    ),
    Mutant(
        "a retention that was refused is not planned again",
        maintenance_retention.apply_retention,
        "if $altered and $plans > 1:",
        "if False:",
        test=_PLANS + "test_retention_is_planned_again_by_the_settings_of_now",
    ),
    Mutant(
        "a column that a compaction does not know is damage",
        Replacements.reason,
        "if is_newer($error):",
        "if False:",
        test=_REFUSES + "[column-compact]",
    ),
    Mutant(
        "damage is a conflict of a compaction, which tries again without end",
        Replacements.reason,
        "($now.topic_id, $now.version) != ($topic.topic_id, $topic.version)",
        "True",
        test=_PLANS + "test_column_that_no_version_of_the_topic_has_is_damage[compact]",
    ),
    Mutant(
        "the sums of a conversion are not compared",
        rows._check_sums,
        "if $read != $converted:",
        "if False:",
        test=_PLANS + "test_conversion_that_changes_a_value_is_refused",
    ),
    Mutant(
        "a merge in the background leaves out columns that it does not know",
        reader.read_decoded,
        "$columns.check($part.batch, $file.columns)",
        "pass",
        test=_PLANS + "test_column_that_no_version_of_the_topic_has_is_damage[merge]",
    ),
    Mutant(
        "a merge in the background plans with a version that its chain does not know",
        background._Merges._update_copy,
        "copy_topics($self._parts.chains, $self._chain.number, [$topic.name])",
        "pass",
        test=_PLANS + "test_merge_copies_a_topic_that_its_chain_has_in_an_older_version",
    ),
    Mutant(
        "an alteration is acknowledged before each chain has it",
        Coordinator._change_catalog,
        "if $errors and isinstance($command, AlterTopic):",
        "if False:",
        test=_SCHEMAS + "test_an_alteration_is_acknowledged_when_each_chain_of_the_topic_has_it",
    ),
)
