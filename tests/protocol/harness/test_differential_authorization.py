"""TST-25: random histories of clients whose rights come and go, on stores of one chain and of three.

``python -m tests.harness differential --kafka …/libs`` compares them with a broker that runs Kafka's
``StandardAuthorizer``, too, with ``allow.everyone.if.no.acl.found`` off and on. What may differ is in
docs/kafka-differences.md#authorization.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.compat.broker import RunningBroker
from tests.harness.authorization import Difference, OnStore, run_history
from tests.harness.authorization.history import ADMIN, USERS, Op
from tests.harness.authorization.on_broker import OnBroker, broker_settings
from tests.helpers.random_histories import KAFKA, MORE

pytestmark = pytest.mark.filterwarnings("ignore::txnstore.BlockedReadWarning")
SEEDS = range(MORE or 4)


@pytest.fixture(scope="module", params=[False, True], ids=["no rule, no right", "no rule, all rights"])
def rules(request: pytest.FixtureRequest) -> Iterator[tuple[bool, RunningBroker | None]]:
    """Whether everyone may use what no rule is for, and a broker of that setting, if ``KAFKA`` names one."""
    allow = bool(request.param)
    if not KAFKA:
        yield allow, None
        return
    with RunningBroker(Path(KAFKA), broker_settings(allow_if_no_acl=allow), USERS) as broker:
        yield allow, broker


@pytest.mark.slow
@pytest.mark.timeout(0 if MORE else 300)
@pytest.mark.parametrize("seed", SEEDS)
def test_tst_25_rights_are_the_same_everywhere(seed: int, rules: tuple[bool, RunningBroker | None]) -> None:
    allow, running = rules
    with ExitStack() as stack:
        one, three = (OnStore(chains, allow_if_no_acl=allow) for chains in (1, 3))
        others: dict[str, Any] = {"a store of three chains": three}
        for store in (one, three):
            stack.callback(store.close)
        if running is not None:
            others["a broker"] = OnBroker(running)
            stack.callback(others["a broker"].close)
        run = run_history(seed, one, others)
    assert run.steps > 20
    assert run.refusals


class Forgetful(OnStore):
    """Deletes no rule."""

    def op_acls(self, op: Op) -> None:
        super().op_acls({**op, "delete": []})


class Lenient(OnStore):
    """Commits offsets for everyone."""

    def op_commit_offsets(self, op: Op) -> None:
        super().op_commit_offsets({**op, "principal": ADMIN})


class Doing(OnStore):
    """Refuses with the right error, after it has done what it refuses."""

    def op_alter_config(self, op: Op) -> None:
        super().op_alter_config({**op, "principal": ADMIN})
        super().op_alter_config({**op, "retention": op["retention"] + 1})


class Unspecific(OnStore):
    """Names a wrong topic."""

    def apply(self, op: Op) -> dict[str, Any]:
        answer = super().apply(op)
        return {**answer, "refused": ["other"] if answer["refused"] else []}


class Fatal(OnStore):
    """Has no error that can be aborted."""

    def apply(self, op: Op) -> dict[str, Any]:
        answer = super().apply(op)
        return {**answer, "state": "FATAL_ERROR"} if answer.get("state") == "ABORTABLE_ERROR" else answer


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [Forgetful, Lenient, Doing, Unspecific, Fatal])
def test_the_comparison_finds_a_store_with_a_wrong_rule(mutant: type[OnStore]) -> None:
    found = 0
    for seed in range(8):
        with ExitStack() as stack:
            sound, wrong = OnStore(1, allow_if_no_acl=False), mutant(1, allow_if_no_acl=False)
            for store in (sound, wrong):
                stack.callback(store.close)
            try:
                run_history(seed, sound, {"the mutant": wrong})
            except Difference:
                found += 1
    assert found
