"""Rebuilds what a store needs to be opened: ``store.json``, hints and checkpoints; names what cannot be rebuilt."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from txnstore.chain.codec import StoreDocument
from txnstore.chain.keys import Keys
from txnstore.compactor.damage import Loss, Repair, RepairPlan
from txnstore.compactor.planned import PlannedObjects
from txnstore.compactor.repair_chain import ChainRepairs, Survey
from txnstore.compactor.repair_identity import identify, misplaced
from txnstore.compactor.repair_segments import lost_segments
from txnstore.connection import Connection
from txnstore.core.routing import MAX_CHAINS
from txnstore.core.state import State
from txnstore.errors import CorruptionError, InvalidConfigError, ReadOnlyError
from txnstore.storage.base import Claim
from txnstore.storage.probe import probe_once
from txnstore.validation import check_integer

_LOG = logging.getLogger(__name__)


def plan_repairs(connection: Connection, chains: int | None = None, *, identity: str | None = None) -> RepairPlan:
    """Find out what is damaged, what of it can be rebuilt, and which records are lost. Nothing is written.

    A sound store costs its opening, for each chain a list, the hint and the checkpoints of the history, and the lists
    of all entries and segments. Of objects with records only the existence and the size are looked at; a deep
    :func:`txnstore.compactor.verify` compares their contents.

    Args:
        connection: The connection to the store; it need not be loaded, and the store need not open.
        chains: The number of chains, which is needed only if ``store.json`` and all checkpoints are lost.
        identity: The id of the store, which is needed only if ``store.json`` is lost, or is that of another store, and
            there are chains of several ones. Nothing of the others is deleted.

    Returns:
        The plan; empty if nothing is damaged.

    Raises:
        StoreNotFoundError: There is no store, and nothing is left of one.
        UnsupportedFormatError: A newer txnstore wrote ``store.json``.
        InvalidConfigError: ``chains`` is not what the objects of the store show, or nothing is here of the store
            ``identity``.
    """
    if chains is not None:
        check_integer("chains", chains, 1, MAX_CHAINS)
    document, repair, loss, stores = identify(connection, chains, identity)
    if document is None:
        assert loss is not None
        return RepairPlan(lost=(loss,), stores=stores)
    each = _chains(connection, document)
    with connection.runtime.executor() as workers:  # Not the pool of requests, for which the surveys wait.
        surveys = list(workers.map(_survey, each))
    if repair is None and all(survey.sound for survey in surveys) and not _refusal(connection):
        missing = _missing_heads(connection, Keys(document.store_id), connection.view().states)
        return RepairPlan(lost=missing + _lost_now(connection), stores=stores)
    found = [item for chain, survey in zip(each, surveys, strict=True) for item in chain.plan(survey)]
    if repair is not None:
        _check_places(each)
        found.insert(0, repair)
    repairs = tuple(item for item in found if isinstance(item, Repair))
    losses = tuple(item for item in found if isinstance(item, Loss))
    names, states = Keys(document.store_id), [chain.state for chain in each]
    losses += _missing_heads(connection, names, states)
    plan = RepairPlan(repairs, losses + lost_segments(connection.objects, names, states), stores)
    return _tried(connection, names, plan) if plan.opens else plan


def repair(connection: Connection, plan: RepairPlan) -> None:
    """Carry out the repairs of a plan. Repeating it is safe; other processes may use the store meanwhile.

    Raises:
        ReadOnlyError: The store was opened read-only.
        UnsafeStorageError: The storage lets a name be created twice.
        CorruptionError: ``store.json`` exists by now.
    """
    if connection.read_only:
        msg = f"the store {connection.url} was opened read_only, so nothing in it can be repaired"
        raise ReadOnlyError(msg)
    probe_once(connection.objects, connection.runtime.new_id)
    for item in plan.repairs:
        for key, data in item.writes:
            if data is None:
                connection.objects.delete([key])
            elif not item.create:
                connection.objects.put(key, data)
            elif Claim(key, data).settle(connection.objects, connection.runtime.backoff) != data:
                msg = f"{key} was created by another process meanwhile: look at the plan again"
                raise CorruptionError(msg)
        _LOG.warning("repaired", extra={"key": item.key, "error": item.damage})


def _chains(connection: Connection, document: StoreDocument) -> list[ChainRepairs]:
    names, count = Keys(document.store_id), document.chains
    return [ChainRepairs(connection.objects, connection.pool, names, number, count) for number in range(count)]


def _survey(chain: ChainRepairs) -> Survey:
    """The survey of a chain; a second one if something seems damaged: a vacuum and writers may work meanwhile."""
    found = chain.survey()
    return found if found.sound else chain.survey()


def _refusal(connection: Connection) -> str:
    """Why the store does not open; empty if it does."""
    try:
        connection.load()
    except CorruptionError as error:
        return str(error)
    return ""


def _tried(connection: Connection, names: Keys, plan: RepairPlan) -> RepairPlan:
    """The plan; with one more loss if the store would not open after its repairs."""
    writes = [write for item in plan.repairs for write in item.writes]
    with Connection(PlannedObjects(connection.objects, writes), read_only=True, runtime=connection.runtime) as trial:
        why = _refusal(trial)
    if not why:
        return plan
    consequence = "the store does not open, and nothing that is here repairs that: put back what is lost from a backup"
    return replace(plan, lost=(*plan.lost, Loss(names.chains, why, consequence)))


def _missing_heads(connection: Connection, names: Keys, states: Sequence[State]) -> tuple[Loss, ...]:
    """The newest known entries that do not exist: no vacuum deletes one, so that later ones may have been lost, too."""
    found = []
    for state in states:
        key = names.entry(state.chain, state.sequence)
        if state.sequence and not any(item.key == key for item in connection.objects.list(key, limit=1)):
            damage = "it is missing, though it is the newest one that is known, from a checkpoint"
            consequence = (
                f"the state of chain {state.chain} up to it is sound. Whether entries after it are lost cannot be "
                "known; what was committed in them is lost with them. To keep it, put the entries back from a backup "
                "before anything is written"
            )
            found.append(Loss(key, damage, consequence, blocks=False))
    return tuple(found)


def _lost_now(connection: Connection) -> tuple[Loss, ...]:
    """The lost segments of a store that opens; a second look if there are some: a vacuum may work meanwhile."""
    found = lost_segments(connection.objects, connection.keys, connection.view().states)
    return found and lost_segments(connection.objects, connection.keys, connection.view().states)


def _check_places(each: list[ChainRepairs]) -> None:
    """Refuse a number of chains with which something would be in the wrong chain."""
    for chain in each:
        found = misplaced(chain.state)
        if found is not None:
            msg = f"the store does not have {chain.state.chains} chains: {found} is in chain {chain.state.chain}"
            raise InvalidConfigError(msg)
