"""Faults in noticing that a store was deleted, and in deleting what is left of it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.chain.chains import Chains
from txnstore.chain.identity import Identity
from txnstore.chain.log import Chain
from txnstore.compactor.foreign import foreign_pages, foreign_stores
from txnstore.compactor.vacuum import _choose, _view_after_lists

_TESTS = "protocol/test_replaced_stores.py::"

IDENTITY = (
    Mutant(
        "a store that was open once exists for all time",
        Identity._is_due,
        "abs(self._runtime.monotonic() - self._confirmed_at) > CONFIRM_MS",
        "False",
        test=f"{_TESTS}test_process_notices_that_its_store_was_deleted",
    ),
    Mutant(
        "a commit that succeeds shows that the store exists",
        Chain._commit,
        "        confirm()  # Nothing must be acknowledged",
        "        pass  #",
        test=f"{_TESTS}test_process_that_never_pauses_notices_as_soon",
    ),
    Mutant(
        "a reader does not look whether the store exists",
        Chains.view,
        "        confirm()",
        "        pass",
        test=f"{_TESTS}test_process_notices_that_its_store_was_replaced",
    ),
    Mutant(
        "any store.json is that of the open store",
        Identity.check,
        "if store_id != self._keys.store_id:",
        "if False:",
        test=f"{_TESTS}test_process_notices_that_its_store_was_replaced",
    ),
    Mutant(
        "a vacuum trusts an earlier look at store.json",
        _view_after_lists,
        "connection.chains.identity.confirm()",
        "pass",
        test=f"{_TESTS}test_vacuum_of_the_old_store_deletes_nothing_of_the_new_one",
    ),
    Mutant(
        "a vacuum takes the chains of its own store for foreign",
        foreign_pages,
        "not in (None, keys.store_id)",
        "is not None",
        test=f"{_TESTS}test_vacuum_deletes_what_is_left_when_all_of_it_is_old",
    ),
    Mutant(
        "a vacuum deletes a part of a chain",
        foreign_stores,
        "max(known.youngest_ms, item.modified_ms)",
        "min(known.youngest_ms or item.modified_ms, item.modified_ms)",
        test=f"{_TESTS}test_vacuum_deletes_what_is_left_when_all_of_it_is_old",
    ),
    Mutant(
        "a vacuum forgets dropped keys whose objects exist",
        _choose,
        "named.gone.difference_update(key for item in page for key in named.dropped(item.key))",
        "pass",
        test="protocol/test_vacuum_segments.py::test_dropped_keys_stay_in_the_state_until_deleted",
    ),
)
