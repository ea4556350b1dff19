"""What the workers ask of a client, whatever library it is of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol


class RefusedError(Exception):
    """The transaction has failed; the client says that it is to be aborted."""


class EndedError(Exception):
    """The client cannot continue; a new process replaces it."""


class Read(NamedTuple):
    """A record that was read."""

    topic: str
    partition: int
    offset: int
    value: str


#: Partitions, as topic and number.
Places = Sequence[tuple[str, int]]
#: Is called with the partitions of a member, and with those of them that it has newly got, when the group changes them.
Assigned = Callable[[Places, Places], None]


class Producing(Protocol):
    """A producer: transactional if it was made with an id. All methods raise :class:`EndedError`."""

    def begin(self) -> None: ...

    def send(self, topic: str, partition: int, value: bytes) -> Callable[[], int]:
        """Send a record; the result waits for its offset."""
        ...

    def flush(self) -> None:
        """Wait until all records are written. Raises :class:`RefusedError`."""
        ...

    def send_offsets(self, offsets: Mapping[tuple[str, int], int], consumer: Consuming) -> None: ...

    def commit(self) -> None:
        """Commit; raises :class:`RefusedError`. After an :class:`EndedError`, the outcome is unknown."""
        ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class Consuming(Protocol):
    """A consumer of committed records."""

    def subscribe(self, topic: str, assigned: Assigned) -> None: ...

    def assign(self, places: Places) -> None:
        """Read these from their beginning."""
        ...

    def poll(self, count: int, seconds: float) -> list[Read]: ...

    def rewind(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Go back to these offsets, where the partitions are still its own."""
        ...

    def close(self) -> None: ...


class Library(Protocol):
    """Makes clients."""

    def producer(self, transactional_id: str | None) -> Producing: ...

    def consumer(self, group: str | None, isolation: str) -> Consuming: ...

    def working(self) -> None:
        """From here until :meth:`idle`, the partitions must not change hands."""
        ...

    def idle(self) -> None: ...

    def close(self) -> None: ...
