"""Faults in the rights of commands, in the rules that give them, and in the way of those to all chains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.harness.simulation import Mishap
from tests.harness.simulation.settings import ADMINISTRATORS
from tests.mutants.mutant import Mutant
from txnstore.chain.chain import Chain
from txnstore.chain.group_commit import Drafts
from txnstore.coordinator.coordinator import Coordinator
from txnstore.core import decide as deciding
from txnstore.core.authorization import changes, rights
from txnstore.core.authorization.rules import Authorization
from txnstore.core.transactions import init
from txnstore.core.transactions import rules as transactions
from txnstore.scan import Scan

#: Producers and maintenance of several principals under rules that change all the time.
_UNDER_RULES: Mapping[str, Any] = {
    "actors": ("producer:a/1", "producer:b/1", "plain:p/1", "scan:s/1", "tidy:t/1", "copy:c/1", *ADMINISTRATORS),
    "operations": 8,
    "pace_ms": 300,
}
#: Calls whose outcome is unknown, and that are repeated after the right to them was revoked.
_WRITERS = ("producer:a/1", "producer:b/1", "plain:p/1", "plain:p/2", *ADMINISTRATORS)

#: Faults that the simulation finds by the rulebook, under rules that change under load.
_FAULTS: tuple[tuple[str, Any, str, str, int], ...] = (
    ("commands are not checked", deciding.decide, 'if $authorization.mode != "off":', "if False:", 1),
    ("what was refused is committed", deciding._repeated_decision, "return None if $decision.events else $decision",
     "return $decision", 1),
    ("another chain uses the rules that its process knew", Chain.authorization,
     "if $catalog is self or not is_in_use($state):", "if True:", 3),
    ("another chain does not follow from a change", Coordinator._change_authorization,
     "if is_in_use($catalog.state):", "if False:", 3),
    ("everyone writes checkpoints", Chain.checkpoint,
     "check_rights(self.authorization(), self._context.principal, [CLUSTER_ACTION])", "pass", 1),
    ("a rule that denies is ignored", Authorization.explain, 'if $acl.permission == "DENY":',
     'if $acl.permission == "DENIED":', 1),
    ("super users are checked by rules", Authorization.explain, "if $principal in self.super_users:",
     'if $principal in self.super_users and resource_type == "CLUSTER":', 1),
    ("an append to a topic needs no right", transactions.appends, "if $topics:", "if False:", 1),
    ("an init of a transactional id needs no right", init.inits_producer,
     '$rights = [write_id($command.transactional_id)]', "$rights = []", 1),
    ("maintenance needs no right", rights.maintains, "return [CLUSTER_ACTION]", "return []", 1),
    ("a scan may read any topic", Scan.__init__, "$connection.check_rights(read_topics([$topic]))", "pass", 1),
    ("an administrator locks himself out by a rule", changes.change_acls, "_check_not_locked_out($draft)", "pass", 1),
    ("an abort needs the rights of what is aborted", transactions.ends,
     "return appends(Append($command.producer, $command.batches, $command.offsets), $state)",
     'return [*writes_id($command.producer), Right("WRITE", "TOPIC", ("source",))]', 1),
    ("a deleted rule stays", changes._acl_deleted, "$state.authorization.acls.discard($event.acl)",
     "$state.authorization.acls", 1),
    ("an entry does not say who asked", Drafts.decide, "$principals if $checked else None", "None", 3),
)  # fmt: skip

AUTHORIZATION = (
    *(
        Mutant(name, function, old, new, chains=chains, mishaps=(), settings=_UNDER_RULES)
        for name, function, old, new, chains in _FAULTS
    ),
    Mutant(
        "a repetition of what is committed is refused",
        deciding._repeated_decision,
        "if not COMMANDS[type($command)].repeats:",
        "if True:",
        mishaps=(Mishap.OUTAGE, Mishap.LOST),
        settings={**_UNDER_RULES, "actors": _WRITERS, "operations": 12, "rate": 0.1, "interrupts": 0.2},
    ),
)
