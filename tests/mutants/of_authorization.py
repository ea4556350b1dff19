"""Mutants of the rights of commands, of the evaluation of rules, of their way to all chains, and of their changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.harness.simulation import Mishap
from tests.harness.simulation.settings import ADMINISTRATORS
from tests.mutants.mutant import Mutant
from txnstore.chain.chain import Chain
from txnstore.chain.checkpoints import document as head_document
from txnstore.chain.group_commit import Drafts, add_principal
from txnstore.compactor.compact import rounds as compact_rounds
from txnstore.compactor.compact.compaction import _Compaction
from txnstore.compactor.repair import repair as repairs
from txnstore.compactor.retention import retain
from txnstore.compactor.vacuum.vacuum import _Vacuum
from txnstore.connection import Connection
from txnstore.consumer.consumer import Consumer
from txnstore.consumer.fetcher import Poller
from txnstore.coordinator import copies
from txnstore.coordinator.coordinator import Coordinator
from txnstore.core import decide as deciding
from txnstore.core.authorization import changes, rights, rules
from txnstore.core.authorization.rules import Authorization, _Index
from txnstore.producer.accumulator import RecordAccumulator
from txnstore.producer.producer import Producer
from txnstore.scan import Scan
from txnstore.sql import planning

_RIGHTS = "protocol/authorization/test_rights.py::"
_EACH = _RIGHTS + "test_auth_01_auth_02_each_right_is_needed_and_all_are_enough"
_STORES = "protocol/authorization/test_stores.py::"
_RULES = "unit/core/test_authorization.py::"
_PROPERTIES = "protocol/authorization/test_properties.py::"
_COVERED = _PROPERTIES + "test_events_need_no_right_that_their_command_did_not_check"
_ENTRIES = "protocol/authorization/test_entries.py::"
_EARLY = "protocol/authorization/test_early_checks.py::"
_SEAMS = "protocol/authorization/test_seams.py::"
_MAINTENANCE = _STORES + "test_maintenance_needs_cluster_action_before_it_writes_anything"
#: Producers and maintenance of several principals under rules that change all the time.
_UNDER_RULES: Mapping[str, Any] = {
    "actors": ("producer:a/1", "producer:b/1", "plain:p/1", "scan:s/1", "tidy:t/1", "copy:c/1", *ADMINISTRATORS),
    "operations": 8,
    "pace_ms": 300,
}
#: Calls whose outcome is unknown, and that are repeated when the right to them is gone.
_WRITERS = ("producer:a/1", "producer:b/1", "plain:p/1", "plain:p/2", *ADMINISTRATORS)


def _unchecked(name: str, function: Any, old: str, new: str = "return []", test: str = _EACH) -> Mutant:
    return Mutant(f"{name} needs no right", function, old, new, test=test)


#: For each row of the table a command that is not checked, or only in part.
TABLE = (
    _unchecked(
        "an init of a transactional id",
        rights._of_init,
        '$rights = [Right("WRITE", "TRANSACTIONAL_ID", ($command.transactional_id,))]',
        "$rights = []",
    ),
    _unchecked("two-phase commit", rights._of_init, "if $command.two_phase:", "if False:"),
    _unchecked(
        "an init without a transactional id",
        rights._of_init,
        'return [Right("IDEMPOTENT_WRITE", "CLUSTER", (CLUSTER,), or_else=("WRITE", "TOPIC", None))]',
    ),
    _unchecked("an append to a topic", rights._of_append, "if $topics:", "if False:"),
    _unchecked(
        "an append in a transaction", rights._of_append, "$rights = _of_producer($command.producer)", "$rights = []"
    ),
    _unchecked("a group that is added", rights._of_append, "if $command.groups or $command.offsets:", "if False:"),
    _unchecked("a partition that is added", rights._of_append, "if $command.partitions:", "if False:"),
    _unchecked(
        "a topic of offsets in a transaction",
        rights._of_append,
        "return $rights + _of_offset_topics($command.offsets) if $command.offsets else $rights",
        "return $rights",
    ),
    _unchecked(
        "an end",
        rights._of_end,
        "return _of_append(Append($command.producer, $command.batches, $command.offsets))",
    ),
    _unchecked(
        "what an end brings",
        rights._of_end,
        "return _of_append(Append($command.producer, $command.batches, $command.offsets))",
        "return _of_producer($command.producer)",
    ),
    _unchecked("a prepare", rights._of_hold, "return _of_producer($command.producer)"),
    _unchecked(
        "an abort by an operator",
        rights._of_abort,
        'return [Right("WRITE", "TRANSACTIONAL_ID", ($command.transactional_id,), or_else=_OR_CLUSTER_ACTION)]',
    ),
    Mutant(
        "an abort past the timeout needs a right",
        rights._of_abort,
        "if $command.expired_only:",
        "if False:",
        test=_RIGHTS + "test_an_abort_after_the_timeout_needs_no_right",
    ),
    _unchecked(
        "a commit of offsets",
        rights._of_offsets,
        'return [Right("READ", "GROUP", ($command.offsets.group,)), *_of_offset_topics(($command.offsets,))]',
        "return [*_of_offset_topics(($command.offsets,))]",
    ),
    _unchecked(
        "a topic of committed offsets",
        rights._of_offsets,
        ", *_of_offset_topics(($command.offsets,))]",
        "]",
    ),
    _unchecked("a member", rights._of_member, 'return [Right("READ", "GROUP", ($command.group,))]'),
    _unchecked(
        "the deletion of a group", rights._of_delete_group, 'return [Right("DELETE", "GROUP", ($command.group,))]'
    ),
    _unchecked(
        "the creation of a topic",
        rights._of_create_topic,
        'return [Right("CREATE", "TOPIC", ($command.topic.name,), or_else=("CREATE", "CLUSTER", CLUSTER))]',
    ),
    _unchecked(
        "a change of partitions and columns",
        rights._of_alter_topic,
        "if $before is None or replace($before, config=$after.config, version=$after.version, "
        "revision=$after.revision) != $after:",
        "if False:",
    ),
    _unchecked(
        "a change of columns",
        rights._of_alter_topic,
        "replace($before, config=$after.config, version=$after.version, revision=$after.revision) != $after",
        "$before.partitions != $after.partitions",
    ),
    _unchecked(
        "a change of settings",
        rights._of_alter_topic,
        "if $before is None or $before.config != $after.config:",
        "if False:",
    ),
    _unchecked(
        "the deletion of a topic", rights._of_delete_topic, 'return [Right("DELETE", "TOPIC", ($command.name,))]'
    ),
    _unchecked(
        "the deletion of records",
        rights._of_delete_records,
        "return [delete_records_of($item.tp.topic for $item in $command.deletions)]",
    ),
    _unchecked("maintenance", rights._of_maintenance, "return [CLUSTER_ACTION]"),
    _unchecked("a change of the rules", rights._of_authorization, "return [ALTER_CLUSTER]"),
    Mutant(
        "only the first resource of a right is checked",
        rights.check_rights,
        "for $name in $names if not",
        "for $name in [*$names][:1] if not",
        test=_RIGHTS + "test_all_refused_resources_are_named_sorted_and_once",
    ),
    Mutant(
        "only the first right is checked",
        rights.check_rights,
        "for $right in $rights:",
        "for $right in [*$rights][:1]:",
        test=_EACH,
    ),
    Mutant(
        "the other right is not enough",
        rights.check_rights,
        "if $refused and not ($or_else is not None and $allows($principal, *$or_else)):",
        "if $refused:",
        test=_EACH,
    ),
    Mutant(
        "the rights are not those of the events",
        rights._of_append,
        "$topics = {$batch.topic for $batch in $command.batches}",
        "$topics = set()",
        test=_COVERED,
    ),
    Mutant(
        "a group without its topics covers a commit of offsets",
        rights._of_offset_topics,
        "if $topics else []",
        "if False else []",
        test=_COVERED,
    ),
)

#: The evaluation of rules.
EVALUATION = (
    Mutant(
        "a rule that denies is ignored",
        Authorization.explain,
        'if $acl.permission == "DENY":',
        'if $acl.permission == "DENIED":',
        test=_RULES + "test_a_rule_that_denies_wins_over_all_that_allow",
    ),
    Mutant(
        "a rule that allows wins if it comes first",
        Authorization.explain,
        "elif $allowing is None and $acl.operation in $allowed_by:",
        "elif $acl.operation in $allowed_by:\n            $allowing = $acl\n            break\n        elif False:",
        test=_RULES + "test_a_rule_that_denies_wins_over_all_that_allow",
    ),
    Mutant(
        "a rule that denies all operations denies none",
        Authorization.explain,
        'if $acl.operation in ($operation, "ALL"):',
        "if $acl.operation == $operation:",
        test=_RULES + "test_a_rule_that_denies_wins_over_all_that_allow",
    ),
    Mutant(
        "a rule that denies denies what is implied, too",
        Authorization.explain,
        'if $acl.operation in ($operation, "ALL"):',
        "if $acl.operation in allowed_by:",
        test=_RULES + "test_these_operations_imply_describe_where_they_are_allowed",
    ),
    Mutant(
        "no operation implies another one",
        Authorization.explain,
        "elif $allowing is None and $acl.operation in $allowed_by:",
        'elif $allowing is None and $acl.operation in (operation, "ALL"):',
        test=_RULES + "test_these_operations_imply_describe_where_they_are_allowed",
    ),
    Mutant(
        "a rule for everyone is for nobody",
        Authorization.explain,
        "if $acl.principal not in ($principal, EVERYONE):",
        "if $acl.principal != $principal:",
        test=_RULES + "test_a_rule_that_denies_wins_over_all_that_allow",
    ),
    Mutant(
        "a rule for one principal is for everyone",
        Authorization.explain,
        "if $acl.principal not in ($principal, EVERYONE):",
        "if False:",
        test=_RULES + "test_a_rule_for_somebody_else_is_a_rule_for_the_resource",
    ),
    Mutant(
        "super users are checked by rules",
        Authorization.explain,
        "if $principal in self.super_users:",
        "if False:",
        test=_RULES + "test_super_users_may_do_everything",
    ),
    Mutant(
        "a resource with rules for others is open to all",
        Authorization.explain,
        "if not $has_rule:",
        "if True:",
        test=_RULES + "test_a_rule_for_somebody_else_is_a_rule_for_the_resource",
    ),
    Mutant(
        "a resource without rules is open to all",
        Authorization.explain,
        "allowed=self.allow_if_no_acl",
        "allowed=True",
        test=_RULES + "test_without_a_rule_nothing_is_allowed_unless_the_store_says_so",
    ),
    Mutant(
        "a prefix is compared the wrong way round",
        _Index.matching,
        '($resource_type, "PREFIXED", $name[:$length])',
        '($resource_type, "PREFIXED", $name[-$length:])',
        test=_RULES + "test_prefixes_are_of_the_name_and_of_the_type",
    ),
    Mutant(
        "a prefix that is the whole name does not count",
        _Index.matching,
        "$lengths[: bisect_right($lengths, len($name))]",
        "$lengths[: bisect_right($lengths, len($name) - 1)]",
        test=_RULES + "test_prefixes_are_of_the_name_and_of_the_type",
    ),
    Mutant(
        "an asterisk is a name as any other",
        _Index.matching,
        "if $name != ANY_NAME:",
        "if False:",
        test=_RULES + "test_an_asterisk_is_every_name_only_if_it_is_literal_and_alone",
    ),
    Mutant(
        "a right to some topic counts although it is denied",
        Authorization._allows_on_some,
        "and not _is_covered($acl, $denied)",
        "",
        test=_RULES + "test_auth_03_idempotent_writes_need_some_topic",
    ),
    Mutant(
        "a right to some topic counts although all are denied",
        Authorization._allows_on_some,
        'if ("LITERAL", ANY_NAME) in $denied:',
        "if False:",
        test=_RULES + "test_auth_03_idempotent_writes_need_some_topic",
    ),
    Mutant(
        "a longer prefix that is denied covers a shorter one",
        rules._has_denied_prefix,
        '("PREFIXED", $name[:$length]) in $denied for $length in range(1, len($name) + 1)',
        "pattern == 'PREFIXED' and (other.startswith($name) or $name.startswith(other)) for pattern, other in $denied",
        test=_RULES + "test_auth_03_idempotent_writes_need_some_topic",
    ),
)

#: How the chains use the rules.
CHAINS = (
    Mutant(
        "commands are not checked",
        deciding.decide,
        'if $authorization.mode != "off":',
        "if False:",
        test=_STORES + "test_auth_01_without_a_right_to_the_id_no_producer_is_made",
    ),
    Mutant(
        "a lost change of the rules is taken for none",
        Chain.authorization,
        "if $known.sequence < $needed:",
        "if False:",
        test=_STORES + "test_a_lost_change_of_the_rules_stops_the_chains_that_follow_from_it",
    ),
    Mutant(
        "a deletion that is refused half way has changed nothing",
        copies.unknown_if_partial,
        "isinstance($error, StorageError | AuthorizationError)",
        "isinstance($error, StorageError)",
        test=_SEAMS + "test_a_deletion_that_loses_its_right_half_way_has_an_unknown_outcome",
    ),
    Mutant(
        "a checkpoint is due at its own entry only",
        Chain._is_checkpoint_due,
        "$due = $due or $state.sequence - self._saved_until >= $every",
        "pass",
        test=_SEAMS + "test_a_process_that_may_maintain_writes_the_checkpoint_that_others_may_not",
    ),
    Mutant(
        "a checkpoint of another process is not counted",
        Chain._record,
        "if $is_known and any(self._may_maintain($principal) for $principal, _ in $entry.principals):",
        "if False:",
        test=_SEAMS + "test_processes_that_may_maintain_write_one_checkpoint_together",
    ),
    Mutant(
        "while chains are loaded every writer counts as one that has written a checkpoint",
        Chain._record,
        "if $is_known and any(",
        "if any(",
        test=_SEAMS + "test_a_process_that_has_just_opened_the_store_writes_overdue_checkpoints_of_all_chains",
    ),
    Mutant(
        "every writer counts as one that has written a checkpoint",
        Chain._record,
        "if $is_known and any(self._may_maintain($principal) for $principal, _ in $entry.principals):",
        "if True:",
        test=_SEAMS + "test_a_process_that_may_maintain_writes_the_checkpoint_that_others_may_not",
    ),
    Mutant(
        "a check returns rules that it did not check",
        Connection.check_rights,
        "return $authorization",
        "return self.chain.state.authorization",
        test=_SEAMS + "test_a_check_returns_the_rules_that_it_checked",
    ),
    Mutant(
        "a preparation follows into other chains only with the right",
        rights._of_hold,
        "if $command.after is None else []",
        "",
        test=_EACH,
    ),
    Mutant(
        "a pinned scan is checked by the rules that were known",
        Scan.__init__,
        "$connection.refresh_rules()",
        "pass",
        test=_SEAMS + "test_pinned_reads_are_checked_by_the_newest_rules",
    ),
    Mutant(
        "a repair is not checked after a failed request",
        repairs._check_rights,
        "except StoreError:",
        "except Exception:",
        test=_SEAMS + "test_a_repair_is_refused_if_the_rules_cannot_be_read_now",
    ),
    Mutant(
        "a repetition of what is committed is refused",
        deciding._repetition,
        "if not isinstance($command, Append | EndTxn | HoldTxn):",
        "if True:",
        test=_RIGHTS + "test_a_repetition_of_what_is_committed_is_answered_also_without_the_right",
    ),
    Mutant(
        "what was refused is committed",
        deciding._repetition,
        "return None if $decision.events else $decision",
        "return $decision",
        test=_STORES + "test_a_right_that_is_taken_away_ends_with_the_next_entry",
    ),
    Mutant(
        "the rules of the beginning of an entry hold for all of it",
        Drafts.decide,
        "$waiter.principal, $authorization)",
        "$waiter.principal, $authorization or before.authorization)",
        test=_ENTRIES + "test_a_command_is_checked_by_the_rules_that_an_earlier_one_of_its_entry_has_left",
    ),
    Mutant(
        "all events of an entry are of the first principal",
        add_principal,
        "and $principals[-1][0] == $principal:",
        ":",
        test=_ENTRIES + "test_each_command_of_an_entry_is_that_of_its_principal",
    ),
    Mutant(
        "commands are checked for the first principal of their entry",
        Drafts.decide,
        "decide($state, $payload.place($waiter.command), $waiter.principal,",
        "decide($state, $payload.place($waiter.command), waiters[0].principal,",
        test=_ENTRIES + "test_each_command_of_an_entry_is_that_of_its_principal",
    ),
    Mutant(
        "a refused command counts as one of its principal",
        Drafts.decide,
        "$events += $payload.accepted($mark, $decision.events)",
        "$events += $payload.accepted($mark, $decision.events); add_principal(principals, waiter.principal, 1)",
        test=_ENTRIES + "test_each_command_of_an_entry_is_that_of_its_principal",
    ),
    Mutant(
        "an entry does not say who asked",
        Drafts.decide,
        "$principals if $checked else None",
        "None",
        test=_STORES + "test_who_asked_is_in_each_entry_of_a_store_that_checks_rights",
    ),
    Mutant(
        "an entry says who asked in a store without rules",
        Drafts.decide,
        "$principals if $checked else None",
        "$principals",
        test=_STORES + "test_a_store_that_never_enabled_it_has_no_trace_of_it_and_makes_no_request",
    ),
    Mutant(
        "another chain does not follow from a change",
        Coordinator._change_authorization,
        "if is_in_use($catalog.state):",
        "if False:",
        test=_STORES + "test_other_chains_follow_from_each_change_before_the_call_returns",
    ),
    Mutant(
        "a change that died half way is not finished",
        changes.follow_authorization,
        "$draft.emit(Observed(chain=CATALOG, sequence=$command.sequence))",
        "pass",
        test=_STORES + "test_a_change_that_dies_half_way_is_finished_by_the_same_call",
    ),
    Mutant(
        "a chain that follows requires no feature",
        changes.follow_authorization,
        "$draft.require(AUTHORIZATION)",
        "pass",
        test=_STORES + "test_other_chains_follow_from_each_change_before_the_call_returns",
    ),
    Mutant(
        "the first rule requires no feature",
        changes.change_acls,
        "$draft.require(AUTHORIZATION)",
        "pass",
        test=_ENTRIES + "test_the_first_rule_requires_the_feature_although_nothing_is_checked_yet",
    ),
    Mutant(
        "a store that checks rights requires no feature",
        changes.change_authorization,
        "$draft.require(AUTHORIZATION)",
        "pass",
        test=_ENTRIES + "test_the_first_rule_requires_the_feature_although_nothing_is_checked_yet",
    ),
    Mutant(
        "a checkpoint has no rules",
        head_document._authorization,
        "acls=Map(dict.fromkeys($item.acls))",
        "acls=Map()",
        test=_STORES + "test_rules_survive_checkpoints_and_a_new_process",
    ),
    Mutant(
        "everyone writes checkpoints",
        Chain._may_maintain,
        'return self._siblings[CATALOG].state.authorization.allows($principal, "CLUSTER_ACTION", "CLUSTER", CLUSTER)',
        "return True",
        test=_STORES + "test_checkpoints_are_written_by_those_who_may_maintain_the_store",
    ),
    Mutant(
        "everyone saves a checkpoint by a call",
        Chain.checkpoint,
        "check_rights(self.authorization(), self._principal, [CLUSTER_ACTION])",
        "pass",
        test=_STORES + "test_checkpoints_are_written_by_those_who_may_maintain_the_store",
    ),
)

#: What clients check before they upload or read.
CLIENTS = (
    Mutant(
        "a consumer may read any topic",
        Poller._check_readable,
        "if self._readable is self._connection.chain.state.authorization:",
        "if True:",
        test=_STORES + "test_a_consumer_that_loses_its_right_stops_with_the_error",
    ),
    Mutant(
        "a consumer may subscribe to any topic",
        Consumer.subscribe,
        "self._connection.check_rights(read_topics($names))",
        "pass",
        test=_STORES + "test_readers_need_their_topics_and_groups",
    ),
    Mutant(
        "a consumer may be assigned any partition",
        Consumer.assign,
        "self._connection.check_rights(read_topics($tp.topic for $tp in $tps))",
        "pass",
        test=_STORES + "test_readers_need_their_topics_and_groups",
    ),
    Mutant(
        "a scan may read any topic",
        Scan.__init__,
        "$connection.check_rights(read_topics([$topic]))",
        "pass",
        test=_STORES + "test_readers_need_their_topics_and_groups",
    ),
    *(
        Mutant(
            f"{name} begins without the right to maintain the store",
            function,
            "$connection.check_rights(CLUSTER_ACTION)",
            "pass",
            test=test,
        )
        for name, function, test in (
            ("a compaction", _Compaction.run, _MAINTENANCE),
            ("a retention", retain, _MAINTENANCE),
            ("a vacuum", _Vacuum.run, _MAINTENANCE),
            (
                "a compaction in rounds",
                compact_rounds.watch,
                _EARLY + "test_rounds_of_compactions_do_not_begin_without_the_right_to_them",
            ),
        )
    ),
    Mutant(
        "a view in SQL may read any topic",
        planning.plan_topic,
        "if $refusal is not None:",
        "if False:",
        test=_EARLY + "test_views_of_topics_without_the_right_to_read_them_raise_when_they_are_read",
    ),
    Mutant(
        "offsets are accepted before the right to their group is checked",
        Producer.send_offsets,
        "read_group($group_offsets.group), ",
        "",
        test=_STORES + "test_auth_02_tst_25_offsets_need_the_group_and_their_topics",
    ),
    Mutant(
        "a client is refused by the rules that it knew",
        Connection.check_rights,
        "$authorization = $catalog.refresh().authorization",
        "pass",
        test=_EARLY + "test_a_client_is_not_refused_by_rules_that_are_out_of_date",
    ),
    Mutant(
        "records are uploaded before the right to their topic is checked",
        RecordAccumulator._find,
        "if $write and $buffer.writable is not",
        "if False and $buffer.writable is not",
        test=_STORES + "test_auth_02_a_refused_topic_aborts_the_transaction_and_nothing_else",
    ),
)

#: Changes of the rules.
CHANGES = (
    Mutant(
        "an administrator locks himself out by his settings",
        changes.change_authorization,
        "_check_not_locked_out($draft)",
        "pass",
        test=_STORES + "test_nobody_locks_himself_out",
    ),
    Mutant(
        "an administrator locks himself out by a rule",
        changes.change_acls,
        "_check_not_locked_out($draft)",
        "pass",
        test=_STORES + "test_nobody_locks_himself_out",
    ),
    Mutant(
        "a rule is created twice",
        changes.change_acls,
        "if $acl not in $acls or $acl in $deleted)",
        ")",
        test=_STORES + "test_creating_and_deleting_rules_twice_changes_nothing",
    ),
    Mutant(
        "a rule that does not exist is deleted",
        changes.change_acls,
        "for $acl in dict.fromkeys($command.deleted) if $acl in $acls)",
        "for $acl in dict.fromkeys($command.deleted))",
        test=_STORES + "test_creating_and_deleting_rules_twice_changes_nothing",
    ),
    Mutant(
        "a deleted rule stays",
        changes._acl_deleted,
        "$state.authorization.acls.discard($event.acl)",
        "$state.authorization.acls",
        test=_STORES + "test_creating_and_deleting_rules_twice_changes_nothing",
    ),
    Mutant(
        "a rule without effect is created",
        changes.change_acls,
        "check_acl($acl)",
        "pass",
        test=_STORES + "test_wrong_rules_are_refused_whole",
    ),
    Mutant(
        "new super users are added to the old ones",
        changes._authorization_changed,
        "super_users=frozenset($event.super_users)",
        "super_users=frozenset($event.super_users) | state.authorization.super_users",
        test=_STORES + "test_nobody_locks_himself_out",
    ),
)

#: Faults that the simulation finds by the rulebook, under rules that change under load.
_SIMULATED_FAULTS: tuple[tuple[str, Any, str, str, int], ...] = (
    ("commands are not checked", deciding.decide, 'if $authorization.mode != "off":', "if False:", 1),
    ("what was refused is committed", deciding._repetition, "return None if $decision.events else $decision",
     "return $decision", 1),
    ("another chain uses the rules that its process knew", Chain.authorization,
     "if $catalog is self or not is_in_use($state):", "if True:", 3),
    ("another chain does not follow from a change", Coordinator._change_authorization,
     "if is_in_use($catalog.state):", "if False:", 3),
    ("everyone writes checkpoints", Chain.checkpoint,
     "check_rights(self.authorization(), self._principal, [CLUSTER_ACTION])", "pass", 1),
    ("a rule that denies is ignored", Authorization.explain, 'if $acl.permission == "DENY":',
     'if $acl.permission == "DENIED":', 1),
    ("super users are checked by rules", Authorization.explain, "if $principal in self.super_users:",
     'if $principal in self.super_users and resource_type == "CLUSTER":', 1),
    ("an append to a topic needs no right", rights._of_append, "if $topics:", "if False:", 1),
    ("an init of a transactional id needs no right", rights._of_init,
     '$rights = [Right("WRITE", "TRANSACTIONAL_ID", ($command.transactional_id,))]', "$rights = []", 1),
    ("maintenance needs no right", rights._of_maintenance, "return [CLUSTER_ACTION]", "return []", 1),
    ("a scan may read any topic", Scan.__init__, "$connection.check_rights(read_topics([$topic]))", "pass", 1),
    ("an administrator locks himself out by a rule", changes.change_acls, "_check_not_locked_out($draft)", "pass", 1),
    ("an abort needs the rights of what is aborted", rights._of_end,
     "return _of_append(Append($command.producer, $command.batches, $command.offsets))",
     'return [*_of_producer($command.producer), Right("WRITE", "TOPIC", ("source",))]', 1),
    ("a deleted rule stays", changes._acl_deleted, "$state.authorization.acls.discard($event.acl)",
     "$state.authorization.acls", 1),
    ("an entry does not say who asked", Drafts.decide, "$principals if $checked else None", "None", 3),
)  # fmt: skip
SIMULATED = (
    *(
        Mutant(f"{name} (simulated)", function, old, new, chains=chains, mishaps=(), settings=_UNDER_RULES)
        for name, function, old, new, chains in _SIMULATED_FAULTS
    ),
    Mutant(
        "a repetition of what is committed is refused (simulated)",
        deciding._repetition,
        "if not isinstance($command, Append | EndTxn | HoldTxn):",
        "if True:",
        mishaps=(Mishap.OUTAGE, Mishap.LOST),
        settings={**_UNDER_RULES, "actors": _WRITERS, "operations": 12, "rate": 0.1, "interrupts": 0.2},
    ),
)

AUTHORIZATION = (*TABLE, *EVALUATION, *CHAINS, *CLIENTS, *CHANGES, *SIMULATED)
