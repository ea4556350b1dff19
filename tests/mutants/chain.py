"""Faults in a chain: who has written an entry, where the chain ends, what a checkpoint holds, whose the store is."""

from __future__ import annotations

from tests.harness.simulation import Mishap
from tests.harness.simulation.settings import LOSERS, OPERATORS, TENANTS
from tests.mutants.mutant import Mutant
from txnstore.chain.boundary import Boundaries
from txnstore.chain.chain import Chain
from txnstore.chain.chains import Chains
from txnstore.chain.checkpoints import document
from txnstore.chain.checkpoints.checkpoint import hint_of_this_store
from txnstore.chain.checkpoints.saver import Saver
from txnstore.chain.earlier_states import EarlierStates
from txnstore.chain.identity import Identity
from txnstore.chain.loading import Loader
from txnstore.chain.tail import Tail
from txnstore.connection import Connection, create_connection
from txnstore.storage.base import Claim

_READERS = {"actors": ("producer:a/1", "plain:p/1", "committed:r/1", "scan:s/1"), "operations": 6, "pace_ms": 5_000}
_HOLES = {**_READERS, "hidden": 0.3, "jumps": 0.0}
_GAPS = {
    "actors": ("producer:a/1", "producer:b/1", "plain:p/1", "committed:r/1", "scan:s/1", *LOSERS),
    "operations": 12,
    "pace_ms": 5_000,
    "jumps": 0.0,
    "checkpoint_every": 8,
}
_INTERRUPTS = {"actors": ("producer:a/1", "producer:b/1", "plain:p/1"), "interrupts": 0.3, "operations": 6}
_LOSSES = {"syncs": 0.1, "losses": 4, "operations": 6}
#: Creates and reads that something else than the store answers.
_ELSEWHERE = {"elsewhere": 0.3, "operations": 6}
#: Entries are deleted while processes are suspended.
_FORGOTTEN = {
    "lease_ms": 10_000,
    "operations": 12,
    "actors": ("forget:k/1", "forget:k/2", "nap:k/3", "napscan:k/5", "tidy:t/1"),
}
#: Stores that are deleted, and replaced by others.
_SITE = {"actors": TENANTS, "operations": 6, "pace_ms": 200}
#: Vacuums without other actors that stop them, and files that are misplaced for longer than their grace period.
_OPERATED = {"actors": ("producer:a/1", "tidy:t/1", "tidy:t/2", "tidy:t/3", *OPERATORS), "operations": 12}

#: What a process writes when it closes the store.
_CLOSES = "protocol/chain/test_last_checkpoints.py"

