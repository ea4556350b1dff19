"""The codec of entries and other small JSON objects: strict models with a version and a checksum.

The last member of every object is ``"checksum"``: the SHA-256 of the object without this member. So a truncated or
altered object can be detected without another object, and the bytes are still plain JSON. See docs/format.md.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import field
from functools import cache, lru_cache
from itertools import groupby
from typing import Annotated, Any, TypeVar

from pydantic_core import PydanticSerializationError, SchemaSerializer, ValidationError

from txnstore.chain.keys import CHAINS, entry_sequence, store_of
from txnstore.chain.rules import NOT_WRITTEN, Limits, Tagged, serializer_of, validator_of
from txnstore.core.authorization.changes import AUTHORIZATION
from txnstore.core.events import EVENT_TYPES, Event
from txnstore.core.groups.model import GROUPS
from txnstore.core.log.events import BatchesAppended, MarkerWritten
from txnstore.core.log.model import Segment
from txnstore.core.maintenance import SegmentsReplaced
from txnstore.core.model import NO_FEATURES, Command, Features, value_class
from txnstore.core.routing import MAX_CHAINS
from txnstore.core.transactions.events import PartitionsAdded
from txnstore.core.transactions.model import NO_TIMEOUT_MS
from txnstore.core.transactions.sessions import SESSIONS
from txnstore.errors import CorruptionError, InvalidConfigError, UnsupportedFormatError

#: The only format version that this release writes and reads.
FORMAT_VERSION = 4
#: The features of the format that this release has. A chain may require others, of later releases.
READ_FEATURES: frozenset[str] = frozenset()
WRITE_FEATURES = frozenset((*AUTHORIZATION.write, *GROUPS.write, *SESSIONS.write))

_MARK = b',"checksum":"'
_SUFFIX = len(_MARK) + 64 + 2
#: The first member of every object.
_VERSION = re.compile(rb'\{\s*"version"\s*:\s*(\d{1,9})\b')


#: A number of an object as a whole. JSON has no limit; more than 64 bits are damage, which no later step could store.
Int64 = Annotated[int, Limits(ge=-(2**63), le=2**63 - 1)]


@value_class(kw_only=True)
class Stored:
    """A JSON object in storage, with strict types. Unknown members are of a later release, and change nothing here."""

    version: int = FORMAT_VERSION

    @classmethod
    def readable(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Remove from the JSON what only later releases know."""
        return document


@value_class(kw_only=True)
class StoreDocument(Stored):
    """``store.json``: the identity of a store."""

    #: A UUID, which is a part of keys.
    store_id: Annotated[str, Limits(pattern="^[0-9a-f-]{36}$")]
    chains: Annotated[int, Limits(ge=1, le=MAX_CHAINS)]
    created_at: int
    #: The largest timeout of a transaction.
    transaction_max_timeout_ms: Annotated[int, Limits(ge=1, le=NO_TIMEOUT_MS - 1)]
    #: The id of a copy that is used beside its original, whose ``store_id`` its keys have; None: ``store_id``.
    identity: Annotated[str, Limits(pattern="^[0-9a-f-]{36}$")] | None = field(default=None, metadata=NOT_WRITTEN)

    @property
    def known_as(self) -> str:
        """The id by which users and other processes tell the store from others."""
        return self.identity or self.store_id


@value_class(kw_only=True)
class CopyDocument(StoreDocument):
    """``store.json`` of a copy that is used beside its original, where it is written."""

    identity: Annotated[str, Limits(pattern="^[0-9a-f-]{36}$")]


@value_class(kw_only=True)
class LatestDocument(Stored):
    """A hint to the newest checkpoint of a chain. May be stale, missing, or another store's.

    Attributes:
        sequence: The entry of the checkpoint.
        boundary: The number of the last boundary that its writer knew, which is not after the checkpoint.
        entry_hash: The hash of that entry's line.
        head: The newest entry that its writer knew, and knew to be durable.
        head_hash: The hash of that entry's line.
    """

    sequence: Int64
    boundary: Int64
    store_id: str
    entry_hash: str
    head: Int64
    head_hash: str


@value_class(kw_only=True)
class PayloadInfo:
    """The bytes before the line of an entry."""

    size: Annotated[int, Limits(ge=1)]
    sha256: str


AnyEvent = Annotated[Event, Tagged("type")]

#: The number of events from which on an entry is written faster in parts.
LONG = 16
#: The classes of events that name each partition of a commit.
_WIDE = frozenset({PartitionsAdded, MarkerWritten})


#: A command that an entry carries for another process; see :class:`Entry`.
Carried = tuple[str, Int64, Int64, Int64]


