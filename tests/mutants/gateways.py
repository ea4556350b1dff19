"""Faults that the world of gateways detects: sessions and groups of clients that go from one gateway to the other."""

from __future__ import annotations

from typing import Any

from tests.harness.simulation.settings import NODES
from tests.mutants.mutant import Mutant
from txnstore.core.groups import classic as rules_of_classic
from txnstore.core.groups import membership
from txnstore.core.log import appending
from txnstore.core.transactions import rules
from txnstore.gateway.commits import Commits
from txnstore.gateway.groups.classic import coordinator
from txnstore.gateway.groups.classic.coordinator import ClassicCoordinator
from txnstore.gateway.groups.classic.group import ClassicGroup
from txnstore.gateway.groups.consumer.coordinator import ConsumerCoordinator
from txnstore.gateway.groups.offsets import GroupOffsets
from txnstore.gateway.produce import Produce
from txnstore.gateway.sessions import Sessions

_CLASSIC = {"actors": (*NODES, "classic:c/1", "classic:c/2", "classic:c/3"), "pace_ms": 1_000}
_EPOCHS = {"actors": (*NODES, "epochs:k/1", "epochs:k/2", "epochs:k/3"), "pace_ms": 1_000, "partitions": 3}
_KINDS = {"actors": (*NODES, "classic:m/1", "epochs:m/2", "native:m/3"), "pace_ms": 200}
_TRANSACTIONS = {"actors": (*NODES, "wire:w1/1", "wire:w1/2"), "pace_ms": 1_000}
_ALONE = {"actors": (*NODES, "wire:w1/1"), "pace_ms": 200}


def _mutant(name: str, function: Any, old: str, new: str, settings: Any, chains: int = 1) -> Mutant:
    return Mutant(name, function, old, new, chains, settings=settings, gateways=True)


GATEWAYS = (
    # Classic groups ---------------------------------------------------------------------------------------------------
    _mutant(
        "an assignment is answered before its generation is stored",
        ClassicGroup.sync,
        "if self.state is State.STABLE:",
        "if self.state is State.STABLE or self._has_assigned:",
        _CLASSIC,
    ),
    _mutant(
        "the leader is answered before its assignment is stored",
        ClassicGroup._store_if_due,
        "self._actions.append(self._generation_to_store)",
        "self._actions.append(self._generation_to_store); "
        "[self._respond(each.sync, self._sync_response(each)) for each in self._members.values() if each.sync]",
        _CLASSIC,
    ),
    _mutant(
        "members of a newer generation get the assignment of the one that is stored",
        ClassicGroup.stored,
        "and self._stored_generation == self.generation:",
        "and True:",
        _CLASSIC,
    ),
    _mutant(
        "a coordinator whose generation was refused continues",
        ClassicCoordinator._store,
        "    self._drop($live, $code)\n",
        "    self._apply($live, $live.group.stored)\n",
        _CLASSIC,
    ),
    _mutant(
        "a generation of unknown outcome counts as stored",
        coordinator._log_and_code,
        "return ErrorCode.coordinator_not_available if $is_temporary",
        "return ErrorCode.none if $is_temporary",
        _CLASSIC,
    ),
    _mutant(
        "a gateway stores a generation after any other",
        rules_of_classic.store_generation,
        "if $group.generation != $command.expected:",
        "if False:",
        _CLASSIC,
    ),
    _mutant(
        "a member of any generation commits",
        membership.check_membership,
        "= _generation_of($group, $offsets.member_id)",
        "= $offsets.generation if $group.classic else _generation_of($group, $offsets.member_id)",
        _CLASSIC,
    ),
    # Kinds ------------------------------------------------------------------------------------------------------------
    _mutant(
        "a member of another kind joins",
        membership.join,
        "if $group.kind != $command.kind:",
        "if False:",
        _KINDS,
    ),
    _mutant(
        "members of a gateway are not live",
        membership.expire_if_none_live,
        "_group_in($draft, $name).classic_members or ",
        "",
        _KINDS,
    ),
    # KIP-848 ----------------------------------------------------------------------------------------------------------
    _mutant(
        "a member gets a partition that another one has not released",
        membership._emit_rebalance,
        "{$tp for $tp in $target if $tp not in $taken}",
        "set($target)",
        _EPOCHS,
    ),
    _mutant(
        "a member is at the newest epoch before it has released its partitions",
        membership._reconcile,
        "$epoch is None or set($member.held).issubset($member.target)",
        "True",
        _EPOCHS,
    ),
    _mutant(
        "a member commits in the generation of its group",
        membership._generation_of,
        "if $group.epochs is None else",
        "if True else",
        _EPOCHS,
    ),
    _mutant(
        "a static member is beside its older instance",
        membership.join,
        "$before = _static_member($group, $command.instance_id)",
        "pass",
        _EPOCHS,
    ),
    _mutant(
        "a member gets its targets, also those that others hold",
        ConsumerCoordinator._response,
        "assignment_by_topic(self._view, $membership.assigned)",
        "assignment_by_topic(self._view, "
        "getattr(self._group(live_group.name).members.get(membership.member_id), 'target', membership.assigned))",
        _EPOCHS,
    ),
    # Offsets ----------------------------------------------------------------------------------------------------------
    _mutant(
        "committed offsets are those that the gateway knows of",
        GroupOffsets.fetch,
        "await self._services.freshness.head()",
        "self._services.freshness.view",
        _EPOCHS,
    ),
    _mutant(
        "a refused commit is acknowledged",
        GroupOffsets.commit,
        "$failure = code_of($error, Api.OFFSET_COMMIT, $request.version)",
        "$failure = None",
        _CLASSIC,
    ),
    # Transactions -----------------------------------------------------------------------------------------------------
    _mutant(
        "an end is mapped by what the gateway knows",
        Sessions._check_to_end,
        "identity_to_end(await self._freshness.head(), $client)",
        "identity_to_end(self._freshness.view_at_arrival, $client)",
        _ALONE,
    ),
    _mutant(
        "a refused batch is not looked up at the head",
        Produce._on_commit,
        "if isinstance($error, OUTDATED) and $staged.session is not None:",
        "if False:",
        _ALONE,
        3,
    ),
    _mutant(
        "a repeated batch is appended again",
        appending._check_sequence,
        "$repeated = _find_in_window($window, $batch)",
        "$repeated = None",
        _ALONE,
    ),
    _mutant(
        "a window forgets the transactions before the last one",
        appending._session_window,
        "(*$kept, *$window)[-WINDOW:] if $kept",
        "() if $kept",
        _ALONE,
    ),
    _mutant(
        "an end in a session is never a repetition",
        rules._repeated_end,
        "$outcome = earlier_outcome($txn, $command)",
        "$outcome = None",
        _ALONE,
    ),
    _mutant(
        "the answer to a commit is that of its neighbour",
        Commits._answer,
        "zip($taken, $answers, strict=True)",
        "zip($taken, reversed($answers), strict=True)",
        _TRANSACTIONS,
    ),
)
