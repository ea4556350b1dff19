"""Runs one seed: builds the world, runs the actors, stops the faults, recovers and checks everything."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from tests.harness.short_history import short_history
from tests.harness.simulation import checks
from tests.harness.simulation.actor import Actor
from tests.harness.simulation.administering import Administrator
from tests.harness.simulation.altering import Governor, Widener, altered
from tests.harness.simulation.cleaning import Cleaner, KeyedProducer, cleaned
from tests.harness.simulation.earlier_snapshots import returned
from tests.harness.simulation.endings import no_clients_left
from tests.harness.simulation.engine_tables import short_lived_tables
from tests.harness.simulation.following import Follower, followed
from tests.harness.simulation.forgetting import Forgetter, Napper, NappingScanner
from tests.harness.simulation.gateways import Gateway, kept
from tests.harness.simulation.handing import Handing, carried
from tests.harness.simulation.jepsen import found_by_checker
from tests.harness.simulation.journal import read_journal
from tests.harness.simulation.keeping import Archivist, Query, Repeater, kept_elsewhere
from tests.harness.simulation.late import Straggler
from tests.harness.simulation.locks import simulated_locks
from tests.harness.simulation.lost_objects import Loser, put_back
from tests.harness.simulation.maintenance import Recoverer, Shortener, Tidy
from tests.harness.simulation.merging import merges_watched
from tests.harness.simulation.nodes import Node, without_sockets
from tests.harness.simulation.operating import Operator
from tests.harness.simulation.parts import reading_parts
from tests.harness.simulation.passing import Absence, PassingProducer, Stray, Topics
from tests.harness.simulation.producers import PlainProducer, Threads, TransactionalProducer
from tests.harness.simulation.publishing import Engine, Publisher, has_tables, judged_tables
from tests.harness.simulation.readers import Copy, Member, Reader, Scanner, UncommittedReader, look
from tests.harness.simulation.recorder import Operation
from tests.harness.simulation.replaced import Replacer, Tenant, occupied
from tests.harness.simulation.rulebook import refusals_judged
from tests.harness.simulation.sessions import SessionProducer
from tests.harness.simulation.settings import Settings
from tests.harness.simulation.sharing import Sharer, shared
from tests.harness.simulation.spreading import Spreader
from tests.harness.simulation.storage import Step, hash_of
from tests.harness.simulation.wire_groups import ClassicClient, EpochClient, NativeClient
from tests.harness.simulation.wire_transactions import WireProducer
from tests.harness.simulation.world import Away, World
from txnstore.admin.transactions import abort_transaction
from txnstore.core.transactions.model import TxnState
from txnstore.errors import TxnStoreError
from txnstore.store import Store

_KINDS: dict[str, type[Actor]] = {
    "producer": TransactionalProducer,
    "plain": PlainProducer,
    "threads": Threads,
    "copy": Copy,
    "member": Member,
    "committed": Reader,
    "uncommitted": UncommittedReader,
    "scan": Scanner,
    "tidy": Tidy,
    "recover": Recoverer,
    "shorten": Shortener,
    "topics": Topics,
    "passing": PassingProducer,
    "stray": Stray,
    "away": Absence,
    "late": Straggler,
    "follow": Follower,
    "replace": Replacer,
    "tenant": Tenant,
    "keys": KeyedProducer,
    "clean": Cleaner,
    "share": Sharer,
    "forget": Forgetter,
    "nap": Napper,
    "napscan": NappingScanner,
    "lose": Loser,
    "operate": Operator,
    "spread": Spreader,
    "admin": Administrator,
    "gateway": Gateway,
    "session": SessionProducer,
    "node": Node,
    "classic": ClassicClient,
    "epochs": EpochClient,
    "native": NativeClient,
    "wire": WireProducer,
    "publish": Publisher,
    "engine": Engine,
    "widen": Widener,
    "govern": Governor,
    "repeat": Repeater,
    "backup": Archivist,
    "query": Query,
}
#: Longer than the offset of any clock, and than any timeout.
_A_LONG_TIME_MS = 20_000_000


@dataclass(frozen=True, slots=True)
class Run:
    """A run and its anomalies; none if the run passed."""

    settings: Settings
    trace: tuple[Step, ...]
    history: tuple[Operation, ...]
    anomalies: tuple[str, ...]
    carried: int = 0

    @property
    def digest(self) -> str:
        """Equal for equal runs."""
        return hash_of("\n".join(map(str, self.trace)).encode() + str(self.history).encode())


def simulate(settings: Settings) -> Run:
    """Run it. The same settings give the same run, in every process."""
    world, handing = World(settings), Handing()
    with (
        simulated_locks(world.scheduler),
        no_clients_left(),
        reading_parts(settings.parts),
        short_history(settings.lease_ms),
        short_lived_tables(tables=has_tables(world)),
        merges_watched(world),
        handing.watched(),
        refusals_judged(world.rulebook),
        without_sockets(),
    ):
        try:
            for name in settings.actors:
                kind = _KINDS[name.partition(":")[0]]
                actor = kind(world, name)
                world.scheduler.spawn(name, actor.run, actor.rng.randrange(2_000))
            world.scheduler.run()
            world.scheduler.drain()
        except Exception as error:  # noqa: BLE001 - every error is a finding of the run
            where = traceback.extract_tb(error.__traceback__)[-1]
            world.anomalies.append(f"broken: {type(error).__name__}: {error} ({where.name}, line {where.lineno})")
        else:
            world.anomalies += _look(world)
        world.end()
    world.anomalies += handing.anomalies(world.bucket.archive, settings.chains)
    in_entries = carried(world.bucket.archive, settings.chains)
    return Run(settings, tuple(world.trace), tuple(world.history.operations), tuple(world.anomalies), in_entries)


def _look(world: World) -> Iterator[str]:
    """All anomalies at the end."""
    world.scheduler.now += _A_LONG_TIME_MS
    world.away = Away()
    put_back(world)
    try:
        recoverer = world.honest()
        _decide_two_phase(recoverer)
        recoverer.recover()
        store = world.honest()
        journal = read_journal(world.bucket.archive, world.settings.chains)
        yield from journal.anomalies
        yield from world.bucket.anomalies
        if world.rulebook is not None:
            yield from world.rulebook.strange_entries(world.settings.chains)
        history = world.history.operations
        yield from checks.outcomes(history, journal)
        yield from checks.fences(history, journal)
        for archive, operations in world.power.eras(history):
            before = journal if archive is None else read_journal(archive, world.settings.chains)
            yield from checks.polls(operations, before)
            yield from checks.snapshots(operations, before)
        history = world.power.lasting(history)
        yield from checks.ends(history)
        yield from checks.deletions(history, journal)
        yield from checks.shortened(world, journal)
        final = look(store, ["read_committed"])
        yield from checks.settled(store, journal, final)
        yield from checks.copies(world, store, journal)
        yield from followed(world, store, journal)
        yield from kept(world)
        yield from occupied(world)
        yield from cleaned(world, store, journal)
        yield from shared(world, store)
        yield from kept_elsewhere(world, store, journal)
        yield from altered(world, store)
        yield from returned(world, store)
        yield from found_by_checker(history, world.copied, journal, final)
        yield from checks.verified(store)
        yield from judged_tables(world, store, journal)
    except TxnStoreError as error:
        yield f"broken: {type(error).__name__}: {error}"


def _decide_two_phase(store: Store) -> None:
    """Abort the transactions of external coordinators, which have no timeout: open and prepared ones (KIP-939)."""
    for txn in store._connection.view().transactions.values():
        if txn.is_prepared or (txn.two_phase and txn.state is TxnState.ONGOING):
            abort_transaction(store._connection, txn.transactional_id)