@value_class(kw_only=True)
class Entry(Stored):
    """The line of an entry of a chain.

    Attributes:
        payload: The inlined segments before it; None without one.
        requires: The features of the format that the chain uses from this entry on; None: no others than before.
        principals: Who asked for the events, in a store that checks rights: each principal with its number of
            consecutive events; None: it does not check rights.
        carried: The commands of other processes: for each the writer id of its process, the number that the process
            gave it, its first event (from 0) and the number of its events; None without any. It is not written then,
            so an entry that has some is a :class:`CarryingEntry` where it is made.
    """

    sequence: Int64
    entry_id: str
    writer_id: str
    timestamp: Int64
    previous: str
    payload: PayloadInfo | None
    requires: Features | None
    principals: list[tuple[str, int]] | None
    carried: list[Carried] | None = field(default=None, metadata=NOT_WRITTEN)
    events: list[AnyEvent]

    @classmethod
    def readable(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Replace each event of a later release by an :class:`~txnstore.core.events.UnknownEvent`."""
        events = document["events"]
        if isinstance(events, list):
            events = [
                event if event["type"] in EVENT_TYPES else {"type": "UnknownEvent", "name": event["type"]}
                for event in events
            ]
        return {**document, "events": events}


@value_class(kw_only=True)
class CarryingEntry(Entry):
    """An entry with commands of other processes, where it is written."""

    carried: list[Carried]


M = TypeVar("M", bound=Stored)


def check_inlined_segments(key: str, segments: Iterable[Segment]) -> None:
    """Check that each segment below ``chains/`` is a range of an entry, which readers take it for.

    Args:
        key: The object that describes the segments; errors name it.
        segments: Also those that are objects of their own.

    Raises:
        CorruptionError: One is not.
    """
    for segment in segments:
        if segment.object.startswith(CHAINS) and not (segment.is_range and _is_entry(segment.object)):
            raise CorruptionError(f"{key} describes a segment in {segment.object}, which is not a range of an entry")


@lru_cache(maxsize=128)
def _is_entry(key: str) -> bool:
    """Whether ``key`` is that of an entry; cached, because all batches of a commit ask for the same key."""
    return store_of(key) is not None and entry_sequence(key) is not None


def segments_of(entry: Entry) -> Iterator[Segment]:
    """Yield the segments that the events of an entry describe."""
    for event in entry.events:
        if isinstance(event, BatchesAppended):
            yield event.segment
        elif isinstance(event, SegmentsReplaced):
            yield from (batch.segment for batch in event.added)


def check(command: Command) -> None:
    """Refuse a command with a value of a wrong type, by the strict rules of the readers of entries.

    An entry that readers refuse would block its chain permanently. The rules of the core make events only from the
    values of commands and states, which are checked, so that an entry is not validated again before it is written.

    Raises:
        InvalidConfigError: A value has a wrong type; names the member of the command.
    """
    kind: Any = type(command)
    try:
        validator_of(kind).validate_python(command)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in (kind.__name__, *problem["loc"]))
        msg = f"cannot write a value of a wrong type: {where}: {problem['msg']}, not {problem['input']!r:.100}"
        raise InvalidConfigError(msg) from error


def encode(document: Stored) -> bytes:
    """Encode a document with its checksum.

    Compares the types while it writes. None passes everywhere: :func:`check` has refused it where it does not belong.

    Raises:
        InvalidConfigError: A value has a wrong type.
    """
    try:
        if isinstance(document, Entry) and len(document.events) >= LONG:
            body = entry_json(document)
        else:
            body = serializer_of(type(document)).to_json(document, warnings="error")
    except (PydanticSerializationError, UnicodeEncodeError) as error:
        if "KeyboardInterrupt" in str(error):  # Pydantic reports an interrupt of a serializer as an error of its own.
            raise KeyboardInterrupt from error
        msg = f"cannot write a value of a wrong type: {error}"
        raise InvalidConfigError(msg) from error
    return _with_checksum(body)


def json_values(document: Stored) -> dict[str, Any]:
    """Return the members of a document as JSON has them."""
    values: dict[str, Any] = serializer_of(type(document)).to_python(document, mode="json")
    return values


def entry_json(entry: Entry) -> bytes:
    """Write the JSON of an entry; consecutive events of one class are serialized together."""
    head = serializer_of(type(entry)).to_json(entry, exclude={"events"}, warnings="error")
    runs = [_list_serializer(kind).to_json([*run], warnings="error") for kind, run in groupby(entry.events, type)]
    events = b",".join(memoryview(run)[1:-1] for run in runs)
    return b'%b,"events":[%b]}' % (head[:-1], events)


@cache
def _list_serializer(kind: type) -> SchemaSerializer:
    """Return a serializer of lists of events of this class.

    Pydantic takes twice the time for a member of a union, which it first turns into a dict to see whether it fits. That
    also compares literals. It is spared for :data:`_WIDE`, which have none.
    """
    return serializer_of(list[kind] if kind in _WIDE else list[AnyEvent])  # type: ignore[valid-type]


def decode(model: type[M], key: str, data: bytes) -> M:
    """Decode the document in ``data``, which was read from ``key``.

    Raises:
        CorruptionError: The checksum does not match, or the document is invalid. All versions of the format have the
            same checksum, so a damaged digit does not look like another version.
        UnsupportedFormatError: Another version of the format.
    """
    body = data[:-_SUFFIX] + b"}"
    begin = _VERSION.match(data)
    version = int(begin[1]) if begin is not None else None
    if data != _with_checksum(body):
        damage = "altered" if data[-_SUFFIX:].startswith(_MARK) else "truncated or altered"
        other = f", or of format version {version}" if version not in (None, FORMAT_VERSION) else ""
        msg = f"{key} is {damage}{other}: its bytes do not match the checksum in it ({len(data)} bytes)"
        raise CorruptionError(msg)
    if version is None:
        raise CorruptionError(f"{key} is not a valid {model.__name__}: it does not begin with its version")
    if version != FORMAT_VERSION:
        msg = f"{key} has format version {version}; this txnstore reads version {FORMAT_VERSION}"
        raise UnsupportedFormatError(msg)
    try:
        return _validate(model, key, body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        msg = f"{key} is not a valid {model.__name__}: {where}: {problem['msg']}"
        raise CorruptionError(msg) from error
    except _FORM_ERRORS as error:
        raise CorruptionError(f"{key} is not a valid {model.__name__}: {reason(error)}") from error


def _validate(model: type[M], key: str, body: bytes) -> M:
    """Parse and validate a document whose checksum matched.

    Raises:
        UnsupportedFormatError: It requires features that this release does not have.
        ValidationError: It is not valid.
    """
    try:
        document: M = validator_of(model).validate_json(body)
    except ValidationError as invalid:
        check_features(key, required_by(body).read, READ_FEATURES, "read")
        try:
            readable = json.dumps(model.readable(json.loads(body)))
        except _FORM_ERRORS:
            raise invalid from None
        document = validator_of(model).validate_json(readable)
    requires: Features | None = getattr(document, "requires", None)
    if requires is not None:
        check_features(key, requires.read, READ_FEATURES, "read")
    return document


#: What a step through JSON raises if it has another form than expected.
_FORM_ERRORS = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError)


def required_by(body: bytes) -> Features:
    """Return the features that a JSON object names, whatever else it has."""
    try:
        features: Features = validator_of(Features).validate_json(json.dumps(json.loads(body)["requires"]))
        return features
    except _FORM_ERRORS:
        return NO_FEATURES


def check_features(name: str, required: Iterable[str], supported: Collection[str], verb: str) -> None:
    """Check that this release has the features that a document requires.

    Args:
        name: What requires them, for the message.
        required: The features.
        supported: Those of this release.
        verb: What they are needed for: ``read`` or ``write``.

    Raises:
        UnsupportedFormatError: It lacks some; names them.
    """
    unknown = sorted(set(required).difference(supported))
    if unknown:
        features = f"the feature {unknown[0]}" if len(unknown) == 1 else f"the features {', '.join(unknown)}"
        msg = f"to {verb} this store, a release of txnstore needs {features}, which {name} requires"
        raise UnsupportedFormatError(msg)


def content_hash(data: bytes | memoryview) -> str:
    """Return the hex SHA-256 of bytes, as ``previous`` in the next entry or in a segment reference has it."""
    return hashlib.sha256(data).hexdigest()


def reason(error: Exception) -> str:
    """Describe why an object with intact bytes cannot be used, from the error of a fold or a decoder."""
    if isinstance(error, KeyError):
        # A key that is a tuple becomes the arguments of the exception.
        name = error.args[0] if len(error.args) == 1 else error.args
        return f"there is no {name!r}" if isinstance(name, str) else f"there is no {name}"
    text = " ".join(str(error).split())
    return text or type(error).__name__


def is_intact(line: bytes) -> bool:
    """Whether the checksum of a JSON object matches, of any kind and version."""
    return line == _with_checksum(line[:-_SUFFIX] + b"}")


def _with_checksum(body: bytes) -> bytes:
    """Append the checksum to a JSON object as its last member."""
    return b"".join((memoryview(body)[:-1], _MARK, hashlib.sha256(body).hexdigest().encode(), b'"}'))
