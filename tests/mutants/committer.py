"""Faults in what an entry may carry for another process, and in what that process takes for the outcome."""

from __future__ import annotations

from tests.harness.simulation.settings import EVERYBODY
from tests.mutants.mutant import Mutant
from txnstore.chain.chain import Chain
from txnstore.chain.committer.carrying import Horizons
from txnstore.chain.committer.committer import Committer
from txnstore.chain.committer.network import NetworkMeeting, TcpNetwork
from txnstore.chain.committer.tls import Tls
from txnstore.chain.group_commit import Drafts
from txnstore.chain.tail import fold

_WRITERS = tuple(
    actor for actor in EVERYBODY if actor.startswith(("producer:", "plain:", "threads:", "copy:", "member:"))
)
#: Writers of one machine, which loses one message in ten.
_SHARED = {"actors": _WRITERS, "machines": 1, "cuts": 0.1, "pace_ms": 20, "operations": 8}
_SEAMS = "protocol/chain/test_committer_seams.py::"
_NETWORK = "unit/chain/test_network.py::"

COMMITTER = (
    Mutant(
        "an entry carries what its process has committed itself",
        Horizons.allow,
        "return $origin.after >= $newest",
        "return True",
        settings=_SHARED,
    ),
    Mutant(
        "the own entries of a caller do not count",
        Horizons.record,
        "{$entry.writer_id, *(",
        "{*(",
        settings=_SHARED,
    ),
    Mutant(
        "a committer carries what came over an older channel",
        Committer._is_allowed,
        "self.callers.get(origin.writer_id) is origin.channel and",
        "",
        settings=_SHARED,
    ),
    Mutant(
        "a process decides a command that an entry carries",
        Chain._decide,
        "self._committer.settle($waiters)",
        "pass",
        settings=_SHARED,
    ),
    Mutant(
        "what follows a refused command of its process is carried",
        Drafts.decide,
        "not_carried.add($waiter.origin.writer_id)",
        "pass",
        test=f"{_SEAMS}test_what_follows_a_refused_command_of_its_process_waits_for_it",
    ),
    Mutant(
        "an answer is that of the state before the entry",
        fold,
        "$inside[$place] = $state",
        "$inside[$place] = before",
        test=f"{_SEAMS}test_the_answer_of_a_carried_command_is_that_of_its_place_in_the_entry",
    ),
    Mutant(
        "a committer asks as one who has every right",
        Committer.asked,
        "QueuedCommand($command, $principal, Origin(",
        "QueuedCommand($command, 'User:root', Origin(",
        test=f"{_SEAMS}test_refusals_for_a_principal_of_one_process_do_not_affect_the_commands_of_others",
    ),
    Mutant(
        "an entry names the principal of its first command for all",
        Drafts.decide,
        "add_principal($principals, $waiter.principal,",
        "add_principal($principals, waiters[0].principal,",
        test=f"{_SEAMS}test_a_gateway_asks_for_several_principals_of_which_one_is_refused",
    ),
    Mutant(
        "a committer does not read the rules that a caller has read",
        Committer.asked,
        "self._chain.read_catalog($message.catalog)",
        "pass",
        test=f"{_SEAMS}test_rules_that_a_caller_has_read_in_another_chain_hold_for_what_it_hands_over",
    ),
    Mutant(
        "an entry may be older than what its callers know",
        Chain._time_for,
        "min($time, LATEST_MS)",
        "0",
        test=f"{_SEAMS}test_an_entry_is_not_older_than_what_its_callers_know_of_other_chains",
    ),
    Mutant(
        "an entry does not name the features that its commands add",
        Drafts._make_entry,
        "requires=$requires if $requires != NO_FEATURES else None",
        "requires=None",
        test=f"{_SEAMS}test_features_that_a_caller_requires_hold_from_its_entry_on_for_all",
    ),
    Mutant(
        "who may read the store is served",
        TcpNetwork._admit,
        "self.objects.get($proof)",
        "pass",
        test=f"{_NETWORK}test_a_process_that_creates_nothing_is_not_admitted",
    ),
    Mutant(
        "a caller trusts each certificate",
        Tls._compare,
        "if not hmac.compare_digest($found, $fingerprint):",
        "if False:",
        test=f"{_NETWORK}test_another_certificate_is_not_trusted",
    ),
    Mutant(
        "a listener chooses what a caller creates",
        TcpNetwork.call,
        "if not _NONCE.fullmatch($nonce):",
        "if False:",
        test=f"{_NETWORK}test_a_listener_cannot_choose_what_a_caller_creates",
    ),
    Mutant(
        "a replaced committer commits",
        NetworkMeeting.is_replaced,
        "return self._successor is not None",
        "return False",
        test=f"{_NETWORK}test_a_silent_process_is_replaced_and_notices_it",
    ),
)
