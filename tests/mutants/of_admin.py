"""Mutants of the administration of a gateway: rights, what is refused, and what takes no effect.

A handler that asks for no right to what a command changes is no mutant: the command is decided for the same principal.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.catalog import settings as catalog_settings
from txnstore.catalog import topics as catalog_topics
from txnstore.gateway.admin import common, configs
from txnstore.gateway.admin.acls import Filter, Rules
from txnstore.gateway.admin.configs import Configs
from txnstore.gateway.admin.groups import Groups
from txnstore.gateway.admin.topics import Topics
from txnstore.gateway.admin.transactions import AdminTransactions
from txnstore.gateway.fetch import Fetch
from txnstore.gateway.metadata import Metadata
from txnstore.gateway.services import Services

_ADMIN = "integration/gateway/admin/"
_SETTINGS = "unit/catalog/test_settings.py::"
_TOPICS = _ADMIN + "test_topics.py::"
_CONFIGS = _ADMIN + "test_configs.py::"
_TRANSACTIONS = _ADMIN + "test_transactions.py::"
_GROUPS = _ADMIN + "test_groups.py::"
_ACLS = _ADMIN + "test_acls.py::"

ADMIN = (
    Mutant(
        "the store takes settings without effect",
        catalog_settings._find,
        "in INERT_NAMES and $name in $inert:",
        "in INERT_NAMES:",
        test=_SETTINGS + "test_settings_without_effect_are_taken_by_name_only",
    ),
    Mutant(
        "an alteration drops the settings without effect",
        catalog_topics.altered_topic,
        "if $setting in $topic.config or $setting in $inert",
        "if $setting in $inert",
        test=_SETTINGS + "test_an_alteration_keeps_settings_without_effect_and_can_reset_them",
    ),
    Mutant(
        "a request that is only validated creates a topic",
        Topics._create,
        "if not $validate_only:",
        "if True:",
        test=_TOPICS + "test_codes_of_topics_that_cannot_be[True-NewTopic(topic=The.re,num_partitions=1)-0]",
    ),
    Mutant(
        "a topic that is named twice is created",
        Topics._created,
        "if $is_repeated:",
        "if False:",
        test=_TOPICS + "test_each_topic_of_a_request_is_refused_alone",
    ),
    Mutant(
        "a change that is only validated is made",
        common.alter_topic,
        "if $validate_only:",
        "if False:",
        test=_CONFIGS + "test_a_change_is_checked_without_being_made",
    ),
    Mutant(
        "settings are altered with the right to read them",
        Configs._altered,
        '$self._checked($asked, "ALTER_CONFIGS", $peer)',
        '$self._checked($asked, "DESCRIBE_CONFIGS", $peer)',
        test=_CONFIGS + "test_rights_to_settings",
    ),
    Mutant(
        "AlterConfigs keeps the settings that it does not name",
        configs._replaced,
        "$kept |",
        "{} |",
        test=_CONFIGS + "test_all_settings_are_replaced[2]",
    ),
    Mutant(
        "what is to be removed from a list is all that stays",
        configs._list,
        "if $item not in $given",
        "if $item in $given",
        test=_CONFIGS + "test_single_settings_are_changed",
    ),
    Mutant(
        "markers are written without the right to",
        AdminTransactions.write_markers,
        '$self._services.check($peer, on_cluster("CLUSTER_ACTION"))',
        "pass",
        test=_TRANSACTIONS + "test_rights_to_transactions",
    ),
    Mutant(
        "a marker of an old epoch aborts a newer transaction",
        AdminTransactions._abort,
        "$marker.producer_epoch < $producer.epoch",
        "False",
        test=_TRANSACTIONS + "test_an_administrator_aborts_a_transaction",
    ),
    Mutant(
        "a client commits a transaction by markers",
        AdminTransactions.write_markers,
        "if $marker.transaction_result else",
        "if False else",
        test=_TRANSACTIONS + "test_codes_of_markers[2]",
    ),
    Mutant(
        "a description names topics that the client may not see",
        AdminTransactions._described,
        'if $self._services.may($peer, on_topic("DESCRIBE", $tp.topic)):',
        "if True:",
        test=_TRANSACTIONS + "test_rights_to_transactions",
    ),
    Mutant(
        "a group that has members in memory only is deleted",
        Groups._delete,
        "if $live is not None and $live.state is not State.EMPTY:",
        "if False:",
        test=_GROUPS + "test_a_group_whose_members_are_joining_is_not_deleted",
    ),
    Mutant(
        "a filter of pattern type MATCH leaves out prefixes",
        Filter._matches_name,
        "return $name.startswith($acl.resource_name)",
        "return $name == $acl.resource_name",
        test=_ACLS + "test_filters_are_those_of_kafka[wanted6-numbers6]",
    ),
    Mutant(
        "rules are changed without the right to",
        Rules._check_may_change,
        '$self._services.check($peer, on_cluster("ALTER"))',
        "pass",
        test=_ACLS + "test_rights_to_rules",
    ),
    Mutant(
        "a gateway keeps the rules that it has read once",
        Services.read_rules,
        "await $self.freshness.recent()",
        "pass",
        test="integration/gateway/test_rules.py::test_a_right_that_is_granted_or_taken_counts_soon",
    ),
    Mutant(
        "a gateway creates a topic for itself that a client asks for",
        Metadata._find,
        "CreateTopic($topic), $peer.principal",
        "CreateTopic($topic), None",
        test="integration/gateway/test_security.py::test_a_topic_is_created_for_the_user_who_asks",
    ),
    Mutant(
        "a fetch after a pause is answered by an old view",
        Fetch.fetch,
        "await $self._services.freshness.recent(_OUTDATED)",
        "pass",
        test="integration/gateway/test_produce_fetch.py::test_a_fetch_reads_the_head_after_a_pause",
    ),
)
