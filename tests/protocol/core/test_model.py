"""Random histories against a model so small that it is obviously right: lists of offsets, and the end of each.

The model knows nothing of epochs, sequences, windows, indexes or events. What it says about offsets, LSO, high
watermark, both isolation levels and group offsets must be what the core says after each command; the world checks the
invariants and the replay by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.core import RC, RU, T0, T1, Client, World
from txnstore.core.log.commands import Append
from txnstore.core.model import Outcome, TopicPartition
from txnstore.core.transactions.commands import EndTxn
from txnstore.core.transactions.model import TxnState
from txnstore.errors import ProducerFencedError

PARTITIONS = [T0, T1]
PRODUCERS = ["a", "b", "c"]


@dataclass(eq=False)
class Txn:
    """A transaction of the model: open until it has an outcome."""

    outcome: Outcome | None = None
    partitions: set[TopicPartition] = field(default_factory=set)
    offsets: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)


@dataclass(eq=False)
class Slot:
    """One offset: a record of a transaction, one outside of transactions (``txn`` None), or a marker."""

    txn: Txn | None = None
    marker: bool = False
    removed: bool = False

    @property
    def committed(self) -> bool:
        return not self.marker and (self.txn is None or self.txn.outcome is Outcome.COMMIT)


class Model:
    """Two logs and a group."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, list[Slot]] = {tp: [] for tp in PARTITIONS}
        self.open: dict[str, Txn] = {}
        self.group: dict[TopicPartition, tuple[int, int]] = {}
        self.commits = 0

    def stable(self, tp: TopicPartition) -> int:
        log = self.logs[tp]
        undecided = (at for at, slot in enumerate(log) if slot.txn is not None and slot.txn.outcome is None)
        return next(undecided, len(log))

    def send(self, name: str, tp: TopicPartition, records: int) -> None:
        txn = self.open.setdefault(name, Txn())
        txn.partitions.add(tp)
        self.logs[tp] += [Slot(txn) for _ in range(records)]

    def position(self, name: str | None, tp: TopicPartition, offset: int) -> None:
        self.commits += 1
        where = self.group if name is None else self.open.setdefault(name, Txn()).offsets
        where[tp] = (self.commits, offset)

    def end(self, name: str, outcome: Outcome) -> None:
        txn = self.open.pop(name)
        txn.outcome = outcome
        for tp in txn.partitions:
            self.logs[tp].append(Slot(marker=True))
        if outcome is Outcome.COMMIT:
            for tp, value in txn.offsets.items():
                self.group[tp] = max(value, self.group.get(tp, (0, 0)))

    def compact(self, tp: TopicPartition) -> None:
        for slot in self.logs[tp][: self.stable(tp)]:
            slot.removed = not slot.committed

    def unstable(self, tp: TopicPartition) -> bool:
        return any(tp in txn.offsets for txn in self.open.values())


class History:
    """A world and its model, led through the same commands."""

    def __init__(self) -> None:
        self.world, self.model = World(len(PARTITIONS)), Model()
        self.clients: dict[str, Client] = {}
        self.zombies: list[Client] = []
        self.last: Append | EndTxn | None = None
        for name in PRODUCERS:
            self.init(name)

    def init(self, name: str) -> None:
        if name in self.clients:
            self.zombies.append(replace(self.clients[name]))
        self.clients[name] = self.world.client(name)
        if name in self.model.open:
            self.model.end(name, Outcome.ABORT)
        self.last = None

    def send(self, name: str, tp: TopicPartition, records: int) -> None:
        client = self.clients[name]
        command = client.append(client.numbered(records, tp))
        (landed,) = self.world.do(command)
        client.sequences[tp] = client.sequences.get(tp, 0) + records
        assert (landed.base_offset, landed.duplicate) == (len(self.model.logs[tp]), False)
        self.model.send(name, tp, records)
        self.last = command

    def plain(self, tp: TopicPartition, records: int) -> None:
        assert self.world.plain(records, tp).base_offset == len(self.model.logs[tp])
        self.model.logs[tp] += [Slot() for _ in range(records)]

    def end(self, name: str, outcome: Outcome, tp: TopicPartition, records: int) -> None:
        """End with a last batch, where there is something to end or to append."""
        client = self.clients[name]
        batches = (client.numbered(records, tp),) if records and outcome is Outcome.COMMIT else ()
        if name not in self.model.open and not batches:
            return
        if batches:
            self.model.send(name, tp, records)
        self.zombies.append(replace(client))
        self.last = client.end(outcome, *batches)
        client.identity, client.sequences = self.world.do(self.last).producer, {}
        self.model.end(name, outcome)

    def position(self, name: str | None, tp: TopicPartition, offset: int) -> None:
        if name is None:
            self.world.commit_offset(offset, tp)
        else:
            self.clients[name].send_offsets({tp: offset})
            self.last = None  # It may have been the end of the transaction before, which is not repeated any more.
        self.model.position(name, tp, offset)

    def compact(self, tp: TopicPartition) -> None:
        self.world.compact(tp)
        self.model.compact(tp)

    def repeat(self) -> None:
        """The answer to the last command of a producer was lost; it is sent again, and nothing happens."""
        if self.last is None:
            return
        before = self.world.state
        self.world.do(self.last)
        assert self.world.state is before

    def zombie(self, tp: TopicPartition) -> None:
        """A batch of an ended transaction, or of a fenced instance, comes late."""
        for client in self.zombies[-3:]:
            self.world.refuse(ProducerFencedError, client.append(client.numbered(1, tp)))

    def compare(self) -> None:
        for tp in PARTITIONS:
            log, stable = self.model.logs[tp], self.model.stable(tp)
            assert self.world.ends(tp) == (stable, len(log))
            assert self.world.read(RC, tp) == [at for at, slot in enumerate(log[:stable]) if slot.committed]
            assert self.world.read(RU, tp) == [
                at for at, slot in enumerate(log) if not slot.marker and not slot.removed
            ]
            group = self.model.group.get(tp)
            assert self.world.offset(tp) == (None if group is None else group[1])
            assert any(tp in items for items in self._pending()) is self.model.unstable(tp)
        for name in PRODUCERS:
            assert (self.world.txn(name).state is TxnState.ONGOING) is (name in self.model.open)

    def _pending(self) -> list[dict[TopicPartition, int]]:
        return list(self.world.pending().values()) if "g" in self.world.state.groups else []


_names, _tps, _records = st.sampled_from(PRODUCERS), st.sampled_from(PARTITIONS), st.integers(1, 3)


def _step(method: Callable[..., None], *arguments: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.tuples(st.just(method), *arguments)


STEPS = st.one_of(
    _step(History.send, _names, _tps, _records),
    _step(History.send, _names, _tps, _records),
    _step(History.plain, _tps, _records),
    _step(History.end, _names, st.sampled_from(Outcome), _tps, st.integers(0, 2)),
    _step(History.position, st.none() | _names, _tps, st.integers(0, 9)),
    _step(History.init, _names),
    _step(History.compact, _tps),
    st.just((History.repeat,)),
    _step(History.zombie, _tps),
)


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.lists(STEPS, max_size=30))
def test_core_matches_model(steps: list[tuple[Callable[..., None], *tuple[object, ...]]]) -> None:
    """LSO-01, CON-02, CON-07, CTL-02, OFF-02, OFF-03, OFF-11, OFF-13, SEQ-03, TV2-01, TV2-03, ADD-07, PST-01."""
    history = History()
    for method, *arguments in steps:
        method(history, *arguments)
        history.compare()
