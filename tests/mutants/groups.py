"""Faults in the rules of groups: pending offsets, offsets of recreated topics, members that a gateway keeps."""

from __future__ import annotations

from tests.harness.simulation import Mishap
from tests.harness.simulation.settings import FOLLOWERS, PASSERS
from tests.mutants.mutant import Mutant
from txnstore.core.groups import classic, fold, membership, offsets

#: Topics that are deleted and created again while consumers follow them.
_FOLLOWED = {
    "actors": (*(name for name in PASSERS if name.startswith("topics:")), *FOLLOWERS, "follow:f/3", "follow:f/4"),
    "operations": 10,
    "pace_ms": 5_000,
    "mishaps": (Mishap.SLOW,),
    "rate": 0.05,
}
#: Two gateways of one group, often enough.
_GATEWAYS = {"actors": ("producer:a/1", "gateway:q/2", "gateway:q/3"), "operations": 20, "pace_ms": 200}

GROUPS = (
    Mutant(
        "pending offsets take effect immediately",
        fold._offsets_committed,
        "$pending = $event.producer_id != NO_PRODUCER",
        "$pending = False",
    ),
    Mutant(
        "pending offsets of an aborted transaction take effect",
        fold.end_pending_offsets,
        "if $outcome is Outcome.COMMIT:",
        "if True:",
    ),
    Mutant(
        "an offset of a recreated topic is committed",
        offsets._check_same_topic,
        "if $item.topic_id is not None and $item.topic_id != $topic.topic_id:",
        "if False:",
        chains=3,
        settings=_FOLLOWED,
    ),
    Mutant(
        "an offset that was checked in an old catalog is committed",
        offsets._check_catalog,
        "if $replacing and $offsets.catalog < $state.seen.get(CATALOG, 0):",
        "if False:",
        chains=3,
        settings=_FOLLOWED,
    ),
    Mutant(
        "the first offset of a topic does not follow from the catalog",
        offsets._check_catalog,
        "    if $new:\n        observe(",
        "    if False:\n        observe(",
        chains=3,
        settings=_FOLLOWED,
    ),
    Mutant(
        "a gateway stores a generation after one that it does not know",
        classic.store_generation,
        "if $group.generation != $command.expected:",
        "if False:",
        settings=_GATEWAYS,
    ),
    Mutant(
        "a member of a gateway commits in any generation",
        membership.check_membership,
        "= _generation_of($group, $offsets.member_id)",
        "= $offsets.generation if $group.classic else _generation_of($group, $offsets.member_id)",
        settings=_GATEWAYS,
    ),
    Mutant(
        "who is no member of a gateway commits",
        membership.require_any_member,
        "        require_member($group, $name, $member_id, $instance_id)\n        return\n",
        "        require_member($group, $name, $member_id, $instance_id)\n    return\n",
        settings=_GATEWAYS,
    ),
    Mutant(
        "a commit without membership is accepted while a gateway keeps members",
        membership.expire_if_none_live,
        "_group_in($draft, $name).classic_members or ",
        "",
        settings=_GATEWAYS,
    ),
)
