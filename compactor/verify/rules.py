"""The invariants of a store by name, the rules that check each of them, and how often each rule was checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from txnstore.core.invariants.check import ACROSS, EVENTS, INVARIANTS, STEPS
from txnstore.core.invariants.common import Violation

#: What a store promises, by name.
STORE_INVARIANTS: Mapping[str, str] = {
    "records-read-once": "An acknowledged record of a committed transaction is read exactly once, at its offset, until "
    "retention or a compaction rightly removes it.",
    "undecided-invisible": "No read_committed reader sees a record of an aborted or open transaction.",
    "transactions-whole": "All records of a transaction, in all partitions, and its group offsets become visible "
    "together.",
    "offsets-ordered": "Offsets are never reused or reordered; log start ≤ LSO ≤ high watermark, and none goes back.",
    "sequences-contiguous": "The sequences of a producer in a partition have no gap; a repeated append is recognised.",
    "epochs-ascending": "Epochs of a producer never go back; nothing of an older epoch is accepted after a newer one.",
    "decided-once": "A transaction is decided once, and its markers have that outcome.",
    "objects-intact": "Every object that the state names exists and is as recorded; each entry names its predecessor.",
    "needed-data-kept": "Compaction, retention and vacuum remove nothing that is undecided or named.",
    "checkpoint-equals-fold": "The state from a checkpoint and the entries after it equals the fold of all.",
    "groups-sound": "Each partition of a group has one reader, and offsets of a group move by later commits only.",
    "catalog-sound": "The topics, their partitions and their copies in other chains fit together.",
}

#: The invariant of the rules of each module of ``core/invariants``, where :data:`_BY_RULE` has no other.
_BY_MODULE = {
    "logs": "offsets-ordered",
    "transactions": "transactions-whole",
    "producers": "sequences-contiguous",
    "fences": "epochs-ascending",
    "groups": "groups-sound",
    "steps": "offsets-ordered",
    "across": "transactions-whole",
}
_BY_RULE = {
    "topics_own_their_partitions": "catalog-sound",
    "checkpoint_of_cleans": "needed-data-kept",
    "revisions_follow_replacements": "needed-data-kept",
    "revisions_are_entries": "needed-data-kept",
    "segments_referenced_once": "records-read-once",
    "batches_hold_their_offsets": "records-read-once",
    "dropped_segments_unreferenced": "needed-data-kept",
    "open_transactions_hold_the_lso": "undecided-invisible",
    "stable_data_is_decided": "undecided-invisible",
    "aborted_index_sound": "undecided-invisible",
    "transactions_well_formed": "decided-once",
    "epochs_known_to_coordinator": "epochs-ascending",
    "producer_ids_unique": "epochs-ascending",
    "pending_offsets_have_a_transaction": "transactions-whole",
    "offsets_never_renumbered": "records-read-once",
    "undecided_data_is_kept": "needed-data-kept",
    "deletion_keeps_what_it_cuts": "needed-data-kept",
    "segments_go_through_dropped": "needed-data-kept",
    "decided_stays_decided": "undecided-invisible",
    "epochs_never_go_back": "epochs-ascending",
    "producer_ids_never_move": "epochs-ascending",
    "decisions_never_change": "decided-once",
    "versions_never_go_back": "decided-once",
    "group_offsets_by_position": "groups-sound",
    "closed_topics_take_nothing": "catalog-sound",
    "deleted_topics_are_closed": "catalog-sound",
    "copies_follow_the_catalog": "catalog-sound",
}
#: The rules of the verification itself, with what each is checked for.
_OF_OBJECTS = (
    ("objects-intact", "identity_intact", "stores"),
    ("objects-intact", "lists_are_complete", "stores"),
    ("objects-intact", "boundary_intact", "chains"),
    ("objects-intact", "entry_present", "entries"),
    ("objects-intact", "entry_intact", "entries"),
    ("objects-intact", "payload_intact", "entries"),
    ("objects-intact", "entry_fits", "entries"),
    ("objects-intact", "principals_add_up", "entries"),
    ("objects-intact", "entry_time", "entries"),
    ("objects-intact", "hash_chain", "entries"),
    ("objects-intact", "history_unchanged", "entries"),
    ("objects-intact", "segment_present", "segments"),
    ("objects-intact", "segment_size", "segments"),
    ("objects-intact", "segment_content", "contents"),
    ("records-read-once", "segment_rows", "contents"),
    ("records-read-once", "segment_timestamps", "contents"),
    ("records-read-once", "compaction_keeps_records", "compactions"),
    ("records-read-once", "compaction_conserves_sums", "compactions"),
    ("records-read-once", "segment_sums", "contents"),
    ("needed-data-kept", "compaction_below_lso", "compactions"),
    ("checkpoint-equals-fold", "checkpoint_intact", "checkpoints"),
    ("checkpoint-equals-fold", "checkpoint_equals_fold", "checkpoints"),
    ("checkpoint-equals-fold", "state_at_head", "chains"),
    ("catalog-sound", "schema_readable", "topics"),
)


@dataclass(frozen=True, slots=True)
class RuleReport:
    """The number of checks and violations of a rule.

    Attributes:
        invariant: The invariant that it is a part of: a name in ``STORE_INVARIANTS``.
        rule: Its name, which is that of its violations.
        objects: What it is checked for: ``stores``, ``chains``, ``entries``, ``states`` (after some entries),
            ``steps`` (from one entry to the next, with each of its events), ``checkpoints``, ``compactions``, ``views``
            (of all chains), ``topics``, ``segments``, ``contents`` (of segments, only if the verification is deep).
        checked: For how many of them.
        failed: The number of its violations.
    """

    invariant: str
    rule: str
    objects: str
    checked: int
    failed: int


def rule_reports(counts: Mapping[str, int], violations: Iterable[Violation]) -> tuple[RuleReport, ...]:
    """Return the report of each rule, in the order of the invariants.

    Args:
        counts: The number of objects of each kind that were checked.
    """
    failure_counts = Counter(violation.name for violation in violations)
    order = list(STORE_INVARIANTS)
    reports = [
        RuleReport(invariant, rule, objects, counts.get(objects, 0), failure_counts[rule])
        for invariant, rule, objects in _all_rules()
    ]
    return tuple(sorted(reports, key=lambda report: order.index(report.invariant)))


def _all_rules() -> Iterator[tuple[str, str, str]]:
    """All rules: invariant, name, and what each is checked for."""
    yield from _OF_OBJECTS
    for rules, objects in ((INVARIANTS, "states"), ((*STEPS, *EVENTS), "steps"), (ACROSS, "views")):
        for rule in rules:
            yield _invariant_of(rule), rule.__name__, objects


def _invariant_of(rule: Callable[..., Any]) -> str:
    return _BY_RULE.get(rule.__name__) or _BY_MODULE[rule.__module__.rpartition(".")[2]]
