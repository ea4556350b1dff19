"""What fails in one partition of a compaction, damage or a full temporary folder, does not stop the others."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.helpers.connections import connection_of
from tests.helpers.rounds import compact_rounds
from tests.helpers.shell import T0, T1, new_store
from txnstore.compactor.compact.replacements import Replacements
from txnstore.compactor.compact.rounds import Round
from txnstore.core.maintenance import ReplaceSegments
from txnstore.core.model import TopicPartition
from txnstore.errors import CorruptionError, NoSpaceError
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.testing import ManualClock

pytestmark = pytest.mark.usefixtures("own_objects")

K0, K1 = (TopicPartition("k", number) for number in range(2))


@pytest.fixture
def store(objects: MemoryStore, clock: ManualClock, chains: int) -> Iterator[Store]:
    """A topic ``k`` to clean and a topic ``t`` to merge, each of two partitions with three segments."""
    with new_store(objects, clock=clock, chains=chains) as made:
        made.create_topic("k", partitions=2, config={"cleanup.policy": "compact"})
        with made.producer() as producer:
            for _ in range(3):
                for tp in (K0, K1, T0, T1):
                    producer.send(tp.topic, b"value", key=b"key", partition=tp.partition)
                producer.flush()
        yield made


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No clean can create its folder; a small merge needs none. Undone, the folder has space again."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    return monkeypatch


def segments(store: Store) -> dict[TopicPartition, int]:
    view = connection_of(store).view()
    return {tp: len(list(view.find_partition(tp).batches)) for tp in (K0, K1, T0, T1)}


def compacted(round_: Round) -> list[TopicPartition]:
    return [item.tp for item in round_.report.partitions]


def lose(store: Store, objects: MemoryStore, tp: TopicPartition) -> str:
    """Delete the first segment of a partition; returns its key."""
    key = next(iter(connection_of(store).view().find_partition(tp).batches)).segment.key
    objects.delete([key])
    return key


def test_cleans_without_space_stop_no_merge(store: Store, full: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoSpaceError, match=r"^2 parts .*the clean of k-0 failed: .*TMPDIR.*the clean of k-1 failed: "):
        store.compact()
    assert segments(store) == {K0: 3, K1: 3, T0: 1, T1: 1}
    full.undo()
    assert store.compact().cleans == 2
    assert store.verify(deep=True).ok


@pytest.mark.usefixtures("full")
def test_a_round_reports_what_had_no_space_and_compacts_the_rest(store: Store) -> None:
    with closing(compact_rounds(store)) as rounds:
        round_ = next(rounds)
    assert isinstance(round_.error, NoSpaceError)
    assert (round_.due, sorted(compacted(round_)), round_.worked) == (4, [T0, T1], True)


def test_partitions_without_space_come_after_the_others(store: Store, full: pytest.MonkeyPatch) -> None:
    """The budget of a round is one partition, and those to clean come first, until they fail."""
    with closing(compact_rounds(store, max_bytes=1)) as rounds:
        first_rounds = [next(rounds) for _ in range(5)]
        assert [isinstance(round_.error, NoSpaceError) for round_ in first_rounds] == [True, True, False, False, True]
        assert sorted(tp for round_ in first_rounds for tp in compacted(round_)) == [T0, T1]
        full.undo()
        assert [next(rounds).report.cleans for _ in range(2)] == [1, 1]


def test_damage_counts_more_than_a_full_folder(store: Store, objects: MemoryStore) -> None:
    """A merge of damaged segments, beside cleans without space: one error names the three."""
    key = lose(store, objects, T1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", "/nowhere/gone")
        with pytest.raises(CorruptionError, match=rf"^3 parts .*k-0 .*k-1 .*the merge of t-1 failed: .*{key}"):
            store.compact()
    assert segments(store) == {K0: 3, K1: 3, T0: 1, T1: 3}


def test_a_damaged_segment_of_a_clean_is_named_once(store: Store, objects: MemoryStore) -> None:
    """The partition is not tried again as a merge."""
    keys = [lose(store, objects, tp) for tp in (K1, T0)]
    with pytest.raises(CorruptionError) as raised:
        store.compact()
    text = str(raised.value)
    assert text.startswith("2 parts of the compaction failed: the clean of k-1 failed: ")
    assert "; the merge of t-0 failed: " in text
    assert [text.count(key) for key in keys] == [1, 1]
    assert segments(store) == {K0: 1, K1: 3, T0: 3, T1: 1}


def test_an_error_that_is_no_refusal_is_raised(store: Store) -> None:
    """Such as one of the library of a storage: whether the segments are replaced is not known."""
    connection = connection_of(store)
    replacements = Replacements(connection.chains, lambda _commands: [OSError("broken")])
    with pytest.raises(OSError, match="broken"):
        replacements.submit(connection.view().find_topic("k"), [ReplaceSegments(K0, (), ())])
