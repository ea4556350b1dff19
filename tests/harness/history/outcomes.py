"""Maps errors to the outcome of an operation of a history: ``ok``, ``fail`` or ``info``.

All errors of txnstore mean that nothing happened, except :class:`~txnstore.errors.UnknownOutcomeError`. Other errors
(an interrupt, a timeout of the caller) leave the outcome unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.harness.history.format import Type
from txnstore.errors import TxnStoreError, UnknownOutcomeError


def indeterminate(error: BaseException) -> bool:
    """Whether the call that raised this may have happened."""
    return isinstance(error, UnknownOutcomeError) or not isinstance(error, TxnStoreError)


def outcome_of_call(error: BaseException | None) -> Type:
    """The end of a call that is not part of a transaction, such as the wait for the future of a record."""
    if error is None:
        return Type.OK
    return Type.INFO if indeterminate(error) else Type.FAIL


def outcome_of_txn(commits: Sequence[BaseException | None], *, aborted: bool = False) -> Type:
    """The end of a transaction from the results of its calls of commit, in order; None is a success.

    Only its producer commits a transaction, so without a call it did not happen. A refusal after a call of unknown
    outcome leaves it unknown: the earlier call may be the cause (stricter than Jepsen, which records ``fail``).
    ``aborted``: an abort has succeeded.
    """
    if any(error is None for error in commits):
        return Type.OK
    if aborted:
        return Type.FAIL
    return Type.INFO if any(error is not None and indeterminate(error) for error in commits) else Type.FAIL
