"""Rebuilds ``store.json`` from the chains of the store."""

from __future__ import annotations

from txnstore.chain import checkpoint, keys
from txnstore.chain.boundary import read_boundary
from txnstore.chain.chains import read_if_there
from txnstore.chain.codec import StoreDocument, encode
from txnstore.chain.identity import document_of
from txnstore.chain.keys import CHAINS, HINTS, Keys, store_of
from txnstore.chain.payload import decode_entry
from txnstore.compactor.damage import Loss, Repair
from txnstore.connection import Connection
from txnstore.core.routing import chain_of_group, chain_of_partition, chain_of_transactional_id
from txnstore.core.state import State
from txnstore.errors import CorruptionError, InvalidConfigError, ObjectNotFoundError, StoreNotFoundError
from txnstore.storage.redact import redact

_ELSEWHERE = "put an older version or a copy of it back"


def identity(connection: Connection, chains: int | None) -> tuple[StoreDocument | None, Repair | None, Loss | None]:
    """The document of the store; if it had to be rebuilt, with its repair; None with what is lost.

    Raises:
        StoreNotFoundError: There is no store, and nothing is left of one.
        UnsupportedFormatError: A newer txnstore wrote it.
        InvalidConfigError: ``chains`` is not what the objects of the store show.
    """
    data = read_if_there(connection.objects, keys.STORE)
    try:
        return document_of(data, redact(connection.url)), None, None
    except StoreNotFoundError:
        if data is not None:
            raise
        damage, found = "it is missing", _stores(connection)
        if not found:
            raise
    except CorruptionError as error:
        damage, found = str(error), _stores(connection)
    if len(found) != 1:
        what = "no entry or checkpoint shows its id" if not found else f"there are chains of {', '.join(found)}"
        return None, None, Loss(keys.STORE, damage, f"which store this is cannot be known: {what}; {_ELSEWHERE}")
    names = Keys(found[0])
    count = _count(connection, names, chains)
    if count is None:
        consequence = f"no checkpoint shows how many chains the store has: give it with --chains, or {_ELSEWHERE}"
        return None, None, Loss(keys.STORE, damage, consequence)
    document = StoreDocument(store_id=names.store_id, chains=count, created_at=_created_at(connection, names))
    action = f"written again: store {names.store_id} with {count} chain{'s' if count > 1 else ''}"
    repair = Repair(keys.STORE, damage, action, ((keys.STORE, encode(document)),), create=data is None)
    return document, repair, None


def misplaced(state: State) -> str | None:
    """Something in the state of a chain that belongs to another one by the number of chains; None: nothing."""
    for tp in sorted(state.partitions):
        if chain_of_partition(tp, state.chains) != state.chain:
            return f"partition {tp}"
    for name in sorted(state.groups):
        if chain_of_group(name, state.chains) != state.chain:
            return f"group {name!r}"
    for name in sorted(state.transactions):
        if chain_of_transactional_id(name, state.chains) != state.chain:
            return f"transactional id {name!r}"
    return None


def _stores(connection: Connection) -> list[str]:
    """The ids of all stores with chains here; one list for each."""
    found: list[str] = []
    after = ""
    while page := connection.objects.list(CHAINS, after, 1):
        store_id = store_of(page[0].key)
        if store_id is not None:
            found.append(store_id)
        after = f"{Keys(store_id).chains if store_id is not None else HINTS}~"
    return found


def _count(connection: Connection, names: Keys, given: int | None) -> int | None:
    """The number of chains as a checkpoint has it, else as given; None if neither says so."""
    numbers = {keys.chain_number(item.key) for item in connection.objects.list(names.chains)}
    last = max((number for number in numbers if number is not None), default=0)
    for number in range(last + 1):
        saved = checkpoint.newest(connection.objects, connection.pool, names, number)
        if saved is None:
            continue
        chains = saved.state.chains
        if given not in (None, chains):
            msg = f"the store has {chains} chains, as a checkpoint of chain {number} shows, not {given}"
            raise InvalidConfigError(msg)
        return chains
    if given is not None and given <= last:
        msg = f"the store has more than {given} chain{'s' if given > 1 else ''}: there are entries of chain {last}"
        raise InvalidConfigError(msg)
    return given


def _created_at(connection: Connection, names: Keys) -> int:
    """The time of the first entry of the catalog, or now."""
    key = names.entry(0, 1)
    try:
        return decode_entry(key, connection.objects.get(key)).timestamp
    except (CorruptionError, ObjectNotFoundError):
        return _first_boundary(connection, names) or connection.runtime.clock()


def _first_boundary(connection: Connection, names: Keys) -> int:
    """The time of the first boundary of the catalog, whose oldest entries were deleted; 0 without one."""
    try:
        return max(0, read_boundary(connection.objects, names, 0, 1).timestamp)
    except CorruptionError:
        return 0
