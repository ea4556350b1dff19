"""Rebuilds what a store needs to be opened: ``store.json``, hints and checkpoints; names what cannot be rebuilt."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

from txnstore.chain import keys
from txnstore.chain.codec import WRITE_FEATURES, StoreDocument, check_features
from txnstore.chain.keys import Keys
from txnstore.compactor.repair.chain import ChainRepairs, Survey
from txnstore.compactor.repair.history import missing_entries
from txnstore.compactor.repair.identity import identify, misplaced
from txnstore.compactor.repair.plan import Loss, Repair, RepairPlan
from txnstore.compactor.repair.planned import PlannedObjects
from txnstore.compactor.repair.segments import altered_segments, lost_segments
from txnstore.compactor.verify.verify import verify
from txnstore.connection import Connection
from txnstore.core.authorization.rights import CLUSTER_ACTION
from txnstore.core.routing import MAX_CHAINS
from txnstore.core.state import State
from txnstore.errors import CorruptionError, InvalidConfigError, StoreError
from txnstore.phrases import counted
from txnstore.storage.base import Claim
from txnstore.storage.probe import probe_once
from txnstore.validation import check_integer, check_writable

_LOG = logging.getLogger(__name__)

#: What follows from damage that only the past needs.
_HISTORY_CONSEQUENCE = (
    "nothing that is stored now is lost: a later checkpoint is sound. Earlier snapshots cannot be read, and a "
    "verification names it, until it is put back from a backup or goes with the history. If a vacuum is refused for "
    "it, one with `--force` is not, and a later one deletes that history"
)


def plan_repairs(
    connection: Connection, chains: int | None = None, *, identity: str | None = None, deep: bool = False
) -> RepairPlan:
    """Find out what is damaged, what of it can be rebuilt, and which records are lost. Nothing is written.

    A sound store costs its opening, for each chain a list, the hint and the checkpoints of the history, and the lists
    of all entries and segments. Of objects with records, and of entries that a sound checkpoint follows, only the
    existence and the size are looked at, unless it is ``deep``.

    Args:
        connection: The connection to the store; it need not be loaded, and the store need not open.
        chains: The number of chains, which is needed only if ``store.json`` and all checkpoints are lost.
        identity: The id of the store, which is needed only if ``store.json`` is lost, or is that of another store, and
            there are chains of several ones. Nothing of the others is deleted.
        deep: Also verify the store as it will be after the repairs, with all entries and the contents of all segments:
            what :func:`txnstore.compactor.verify` would report then is in the plan.

    Returns:
        The plan; empty if nothing is damaged.

    Raises:
        StoreNotFoundError: There is no store, and nothing is left of one.
        UnsupportedFormatError: A newer txnstore wrote ``store.json``, or a chain requires a feature that this one has
            not, and something is to be repaired.
        InvalidConfigError: ``chains`` is not what the objects of the store show, or nothing is here of the store
            ``identity``.
    """
    if chains is not None:
        check_integer("chains", chains, 1, MAX_CHAINS)
    # 1. Which store this is: without its document nothing else can be read.
    identified = identify(connection, chains, identity)
    document, repair, stores = identified.document, identified.repair, identified.stores
    if document is None:
        assert identified.loss is not None
        return RepairPlan(lost=(identified.loss,), stores=stores)
    foreign = tuple(contents.store_id for contents in stores if contents.store_id != document.store_id)
    # 2. A survey of each chain. Of a sound store, only lost objects are looked for.
    chain_repairs = _repairs_by_chain(connection, document)
    with connection.runtime.executor() as workers:  # Not the pool of requests, for which the surveys wait.
        surveys = list(workers.map(_survey_chain, chain_repairs))
    if repair is None and all(survey.sound for survey in surveys) and _opens_without_gap(connection):
        missing_heads = _missing_heads(connection, Keys(document.store_id), connection.view().states)
        plan = RepairPlan(lost=missing_heads + _lost_segments_of_open_store(connection), stores=stores, foreign=foreign)
        return _with_remaining_damage(connection, plan, deep=deep)
    # 3. What the entries and checkpoints of each chain rebuild, and what they lack.
    items = [step for chain, survey in zip(chain_repairs, surveys, strict=True) for step in chain.plan(survey)]
    if repair is not None:
        _check_chain_count(chain_repairs)
        items.insert(0, repair)
    repairs = tuple(step for step in items if isinstance(step, Repair))
    losses = tuple(step for step in items if isinstance(step, Loss))
    names = Keys(document.store_id)
    states = [chain.state for chain in chain_repairs]
    losses += _missing_heads(connection, names, states)
    losses += lost_segments(connection.objects, names, states)
    for state in states if repairs else ():
        check_features(names.chain(state.chain).removesuffix("/"), state.requires.write, WRITE_FEATURES, "write")
    # 4. The plan is tried on a copy in memory: the store must open after it.
    plan = RepairPlan(repairs, losses, stores=stores, foreign=foreign)
    plan = _try_plan(connection, names, plan, deep=deep) if plan.opens else plan
    return plan if identified.proven or plan.opens or repair is None else _without_writes(plan, repair, document.chains)


def repair(connection: Connection, plan: RepairPlan) -> None:
    """Carry out the repairs of a plan. Repeating it is safe; other processes may use the store meanwhile.

    Raises:
        ReadOnlyError: The store was opened read-only.
        UnsafeStorageError: The storage lets a name be created twice.
        CorruptionError: ``store.json`` exists by now.
        ClusterAuthorizationError: The principal has no right to maintain the store. Not checked in a store that does
            not open without the repairs: its rules cannot be read.
    """
    check_writable(connection.read_only, connection.url, "nothing in it can be repaired")
    _check_rights(connection)
    probe_once(connection.objects, connection.runtime.new_id)
    for planned in plan.repairs:
        for key, data in planned.writes:
            _write(connection, key, data, create=planned.create)
        _LOG.warning("repaired", extra={"key": planned.key, "error": planned.damage})


def _write(connection: Connection, key: str, data: bytes | None, *, create: bool) -> None:
    """Put an object, or delete it if it has no data; ``create``: only if no other process has created it."""
    if data is None:
        connection.objects.delete([key])
    elif not create:
        connection.objects.put(key, data)
    elif Claim(key, data).resolve(connection.objects, connection.runtime.backoff) != data:
        msg = f"{key} was created by another process meanwhile: look at the plan again"
        raise CorruptionError(msg)


def _check_rights(connection: Connection) -> None:
    try:
        connection.load()
    except StoreError:
        return  # That is what is to be repaired.
    connection.check_rights(CLUSTER_ACTION)


def _repairs_by_chain(connection: Connection, document: StoreDocument) -> list[ChainRepairs]:
    names, count = Keys(document.store_id), document.chains
    return [ChainRepairs(connection.objects, connection.pool, names, number, count) for number in range(count)]


def _survey_chain(chain: ChainRepairs) -> Survey:
    """Survey a chain; twice if something seems damaged, because a vacuum and writers may work meanwhile."""
    survey = chain.survey()
    return survey if survey.sound else chain.survey()


def _corruption_on_open(connection: Connection) -> str | None:
    """Return the damage that keeps the store from opening; None if it opens."""
    try:
        connection.load()
    except CorruptionError as error:
        return str(error)
    return None


def _opens_without_gap(connection: Connection) -> bool:
    """Whether the store opens, and each chain ends at its head or the next entry: one further on lies behind a gap."""
    if _corruption_on_open(connection) is not None:
        return False
    chain_keys = connection.keys
    for state in connection.view().states:
        head = chain_keys.entry(state.chain, state.sequence)
        for info in connection.objects.list(chain_keys.entries(state.chain), head, limit=1):  # At most one.
            sequence = keys.entry_sequence(info.key)
            # The next entry is no gap: a writer has committed it since the open.
            if sequence is not None and sequence > state.sequence + 1:
                return False
    return True


def _try_plan(connection: Connection, names: Keys, plan: RepairPlan, *, deep: bool) -> RepairPlan:
    """Return the plan, with one more loss if the store would not open after its repairs."""
    writes = [write for repair in plan.repairs for write in repair.writes]
    with Connection(PlannedObjects(connection.objects, writes), read_only=True, runtime=connection.runtime) as repaired:
        damage = _corruption_on_open(repaired)
        if damage is None:
            return _with_remaining_damage(repaired, plan, deep=deep)
    consequence = "the store does not open, and nothing that is here repairs that: put back what is lost from a backup"
    return replace(plan, lost=(*plan.lost, Loss(names.chains, damage, consequence)))


def _without_writes(plan: RepairPlan, document: Repair, chains: int) -> RepairPlan:
    """Return a plan without repairs: no object proves the number of chains, so the store may not open because of it."""
    consequence = (
        f"not written, and nothing else: the store does not open with {counted(chains, 'chain')}, for which no object "
        "speaks. If it may have another number, give that with --chains; else put back first what is lost besides"
    )
    return replace(plan, repairs=(), lost=(Loss(document.key, document.damage, consequence), *plan.lost))


def _with_remaining_damage(repaired: Connection, plan: RepairPlan, *, deep: bool) -> RepairPlan:
    """Return the plan with the damage that the store would still have after the repairs."""
    known_keys = {loss.key for loss in plan.lost}
    if not deep:
        history_losses = [
            loss
            for state in repaired.view().states
            for loss in _missing_history(repaired, state)
            if loss.key not in known_keys
        ]
        return replace(plan, past=tuple(history_losses))
    violations = [
        violation
        for violation in verify(repaired, deep=True).violations
        if _object_of(violation.subject) not in known_keys
    ]
    segments = {
        violation.subject: violation.message
        for violation in violations
        if keys.has_segments(_object_of(violation.subject)) or "#" in violation.subject
    }
    lost = altered_segments(repaired.view().states, segments)
    known_keys |= {loss.key for loss in lost}
    others = {
        _object_of(violation.subject): violation.message
        for violation in violations
        if _object_of(violation.subject) not in known_keys
    }
    history_losses = [Loss(key, message, _HISTORY_CONSEQUENCE, blocks=False) for key, message in others.items()]
    return replace(plan, lost=plan.lost + lost, past=tuple(history_losses))


def _object_of(subject: str) -> str:
    """Return the key of the object that a violation is about; the subject may be a segment in it."""
    return subject.partition("#")[0]


def _missing_history(repaired: Connection, state: State) -> Iterator[Loss]:
    """Yield the missing entries of the history of a chain."""
    names, first = repaired.keys, repaired.chains[state.chain].boundaries.last().sequence
    for start, end in missing_entries(repaired.objects, names, state.chain, first, state.sequence):
        entries = f"entries {start} to {end} of chain {state.chain} are" if end > start else "it is"
        yield Loss(names.entry(state.chain, start), f"{entries} missing", _HISTORY_CONSEQUENCE, blocks=False)


def _missing_heads(connection: Connection, names: Keys, states: Sequence[State]) -> tuple[Loss, ...]:
    """Find newest known entries that are missing: no vacuum deletes one, so later entries may be lost as well."""
    losses = []
    for state in states:
        key = names.entry(state.chain, state.sequence)
        if state.sequence and not any(info.key == key for info in connection.objects.list(key, limit=1)):
            damage = "it is missing, though it is the newest one that is known, from a checkpoint"
            consequence = (
                f"the state of chain {state.chain} up to it is sound. Whether entries after it are lost cannot be "
                "known; what was committed in them is lost with them. To keep it, put the entries back from a backup "
                "before anything is written"
            )
            losses.append(Loss(key, damage, consequence, blocks=False))
    return tuple(losses)


def _lost_segments_of_open_store(connection: Connection) -> tuple[Loss, ...]:
    """Find lost segments, in two looks: a vacuum may delete replaced ones meanwhile."""
    losses = lost_segments(connection.objects, connection.keys, connection.view().states)
    return losses and lost_segments(connection.objects, connection.keys, connection.view().states)


def _check_chain_count(chain_repairs: list[ChainRepairs]) -> None:
    """Refuse a number of chains by which a partition, group or transactional id would be in the wrong chain."""
    for chain in chain_repairs:
        subject = misplaced(chain.state)
        if subject is not None:
            state = chain.state
            msg = f"the store does not have {counted(state.chains, 'chain')}: {subject} is in chain {state.chain}"
            raise InvalidConfigError(msg)
