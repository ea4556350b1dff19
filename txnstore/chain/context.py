"""What a store gives to all of its chains in one process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

from txnstore.chain.committer.rendezvous import Network, Rendezvous
from txnstore.chain.keys import Keys
from txnstore.core.authorization.model import ANONYMOUS
from txnstore.core.model import value_class
from txnstore.core.state import State
from txnstore.runtime import Runtime
from txnstore.storage.base import ObjectStore

#: The process that commits an entry whose number is a multiple of this one writes a checkpoint of a small state.
CHECKPOINT_EVERY = 64


@value_class()
class ChainContext:
    """What a store gives to all of its chains; it is made once for each open.

    Attributes:
        objects: The objects of the store.
        keys: The names of the objects of its chains.
        runtime: Clocks, randomness, ids, pauses.
        pool: Runs single storage requests concurrently.
        count: The number of chains of the store.
        read_only: Whether every commit raises :class:`~txnstore.errors.ReadOnlyError`.
        checkpoint_every: The number of entries between two checkpoints of a small state.
        background: Returns the executor that writes checkpoints; None: the committing thread writes them.
        check_storage: Called before each write; raises if the storage is not known to create a name once.
        on_checkpoint: Called with the state of each checkpoint that a commit of this process makes due; raises nothing.
        principal: Who asks for the commands of this process.
        rendezvous: Where it meets other processes of its machine, which share entries; None: it shares none.
        network: How it meets those of other machines; None: it does not.
    """

    objects: ObjectStore
    keys: Keys
    runtime: Runtime
    pool: Executor
    count: int = 1
    read_only: bool = False
    checkpoint_every: int = CHECKPOINT_EVERY
    background: Callable[[], Executor] | None = None
    check_storage: Callable[[], None] = lambda: None
    on_checkpoint: Callable[[State], None] = lambda _: None
    principal: str = ANONYMOUS
    rendezvous: Rendezvous | None = None
    network: Network | None = None
