"""Errors tell what Kafka's tell: the number, and whether to repeat the call, to abort, or to stop."""

from __future__ import annotations

import pytest

from txnstore import errors
from txnstore.errors import TxnStoreError

#: Kafka's ``Errors`` of the transaction protocol, and what a client does about them: R, A and F as in Kafka's client.
TABLE = [
    (15, "CoordinatorNotAvailableError", "R"),
    (16, "NotCoordinatorError", "R"),
    (22, "IllegalGenerationError", "A"),
    (25, "UnknownMemberError", "A"),
    (45, "OutOfOrderSequenceError", "A"),
    (46, "DuplicateSequenceError", ""),
    (48, "InvalidTxnStateError", ""),
    (49, "InvalidPidMappingError", "F"),
    (50, "InvalidTxnTimeoutError", "F"),
    (51, "ConcurrentTransactionsError", "R"),
    (82, "FencedInstanceError", "A"),
    (88, "UnstableOffsetCommitError", "R"),
    (90, "ProducerFencedError", "F"),
]


@pytest.mark.parametrize(("code", "name", "kind"), TABLE)
def test_err_01_err_02_codes_and_classes(code: int, name: str, kind: str) -> None:
    """ERR-01, ERR-02, ERR-03: Kafka's errors, among them pid mapping, coordinators, sequences, timeouts, fences."""
    error = getattr(errors, name)
    flags = {"R": error.retriable, "A": error.abortable, "F": error.fatal}
    assert (error.kafka_code, "".join(flag for flag, is_set in flags.items() if is_set)) == (code, kind)


def test_no_two_errors_have_one_code() -> None:
    def below(root: type[TxnStoreError]) -> list[type[TxnStoreError]]:
        return [root, *(error for child in root.__subclasses__() for error in below(child))]

    # Those of the gateway are of its clients, who know nothing but codes.
    public = [error for error in below(TxnStoreError) if error.__module__ == TxnStoreError.__module__]
    codes = [vars(error).get("kafka_code") for error in public]
    defined = [code for code in codes if code is not None]
    assert len(defined) == len(set(defined)) > len(TABLE)
