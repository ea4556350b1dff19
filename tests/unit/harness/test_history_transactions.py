"""Anomalies of transactions: for each the smallest history that has it, and one that has not."""

from __future__ import annotations

import pytest

from tests.harness.history import Bounds, Decision, Offsets, Snapshot
from tests.helpers.histories import Story, poll, send

Ends = tuple[int, int]


def snapshot(k: list[tuple[int, str]], j: list[tuple[int, str]], k_ends: Ends, j_ends: Ends) -> Snapshot:
    """Two keys with their LSO and HW."""
    return Snapshot({"k": Bounds(0, *k_ends), "j": Bounds(0, *j_ends)}, {"k": tuple(k), "j": tuple(j)})


@pytest.mark.parametrize(("lso", "expected"), [(1, {"torn-txn"}), (0, set())])
def test_jep_16_a_snapshot_with_a_part_of_a_transaction(lso: int, expected: set[str]) -> None:
    """LSO-19: where the LSO is at or below the other part, it may be missing."""
    story = Story()
    story.op("p", "txn", [send("a", 0), send("b", 0, "j")])
    story.op("s", "snapshot", snapshot([(0, "a")], [], (2, 2), (lso, 2)))
    assert story.kinds() == expected


def test_jep_16_part_of_unknown_offset_must_be_in_key_without_open_transactions() -> None:
    story = Story()
    story.op("p", "txn", [send("a"), send("b", None, "j")], kind="lost")
    story.op("s", "snapshot", snapshot([(0, "a")], [], (2, 2), (1, 3)))
    assert story.kinds() == set()
    story.op("s", "snapshot", snapshot([(0, "a")], [], (2, 2), (3, 3)))
    assert story.kinds() == {"torn-txn"}


def copy(story: Story, offset: int, kind: str = "ok", process: str = "job", attempt: int = 0) -> None:
    """A transaction of a copying job: one record in, one out, the position with it."""
    value = f"out-{offset}-{attempt}"
    place = offset + 10 * attempt
    story.op(
        process,
        "txn",
        [
            poll("k", (offset, f"in-{offset}")),
            send(value, place if kind == "ok" else None, "j", source=("k", offset)),
            Offsets("g", {"k": offset + 1}),
        ],
        kind=kind,
    )


def copied(position: int, outputs: int, inputs: int = 3, lso: int | None = None) -> Snapshot:
    """The group is at ``position``, and the outputs of the first ``outputs`` are there."""
    return Snapshot(
        {"k": Bounds(0, inputs, inputs), "j": Bounds(0, outputs if lso is None else lso, outputs)},
        {
            "k": tuple((number, f"in-{number}") for number in range(inputs)),
            "j": tuple((number, f"out-{number}-0") for number in range(outputs)),
        },
        {"g": {"k": position}},
    )


@pytest.mark.parametrize(
    ("position", "outputs", "expected"),
    [(3, 3, set()), (2, 3, {"offsets-data-mismatch"}), (3, 2, {"offsets-data-mismatch"})],
)
def test_jep_17_the_offsets_and_the_outputs_agree_in_every_snapshot(
    position: int, outputs: int, expected: set[str]
) -> None:
    story = Story()
    for offset in range(3):
        copy(story, offset)
    # That it is too short for all of them is another anomaly; here the LSO is where the outputs end.
    story.op("s", "snapshot", copied(position, outputs, lso=3))
    assert story.kinds() == expected


def test_jep_17_outputs_above_the_lso_may_be_missing() -> None:
    story = Story()
    for offset in range(3):
        copy(story, offset)
    story.op("s", "snapshot", copied(3, 2, lso=2))
    assert story.kinds() == set()


def test_jep_15_an_input_is_consumed_by_one_committed_transaction() -> None:
    story = Story()
    copy(story, 0, "fail", attempt=1)
    copy(story, 0)
    assert story.kinds() == set()
    copy(story, 0, process="other", attempt=2)
    assert story.kinds() == {"double-consume"}


def test_jep_15_in_the_end_each_input_was_consumed() -> None:
    story = Story()
    for offset in range(2):
        copy(story, offset)
    story.op("s", "snapshot", copied(2, 2))
    assert story.kinds() == set()
    story.op("s", "snapshot", copied(2, 2), final=True)
    assert story.kinds() == {"unconsumed"}


def decision(what: str, epoch: int, position: int, producer_id: int = 0) -> Decision:
    return Decision(what, "x", producer_id, epoch, position)


