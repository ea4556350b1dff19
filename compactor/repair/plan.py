"""The result of :func:`txnstore.compactor.plan_repairs`: objects that can be written again, and losses."""

from __future__ import annotations

from dataclasses import dataclass, field

from txnstore.compactor.repair.contents import StoreContents


@dataclass(frozen=True, slots=True)
class Repair:
    """An object that can be rebuilt from the other objects.

    Attributes:
        key: The object.
        damage: What is wrong with it.
        action: What is written, or deleted.
        writes: The objects in the order of their writes, each a key with its bytes; None: the object is deleted.
        create: Whether the object must not exist: it is never written over.
    """

    key: str
    damage: str
    action: str
    writes: tuple[tuple[str, bytes | None], ...] = field(repr=False)
    create: bool = False


@dataclass(frozen=True, slots=True)
class Loss:
    """An object that cannot be rebuilt.

    Attributes:
        key: The object.
        damage: What is wrong with it.
        consequence: What follows from that, and what can be done.
        blocks: Whether the store cannot be opened.
    """

    key: str
    damage: str
    consequence: str
    blocks: bool = True


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The damage that prevents or slows the opening of a store, and lost records; empty for a sound store.

    Attributes:
        repairs: What can be rebuilt.
        lost: What cannot.
        past: Damaged objects that nothing needs but earlier snapshots and a verification of the history: nothing that
            is stored now is lost with them.
        stores: What is here of each store, if there are several, or ``store.json`` does not show which one it is.
        foreign: The ids of those that are not this store, as it is after the repairs.
    """

    repairs: tuple[Repair, ...] = ()
    lost: tuple[Loss, ...] = ()
    past: tuple[Loss, ...] = ()
    stores: tuple[StoreContents, ...] = ()
    foreign: tuple[str, ...] = ()

    @property
    def opens(self) -> bool:
        """Whether the store can be opened, after the repairs."""
        return not any(loss.blocks for loss in self.lost)
