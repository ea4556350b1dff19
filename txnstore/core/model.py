"""Values that several subjects of the core use: commands, partitions, isolation levels, outcomes, producers, fences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeVar, dataclass_transform

from rpds import HashTrieMap

C = TypeVar("C")


class Command:
    """A request that a chain decides; ``txnstore.core.commands`` has all classes of commands."""

    __slots__ = ()


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value_class(*, kw_only: bool = False) -> Callable[[type[C]], type[C]]:
    """Make a frozen dataclass with slots in a third of the time, and with a fast constructor.

    A process makes over a hundred classes when it starts: ``dataclass`` compiles Python for six methods of each, and
    this for one. A commit makes many values for each batch. The type checker refuses assignments to their members; at
    run time nothing does: what dataclasses do about them makes the constructor of ``Batch`` seven times as slow.
    """

    def make(kind: type[C]) -> type[C]:
        made: Any = dataclass(slots=True, eq=False, repr=False, kw_only=kw_only)(kind)
        for name, method in _methods(made).items():
            if kind.__dict__.get(name) is None:
                setattr(made, name, method)
        finished: type[C] = made
        return finished

    return make


def _methods(kind: Any) -> dict[str, Callable[..., Any]]:
    """Return the methods of a class that compare, hash and print its members as a dataclass does."""
    compared = [member.name for member in fields(kind) if member.compare]
    printed = [member.name for member in fields(kind) if member.repr]
    values: Callable[[Any], Any] = attrgetter(*compared) if compared else lambda _: ()

    def is_equal(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def hash_of(self: Any) -> int:
        return hash(values(self))

    def text_of(self: Any) -> str:
        return f"{self.__class__.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in printed)})"

    return {"__eq__": is_equal, "__hash__": hash_of, "__repr__": text_of}


K = TypeVar("K")
V = TypeVar("V")

#: A persistent map: a change returns a new map that shares the unchanged parts.
Map = HashTrieMap

#: The epoch and producer id of records that no idempotent producer wrote.
NO_PRODUCER = -1


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


#: The same :class:`TopicPartition` for equal arguments: a commit names each of its partitions several times.
interned_tp = lru_cache(maxsize=2**14, typed=True)(TopicPartition)


class Isolation(StrEnum):
    """The isolation of a reader: committed records below the LSO, or all records below the high watermark."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class Outcome(StrEnum):
    """The outcome of a transaction."""

    COMMIT = "COMMIT"
    ABORT = "ABORT"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Write the string itself: ``value`` is Python code, in which pydantic drops an interrupt."""
        return handler(source) | {"serialization": {"type": "str"}}


class Fence(NamedTuple):
    """The fence of a producer of another chain.

    Attributes:
        epoch: The chain refuses older epochs of the producer.
        at: The time of the last entry with an event of the producer, in ms.
        prepared: The transaction of this epoch is prepared for an external coordinator (KIP-939): the chain also
            refuses batches and offsets of this epoch, until its marker.
    """

    epoch: int
    at: int
    prepared: bool


class EntrySpan(NamedTuple):
    """Entries of which batches with inlined segments were removed; entries between them may be in it, too.

    Attributes:
        first: The first entry.
        last: The last entry.
        at: The time of the last removal, in ms.
    """

    first: int
    last: int
    at: int


@value_class()
class Features:
    """Names of features of the format, sorted: those that a reader must know, and those that a writer must."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()

    def union(self, other: Features) -> Features:
        """Return the features of both."""
        return Features(tuple(sorted({*self.read, *other.read})), tuple(sorted({*self.write, *other.write})))

    def without(self, other: Features) -> Features:
        """Return the features that ``other`` lacks."""
        if self == other:
            return NO_FEATURES
        return Features(tuple(sorted({*self.read} - {*other.read})), tuple(sorted({*self.write} - {*other.write})))


NO_FEATURES = Features()


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """The identity of a producer instance; ``transactional_id`` is None for an idempotent producer."""

    producer_id: int = NO_PRODUCER
    epoch: int = NO_PRODUCER
    transactional_id: str | None = None

    def __str__(self) -> str:
        name = f"{self.transactional_id!r}, " if self.transactional_id is not None else ""
        return f"producer {name}id {self.producer_id}, epoch {self.epoch}"


def items_of(values: Mapping[K, V]) -> list[tuple[K, V]]:
    """Return the items of a map, in any order.

    The iterators of a persistent map make another map at each step. What it is pickled as lists the items directly, in
    a thirtieth of the time.
    """
    if isinstance(values, Map):
        pickled: Any = values.__reduce__()
        items: list[tuple[K, V]] = pickled[1][0]
        return items
    return list(values.items())


def sorted_items(values: Mapping[K, V]) -> list[tuple[K, V]]:
    """Return the items of a map, sorted by key; values are not compared."""
    return sorted(items_of(values), key=itemgetter(0))
