"""The messages between a process and the committer of a chain: frames of a header in JSON and bytes.

::

    caller → committer    Hello       who it is; another store or chain is refused by a closed channel
    committer → caller    Welcome     the newest entry that the committer knows: the caller reads up to it
    caller → committer    Commands    please commit them; one message is answered before the next one is sent
    committer → caller    Declined    those that no entry of the committer carries: decide them yourself
    committer → caller    Stored      an entry, without its payload if that is large

There is no message with an answer: entries name the commands that they carry.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias

from pydantic_core import SchemaValidator

from txnstore.chain.rules import Limits, serializer_of, validator_of
from txnstore.core.commands import COMMANDS
from txnstore.core.log.commands import Append
from txnstore.core.log.model import NewBatch
from txnstore.core.model import Command, value_class
from txnstore.core.transactions.commands import EndTxn

#: The length of the header in a frame, which precedes it.
_LENGTH = 4
_KINDS = {kind.__name__: kind for kind in COMMANDS}


@value_class()
class Hello:
    """The first message of a caller; ``chain``: the prefix of the objects of the chain."""

    chain: str
    writer_id: str


@value_class()
class Welcome:
    """The answer to a hello.

    Attributes:
        sequence: The newest entry that the committer knows.
        entry_hash: Its hash, so that the caller can tell whether its storage has it, too.
        recorded: The entry that the caller has to know before it hands over commands, at least ``sequence``.
        patience_ms: After this time without an answer the caller should commit itself.
    """

    sequence: int
    entry_hash: str
    recorded: int
    patience_ms: float


@value_class()
class Commands:
    """Commands that a caller hands over.

    Attributes:
        after: The newest entry of the chain that the caller knows.
        not_before: The newest time of an entry of any chain that it knows, in ms.
        catalog: The newest entry of chain 0 that it knows.
        handed: Each command with its number and its principal.
    """

    after: int
    not_before: int
    catalog: int
    handed: tuple[tuple[int, str, Command], ...]


@value_class()
class Declined:
    """The numbers of commands that no entry of the committer carries, and none will."""

    numbers: tuple[int, ...]


@value_class()
class Stored:
    """An entry that the committer has written or read.

    Attributes:
        durable: Whether it survives a power cut.
        is_whole: Whether ``data`` has its payload, too.
    """

    sequence: int
    durable: bool
    is_whole: bool
    data: bytes


Message: TypeAlias = Hello | Welcome | Commands | Declined | Stored


class UnreadableMessageError(ValueError):
    """A message that this release does not send."""


def encode_message(message: Message) -> bytes:
    """Encode a message as a frame."""
    if isinstance(message, Stored):
        return _frame("stored", [message.sequence, message.durable, message.is_whole], [message.data])
    if isinstance(message, Commands):
        return _encode_commands(message)
    name = type(message).__name__.lower()
    return _frame(name, [getattr(message, member.name) for member in fields(message)], [])


def _frame(name: str, values: Sequence[Any], data: Iterable[bytes]) -> bytes:
    header = json.dumps([name, *values], separators=(",", ":")).encode()
    return b"".join((len(header).to_bytes(_LENGTH, "big"), header, *data))


def _encode_commands(message: Commands) -> bytes:
    """Write each command as JSON; bytes that several batches share are written once, and stay shared."""
    numbers: dict[int, int] = {}
    blobs: list[bytes] = []
    rows: list[list[Any]] = []
    for number, principal, command in message.handed:
        places: list[int | None] = []
        bare: Any = command
        if isinstance(command, Append | EndTxn):
            for batch in command.batches:
                if batch.data is not None and id(batch.data) not in numbers:
                    numbers[id(batch.data)] = len(blobs)
                    blobs.append(batch.data)
                places.append(None if batch.data is None else numbers[id(batch.data)])
            bare = replace(command, batches=tuple(_without_data(batch) for batch in command.batches))
        kind: Any = type(command)
        written = serializer_of(kind).to_json(bare, warnings="error").decode()
        rows.append([number, principal, kind.__name__, places, written])
    sizes = [len(blob) for blob in blobs]
    return _frame("commands", [message.after, message.not_before, message.catalog, rows, sizes], blobs)


def _without_data(batch: NewBatch) -> NewBatch:
    return batch if batch.data is None else replace(batch, data=None)


def decode_message(frame: bytes) -> Message:
    """Decode a frame by strict rules, those of commands by the ones of this process.

    Raises:
        UnreadableMessageError: It is none.
    """
    try:
        end = _LENGTH + int.from_bytes(frame[:_LENGTH], "big")
        name, *values = _header().validate_json(frame[_LENGTH:end])
        if name == "stored":
            sequence, durable, is_whole = values
            return Stored(sequence, durable, is_whole, frame[end:])
        if name == "commands":
            return _decode_commands(values, memoryview(frame)[end:])
        if len(frame) != end:
            raise ValueError(f"{len(frame)} bytes, not {end}")
        message: Message = _PLAIN[name](*values)
        return message
    except Exception as error:
        raise UnreadableMessageError(f"a message that cannot be read: {error}") from error


def _decode_commands(values: list[Any], data: memoryview) -> Commands:
    """Read commands, and give each batch its bytes: ``data`` has those of all batches, one after the other."""
    after, not_before, catalog, rows, sizes = values
    blobs, position = [], 0
    for size in sizes:
        blobs.append(bytes(data[position : position + size]))
        position += size
    if position != len(data):
        raise ValueError(f"{len(data)} bytes of batches, not {position}")
    handed = []
    for number, principal, kind, places, written in rows:
        of: Any = _KINDS[kind]
        command: Any = validator_of(of).validate_json(written)
        if places or isinstance(command, Append | EndTxn):
            batches = zip(command.batches, places, strict=True)
            filled = (batch if at is None else replace(batch, data=blobs[at]) for batch, at in batches)
            command = replace(command, batches=tuple(filled))
        handed.append((number, principal, command))
    return Commands(after, not_before, catalog, tuple(handed))


_PLAIN: dict[str, Any] = {"hello": Hello, "welcome": Welcome, "declined": Declined}
_Count: TypeAlias = Annotated[int, Limits(ge=0)]
#: A command: its number, its principal, its class, the place of the bytes of each batch, its other values as JSON.
_Row: TypeAlias = tuple[int, str, str, list[_Count | None], str]


@cache
def _header() -> SchemaValidator:
    """Return what reads the headers of all messages, the most frequent ones first."""
    return validator_of(
        tuple[Literal["stored"], int, bool, bool]
        | tuple[Literal["commands"], int, int, int, list[_Row], list[_Count]]
        | tuple[Literal["declined"], tuple[int, ...]]
        | tuple[Literal["hello"], str, str]
        | tuple[Literal["welcome"], int, str, int, float]
    )