CHAIN = (
    # Entries ---------------------------------------------------------------------------------------------------------
    Mutant(
        "an unknown outcome counts as success",
        Claim.resolve,
        "except UnknownOutcomeError as $error:",
        "except UnknownOutcomeError as $error:\n            return self.data",
    ),
    Mutant(
        "commands are not decided again after a conflict",
        Chain._offer,
        "if $stored != $attempt.claim.data and line_of($stored) != line_of($attempt.claim.data):",
        "if False:",
    ),
    Mutant(
        "a refused repetition decides an interrupted create",
        Claim.resolve,
        "if $refused_so_far:",
        "if True:",
        mishaps=(Mishap.BUSY,),
        settings=_INTERRUPTS,
    ),
    Mutant(
        "an entry whose sync has failed is acknowledged because it is visible",
        Claim.resolve,
        "if $stored is not None and ($exists or not $visible):",
        "if $stored is not None:",
        mishaps=(),
        settings=_LOSSES,
    ),
    Mutant(
        "a name that is said to exist has the bytes of the process itself",
        Claim.resolve,
        "$exists = True",
        "return self.data",
        mishaps=(),
        settings=_ELSEWHERE,
    ),
    Mutant(
        "a create that something else has answered is acknowledged",
        Claim.resolve,
        "self.unknown_outcomes += 1",
        "return self.data",
        mishaps=(),
        settings=_ELSEWHERE,
    ),
    # The head --------------------------------------------------------------------------------------------------------
    Mutant(
        "the first name without an entry is the end of a chain",
        Tail._read_missing,
        "if $sure and not any($unfolded.values()):",
        "if False:",
        mishaps=(),
        settings=_HOLES,
    ),
    Mutant(
        "a head that was read long ago is trusted",
        Chain._is_stale,
        "abs($now - self._head_read_at) > HEAD_MAX_AGE_MS",
        "False",
        mishaps=(),
        settings=_HOLES,
    ),
    Mutant(
        "a gap between entries is the end of a chain",
        Tail._read_missing,
        "if all($follower is None for $follower in $unfolded.values()):",
        "if True:",
        mishaps=(Mishap.SLOW,),
        settings=_GAPS,
    ),
    Mutant(
        "a reader does not look whether entries were deleted",
        Boundaries._has_expired,
        "return $passed >= LEASE_MS",
        "return False",
        mishaps=(Mishap.SLOW,),
        settings=_FORGOTTEN,
    ),
    # Checkpoints -----------------------------------------------------------------------------------------------------
    Mutant(
        "a checkpoint has no open transactions",
        document._partition,
        "open_txns=Map($item.open_txns)",
        "open_txns=Map()",
    ),
    Mutant(
        "a checkpoint has no sequences",
        document._partition,
        "producers=Map($item.producers)",
        "producers=Map()",
    ),
    Mutant(
        "a missing checkpoint leaves the entries after it",
        Loader.first,
        "$saved, $window = self._newest_checkpoint() or $saved, None",
        "$saved = self._newest_checkpoint() or $saved",
        settings={"checkpoint_every": 8, "hidden": 0.3, "jumps": 0.0},
    ),
    Mutant(
        "a checkpoint is complete before its index is written",
        Saver._save,
        "in checkpoint.encode_checkpoint(self._keys, self._number, $ends, $state, $stored):",
        "in [*checkpoint.encode_checkpoint(self._keys, self._number, $ends, $state, $stored)][::-1]:",
        settings={"checkpoint_every": 8},
    ),
    Mutant(
        "the hint is written before the checkpoint that it names",
        Saver._save,
        "in checkpoint.encode_checkpoint(self._keys, self._number, $ends, $state, $stored):",
        "in [checkpoint.hint_to(self._number, $state.sequence), "
        "*checkpoint.encode_checkpoint(self._keys, self._number, $ends, $state, $stored)]:",
        settings={"checkpoint_every": 8},
    ),
    Mutant(
        "a process that closes writes a checkpoint without the right to maintain",
        Chain.last_checkpoint,
        "or not self._may_maintain(self._context.principal)",
        "",
        test=f"{_CLOSES}::test_a_principal_that_may_not_maintain_writes_none",
    ),
    Mutant(
        "each of several processes that close writes the hint",
        Saver._save,
        "elif not self._objects.put_if_absent($key, $data):",
        "elif self._objects.put_if_absent($key, $data) is None:",
        test=f"{_CLOSES}::test_of_two_that_close_at_the_same_time_one_creates_the_checkpoint",
    ),
    Mutant(
        "a process that closes writes an older hint than there is",
        Saver._save_last,
        "if $state.sequence - $hint.sequence >= $distance:",
        "if True:",
        test=f"{_CLOSES}::test_an_older_checkpoint_does_not_replace_the_hint_of_a_newer_one",
    ),
    Mutant(
        "a process that closes writes into the store that replaced a deleted one",
        Connection._save_last,
        "[[$chains.identity.confirm], $saves] if $chains.identity.is_due() else [$saves]",
        "[$saves]",
        test=f"{_CLOSES}::test_nothing_of_a_deleted_store_is_written_beside_the_new_one",
    ),
    # Identity --------------------------------------------------------------------------------------------------------
    Mutant(
        "a store that was open once exists for all time",
        Identity.is_due,
        "abs(self._runtime.monotonic() - self._confirmed_at) > CONFIRM_MS",
        "False",
        mishaps=(),
        settings=_SITE,
    ),
    Mutant(
        "a commit that succeeds shows that the store exists",
        Chain._commit,
        "        $confirm()  # 3. An entry",
        "        pass  #",
        mishaps=(),
        settings=_SITE,
    ),
    Mutant(
        "a reader does not look whether the store exists",
        Chains.view,
        "        $confirm()",
        "        pass",
        mishaps=(),
        settings=_SITE,
    ),
    Mutant(
        "any store.json is that of the open store",
        Identity.check,
        "if $store_id != self._keys.store_id:",
        "if False:",
        mishaps=(),
        settings=_SITE,
    ),
    Mutant(
        "a store is created over what is left of another one",
        create_connection,
        "                raise\n",
        "                pass\n",
        mishaps=(),
        settings=_OPERATED,
    ),
    Mutant(
        "a process believes the hint of another store",
        hint_of_this_store,
        "$document.store_id == $keys.store_id",
        "True",
        mishaps=(),
        settings=_OPERATED,
    ),
    # Earlier snapshots -----------------------------------------------------------------------------------------------
    Mutant(
        "an entry of the time itself does not belong to it",
        EarlierStates.last_until,
        "bisect_right($numbers, $timestamp,",
        "bisect_right($numbers, $timestamp - 1,",
    ),
    Mutant(
        "a time is found one entry too late",
        EarlierStates.last_until,
        "return $first + bisect_right(",
        "return 1 + $first + bisect_right(",
        chains=3,
    ),
)
