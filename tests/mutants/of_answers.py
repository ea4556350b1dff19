"""Mutants of what a gateway answers to single requests: codes, and what waits for an abandoned transaction."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.gateway import errors, services, transactions
from txnstore.gateway.fetch import Fetch
from txnstore.gateway.groups.offsets import GroupOffsets
from txnstore.gateway.offsets import Offsets
from txnstore.gateway.produce import Produce
from txnstore.gateway.sessions import Sessions
from txnstore.gateway.transactions import Transactions

_WIRE = "integration/gateway/test_wire.py::test_a_gateway_answers_as_a_broker_does"
_ABANDONED = (
    "integration/gateway/test_abandoned.py::"
    "test_off_09_offsets_of_an_abandoned_transaction_are_pending_until_its_timeout[one chain-9]"
)

ANSWERS = (
    Mutant(
        "the offsets of an abandoned transaction stay pending",
        GroupOffsets.fetch,
        "if $stable:",
        "if False:",
        test=_ABANDONED,
    ),
    Mutant(
        "an incremental fetch of a session that is not there is taken for a full one",
        Fetch.fetch,
        'value($body, "session_epoch", -1) > 0',
        "False",
        test=f"{_WIRE}[fetches]",
    ),
    Mutant(
        "an epoch of the future is taken for the current one",
        services.check_leader_epoch,
        "$current > LEADER_EPOCH",
        "False",
        test=f"{_WIRE}[listed_offsets]",
    ),
    Mutant(
        "a version of ListOffsets takes times that it does not have",
        Offsets._listed,
        "$request.version < _SINCE.get($asked.timestamp, 0)",
        "False",
        test=f"{_WIRE}[listed_offsets]",
    ),
    Mutant(
        "old versions of Produce take zstd",
        Produce._stage,
        "$raw.codec is Codec.ZSTD and $request.version < _ZSTD_FROM",
        "False",
        test=f"{_WIRE}[appends]",
    ),
    Mutant(
        "a client of transactions v1 is not told to abort",
        errors.code_of,
        "version == _ABORTABLE_IN.get(api)",
        "False",
        test=f"{_WIRE}[late_requests]",
    ),
    Mutant(
        "offsets of a group that is not in the transaction do not abort it",
        Sessions.commit,
        "raise NotAddedError(str($error)) from $error",
        "raise",
        test=f"{_WIRE}[offsets_of_transactions]",
    ),
    Mutant(
        "an empty transactional id is taken for an unknown one",
        transactions._check_id,
        '$transactional_id == ""',
        "False",
        test=f"{_WIRE}[ends]",
    ),
    Mutant(
        "a transaction commits offsets of an empty group",
        Transactions.commit_offsets,
        'ErrorCode.invalid_group_id if $body.group_id == "" else None',
        "None",
        test=f"{_WIRE}[offsets_of_transactions]",
    ),
)