@pytest.mark.parametrize(
    ("decisions", "expected"),
    [
        ([("init", 3), ("commit", 3), ("commit", 4), ("abort", 5), ("commit", 6), ("init", 7)], set()),
        ([("commit", 3), ("commit", 4), ("commit", 4)], {"epoch-regression"}),
        ([("init", 5), ("commit", 4)], {"epoch-regression"}),
        ([("commit", 5), ("init", 5)], {"epoch-regression"}),
        ([("init", 5), ("init", 5)], {"epoch-regression"}),
    ],
)
def test_jep_20_epochs_grow(decisions: list[tuple[str, int]], expected: set[str]) -> None:
    operations = [decision(what, epoch, number) for number, (what, epoch) in enumerate(decisions)]
    assert Story().kinds(operations[::-1]) == expected


def test_jep_20_a_new_producer_id_begins_again() -> None:
    assert (
        Story().kinds([decision("commit", 32766, 1), decision("init", 0, 2, 7), decision("commit", 0, 3, 7)]) == set()
    )


def with_init(committing: int, kind: str = "ok", **details: int) -> Story:
    """Process b is initialised from 4 to 5; a's transaction is open from 2 to 9."""
    story = Story()
    story.op("a", "init", at=0, until=1, transactional_id="x")
    story.op("a", "txn", send("v", 0), kind, at=2, until=9, committing=committing, transactional_id="x", **details)
    story.op("b", "init", at=4, until=5, transactional_id="x")
    return story


@pytest.mark.parametrize(("committing", "expected"), [(3, set()), (6, {"zombie-commit"})])
def test_jep_21_a_commit_after_another_process_was_initialised(committing: int, expected: set[str]) -> None:
    assert with_init(committing).kinds() == expected
    assert with_init(committing, "fail").kinds() == set()


@pytest.mark.parametrize(("committing", "expected"), [(3, set()), (6, {"zombie-commit"})])
def test_jep_21_a_commit_without_an_answer_whose_data_are_read(committing: int, expected: set[str]) -> None:
    story = with_init(committing, "lost")
    story.op("r", "poll", poll("k", (0, "v")))
    assert story.kinds() == expected


def test_jep_21_the_newer_instance_is_no_zombie() -> None:
    """Neither by its epoch nor by the order of the initialisations."""
    story = Story()
    story.op("b", "init", transactional_id="x")
    story.op("a", "init", transactional_id="x")
    story.op("a", "txn", send("v", 0), transactional_id="x")
    assert story.kinds() == set()
    both = Story()  # At once: the epochs tell who is newer.
    both.op("a", "init", at=1, until=4, transactional_id="x", producer_id=0, epoch=2)
    both.op("b", "init", at=2, until=3, transactional_id="x", producer_id=0, epoch=1)
    both.op("a", "txn", send("v", 0), at=5, until=6, transactional_id="x", producer_id=0, epoch=2)
    assert both.kinds() == set()


@pytest.mark.parametrize(
    ("kind", "what", "expected"),
    [
        ("ok", "commit", set()),
        ("ok", "abort", {"wrong-outcome"}),
        ("fail", "abort", set()),
        ("fail", "commit", {"wrong-outcome"}),
        ("info", "commit", set()),
        ("info", "abort", set()),
    ],
)
def test_jep_22_the_client_and_the_chain_agree(kind: str, what: str, expected: set[str]) -> None:
    story = Story()
    story.op("p", "txn", send("a", 0), kind, transactional_id="x", producer_id=0, epoch=3)
    assert story.kinds([decision(what, 3, 1)]) == expected


def test_jep_22_unwritten_transaction_leaves_its_epoch_to_the_next() -> None:
    story = Story()
    story.op("p", "txn", send("a"), "fail", transactional_id="x", producer_id=0, epoch=3)
    story.op("p", "txn", send("b"), "ok", transactional_id="x", producer_id=0, epoch=3)
    assert story.kinds([decision("commit", 3, 1)]) == set()


def test_jep_05_commit_known_only_to_chain_must_be_read() -> None:
    """Committed by the chain, without an answer, and never read: unseen."""
    story = Story()
    story.op("p", "txn", send("a"), "lost", transactional_id="x", producer_id=0, epoch=3)
    story.op("f", "poll", poll("k"), final=True)
    assert story.kinds([]) == set()
    assert story.kinds([decision("commit", 3, 1)]) == {"unseen"}


def test_jep_05_what_may_have_been_deleted_need_not_be_read() -> None:
    """Its writer died before it learned the offset, and the log start has moved since."""
    story = Story()
    story.op("p", "txn", send("a"), "lost", transactional_id="x", producer_id=0, epoch=3)
    story.op("f", "snapshot", Snapshot({"k": Bounds(5, 7, 7)}, {"k": ()}), final=True)
    assert story.kinds([decision("commit", 3, 1)]) == set()
