"""Finds out which store is here, and rebuilds ``store.json`` from its chains. See docs/internals/design/identity.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from txnstore.chain import keys
from txnstore.chain.backups import backup_here
from txnstore.chain.boundary import read_boundary
from txnstore.chain.checkpoints import checkpoint
from txnstore.chain.codec import StoreDocument, encode
from txnstore.chain.identity import document_of
from txnstore.chain.keys import Keys
from txnstore.chain.payload import decode_entry
from txnstore.chain.traces import describe_traces, no_document, other_store, stores
from txnstore.compactor.repair.contents import StoreContents, contents_of
from txnstore.compactor.repair.plan import Loss, Repair
from txnstore.connection import Connection
from txnstore.core.routing import CATALOG, chain_of_group, chain_of_partition, chain_of_transactional_id
from txnstore.core.state import State
from txnstore.core.transactions.model import MAX_TIMEOUT_MS
from txnstore.errors import CorruptionError, InvalidConfigError, ObjectNotFoundError, TxnStoreError
from txnstore.phrases import counted
from txnstore.storage.base import read_if_there
from txnstore.storage.redact import redact

_ELSEWHERE = "put an older version or a copy of it back"


class Identified(NamedTuple):
    """The store that is here, or why it cannot be determined.

    Attributes:
        document: The document of the store; None if that cannot be known.
        repair: How ``store.json`` is written; None if it exists, and is that of this store.
        loss: What cannot be known, so that the store does not open; None if nothing is.
        stores: What is here of each store, if there are several, or it cannot be known which one it is.
        proven: Whether an object shows the number of chains; else the caller has given it.
        choices: Those of ``stores`` that it may be, while the document cannot be known.
    """

    document: StoreDocument | None
    repair: Repair | None = None
    loss: Loss | None = None
    stores: tuple[StoreContents, ...] = ()
    proven: bool = True
    choices: tuple[StoreContents, ...] = ()


def identify(connection: Connection, chains: int | None, chosen_id: str | None) -> Identified:
    """Find the store that ``store.json`` names, else the only one that has chains, or the chosen one.

    Args:
        connection: The connection to the store; it need not be loaded.
        chains: The number of chains; None: as a checkpoint has it.
        chosen_id: The id of the store; None: it is not chosen.

    Raises:
        StoreNotFoundError: There is no store, and nothing is left of one.
        UnsupportedFormatError: A newer txnstore wrote it.
        InvalidConfigError: ``chains`` is not what the objects of the store show, or nothing is here of the chosen one.
        BackupError: There is a backup: with a ``store.json`` it would be a store, with what its next cut has so far.
    """
    objects, url = connection.objects, redact(connection.url)
    data = read_if_there(objects, keys.STORE)
    present_document, damage = None, "it is missing"
    if data is not None:
        try:
            present_document = document_of(data, url)
        except CorruptionError as error:
            damage = str(error)
    elif (backup := backup_here(objects)) is not None:
        raise backup
    ids = stores(objects)
    if (
        chosen_id is not None
        and chosen_id not in ids
        and (present_document is None or chosen_id != present_document.store_id)
    ):
        here_text = f"there are chains of {', '.join(ids)}" if ids else "there are no chains of any store"
        msg = f"nothing is left of the store {chosen_id} at {url}: {here_text}"
        raise InvalidConfigError(msg)
    if present_document is not None and chosen_id in (None, present_document.store_id):
        return _identify_named(connection, present_document, ids, chains)
    if present_document is not None:
        damage = f"it names the store {present_document.store_id}"
    contents = _contents_of_stores(connection, ids) if len(ids) > 1 else ()
    if chosen_id is None and len(ids) != 1:
        return Identified(None, None, _identity_loss(connection, damage, contents), contents, choices=contents)
    store_keys = Keys(chosen_id or ids[0])
    count, proven = _chain_count(connection, store_keys, chains)
    if count is None:
        min_chains = counted(_last_chain(connection, store_keys) + 1, "chain")
        option = f"give it with --chains ({min_chains} at least)"
        consequence = f"no checkpoint shows how many chains the store has: {option}, or {_ELSEWHERE}"
        contents = contents or _contents_of_stores(connection, ids)
        choices = tuple(store for store in contents if store.store_id == store_keys.store_id)
        return Identified(None, None, Loss(keys.STORE, damage, consequence), contents, choices=choices)
    document = StoreDocument(
        store_id=store_keys.store_id,
        chains=count,
        created_at=_creation_time(connection, store_keys),
        transaction_max_timeout_ms=MAX_TIMEOUT_MS,
    )
    action = f"written again: store {store_keys.store_id} with {counted(count, 'chain')}"
    # It is in no other object.
    action += f"; the largest timeout of transactions is {MAX_TIMEOUT_MS // 60_000} minutes, whatever it was before"
    if present_document is not None:
        action += f". Nothing of the store {present_document.store_id} is deleted"
    repair = Repair(keys.STORE, damage, action, ((keys.STORE, encode(document)),), create=data is None)
    return Identified(document, repair, None, contents, proven)


def recover_command(connection: Connection) -> str:
    """Return the command that recovers a store that does not open; with several stores, one that shows them."""
    try:
        choices = identify(connection, None, None).choices
    except TxnStoreError:
        choices = ()
    if len(choices) > 1:
        return "txnstore recover --dry-run"
    return choices[0].command if choices else "txnstore recover"


def _identify_named(
    connection: Connection, document: StoreDocument, ids: Sequence[str], chains: int | None
) -> Identified:
    """Identify the store that ``store.json`` names, unless the objects here belong to another one."""
    store_keys = Keys(document.store_id)
    contents = _contents_of_stores(connection, ids) if set(ids) - {document.store_id} else ()
    if connection.objects.list(store_keys.chain(CATALOG), limit=1) or not (
        why := other_store(connection.objects, store_keys)
    ):
        if chains not in (None, document.chains):
            msg = (
                f"{keys.STORE} says that the store has {counted(document.chains, 'chain')}, not {chains}, and it can "
                f"be read. If it is wrong, move it away, and repeat this: {keys.STORE} is written again then"
            )
            raise InvalidConfigError(msg)
        return Identified(document, stores=contents)
    if not contents:
        return Identified(
            None, None, Loss(keys.STORE, why, f"the store does not open. {_describe_segments(connection)}")
        )
    choices = tuple(store for store in contents if store.store_id != document.store_id)
    loss = Loss(keys.STORE, why, f"the store does not open. {_describe_choices(choices)}")
    return Identified(None, None, loss, contents, choices=choices)


def _identity_loss(connection: Connection, damage: str, contents: Sequence[StoreContents]) -> Loss:
    """Describe the loss of ``store.json`` where there are chains of no store, or of several."""
    if contents:
        return Loss(
            keys.STORE, damage, f"which store this is cannot be known: choose it. {_describe_choices(contents)}"
        )
    if not (reason := describe_traces(connection.objects)):
        if damage == "it is missing":
            raise no_document(connection.objects)
        reason = "nothing of a store is here"
    consequence = (
        f"which store this is cannot be known: {reason}, and no entry or checkpoint shows its id; {_ELSEWHERE}"
    )
    return Loss(keys.STORE, damage, f"{consequence}. {_describe_segments(connection)}")


def _describe_choices(contents: Sequence[StoreContents]) -> str:
    """Describe the contents of each store, and the command that chooses it."""
    choices = "; ".join(f"{store} (`{store.command}`)" for store in contents)
    if all(store.total_chains is not None for store in contents):
        return f"Here is {choices}"
    return f"Here is {choices}. N is the number of chains that the store was created with, which no checkpoint shows"


def _describe_segments(connection: Connection) -> str:
    """Describe the objects with records that no chain says are committed."""
    items = [info for info in connection.objects.list(keys.TOPICS) if keys.has_segments(info.key)]
    size = sum(info.size for info in items)
    if not items:
        return f"Put {keys.CHAINS} back from a backup"
    return (
        f"{counted(len(items), 'object')} of {size:,} bytes with records {'is' if len(items) == 1 else 'are'} here; "
        f"which of them are committed, and in which order, only {keys.CHAINS} shows: put it back from a backup"
    )


def _contents_of_stores(connection: Connection, ids: Sequence[str]) -> tuple[StoreContents, ...]:
    return tuple(
        contents_of(connection, store_id, _chain_count_in_checkpoint(connection, Keys(store_id))) for store_id in ids
    )


def misplaced(state: State) -> str | None:
    """Name something in the state that another chain would lead, by the number of chains; None if all is in place."""
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


def _chain_count_in_checkpoint(connection: Connection, store_keys: Keys) -> int | None:
    """Return the number of chains in a checkpoint; None without one."""
    saved = _first_checkpoint_state(connection, store_keys, _last_chain(connection, store_keys))
    return saved.chains if saved is not None else None


def _last_chain(connection: Connection, store_keys: Keys) -> int:
    """Return the greatest number of a chain that has objects."""
    numbers = {keys.chain_number(info.key) for info in connection.objects.list(store_keys.chains)}
    return max((number for number in numbers if number is not None), default=0)


def _first_checkpoint_state(connection: Connection, store_keys: Keys, last_chain: int) -> State | None:
    """Return the state in the newest checkpoint of the first chain that has one."""
    for number in range(last_chain + 1):
        saved = checkpoint.newest(connection.objects, connection.pool, store_keys, number)
        if saved is not None:
            return saved.state
    return None


def _chain_count(connection: Connection, store_keys: Keys, chains: int | None) -> tuple[int | None, bool]:
    """Return the number of chains (None if unknown), and whether a checkpoint proves it."""
    last_chain = _last_chain(connection, store_keys)
    state = _first_checkpoint_state(connection, store_keys, last_chain)
    if state is not None:
        if chains not in (None, state.chains):
            msg = f"the store has {state.chains} chains, as a checkpoint of chain {state.chain} shows, not {chains}"
            raise InvalidConfigError(msg)
        return state.chains, True
    if chains is not None and chains <= last_chain:
        limit = f"more than {chains} chain{'s' if chains > 1 else ''}"
        msg = f"the store has {limit}: there are entries of chain {last_chain}"
        raise InvalidConfigError(msg)
    return chains, False


def _creation_time(connection: Connection, store_keys: Keys) -> int:
    """Return the time of the catalog's first entry; if it cannot be read, that of the first boundary; else now."""
    key = store_keys.entry(CATALOG, 1)
    try:
        return decode_entry(key, connection.objects.get(key)).timestamp
    except (CorruptionError, ObjectNotFoundError):
        return _first_boundary_time(connection, store_keys) or connection.runtime.clock()


def _first_boundary_time(connection: Connection, store_keys: Keys) -> int:
    """Return the time of the catalog's first boundary, for deleted first entries; 0 without one."""
    try:
        return max(0, read_boundary(connection.objects, store_keys, CATALOG, 1).timestamp)
    except CorruptionError:
        return 0
