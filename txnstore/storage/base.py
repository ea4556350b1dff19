"""The storage protocol: the operations that txnstore requires of an object store, and the claim of a name.

Keys are relative to the store's root, ``/``-separated, without a leading slash. Every backend passes the
contract suite in :mod:`txnstore.testing.contract`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, runtime_checkable

from txnstore.errors import ObjectNotFoundError, StorageError, StorageRefusedError, UnknownOutcomeError

TEMPORARY = ".tmp-"
"""The prefix of the names of the local backend's temporary files: see :func:`is_temporary`."""

PAGE = 10_000
"""The objects that :func:`iterate_pages` lists at a time."""

MAX_KEY_BYTES = 1024
"""S3's limit for a key in UTF-8 bytes. S3 counts the store's prefix, too; :func:`check_key` does not."""

_ILLEGAL = re.compile("[\x00-\x1f\x7f\\\\\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Metadata of an object, from a listing or a stat.

    Attributes:
        key: The key, relative to the store's root.
        size: The size in bytes.
        modified_ms: The modification time by the *store's* clock, in milliseconds since the epoch.
    """

    key: str
    size: int
    modified_ms: int


@runtime_checkable
class ObjectStore(Protocol):
    """An object store with an atomic create. All methods are thread-safe.

    Backends raise these errors only:

    - :class:`~txnstore.errors.ObjectNotFoundError`: the key does not exist.
    - :class:`~txnstore.errors.UnknownOutcomeError`: a write may or may not have happened.
    - :class:`~txnstore.errors.StorageError`: the request certainly had no effect.
    - :class:`~txnstore.errors.UnsafeStorageError`: the storage cannot create a name atomically.
    """

    @property
    def url(self) -> str:
        """The root URL without credentials, for use in messages."""
        ...

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Read the bytes ``[start, end)`` of an object; by default the whole object. One request.

        Args:
            key: The key of the object.
            start: The first byte; None means 0. A start at or beyond the end of the object gives no bytes.
            end: The byte after the last one; None, or a value beyond the object, means the end of the object.

        Raises:
            ObjectNotFoundError: The object does not exist, even if the range is empty.
            StorageError: The read failed; it is safe to repeat.
        """
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write an object, replacing an existing one.

        Callers use keys that no other writer uses, so repeating the call is safe.

        Args:
            key: The key of the object.
            data: Its bytes. Those of a segment may be a ``memoryview``; those of a large one are an ``mmap`` of a file,
                which is not to be copied whole.
        """
        ...

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object if the key does not exist (``If-None-Match: *``). One attempt, one request.

        Returns:
            True if this call created the object; False if the key exists, possibly from an earlier attempt of the
            same caller. In both cases the object is durable: it survives a power cut.

        Raises:
            UnknownOutcomeError: The object may have been created, or the request may *still* take effect later.
            StorageError: The object was not created by this call and will not be.
        """
        ...

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        """List the objects whose key starts with ``prefix``, in lexicographic order of their keys.

        Args:
            prefix: The start of the keys; empty for all objects.
            start_after: Return only keys greater than this one.
            limit: The maximum number of objects; None for all.
        """
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete the objects; a key that does not exist is ignored."""
        ...

    def stat(self, key: str) -> ObjectInfo:
        """Return the size and modification time of an object."""
        ...

    def now_ms(self) -> int:
        """Return the time of the store's clock in milliseconds since the epoch.

        It is comparable with ``modified_ms``; the local clock is not.
        """
        ...

    def close(self) -> None:
        """Release connections. A later call reconnects."""
        ...


class ForwardingStore:
    """An :class:`ObjectStore` that passes each call on to another one; a subclass changes some of them.

    Args:
        inner: The store that the calls are forwarded to.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    @property
    def url(self) -> str:
        """The root URL of the wrapped store, without credentials."""
        return self.inner.url

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        return self.inner.get(key, start, end)

    def put(self, key: str, data: bytes) -> None:
        self.inner.put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self.inner.put_if_absent(key, data)

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        return self.inner.list(prefix, start_after, limit)

    def delete(self, keys: Sequence[str]) -> None:
        self.inner.delete(keys)

    def stat(self, key: str) -> ObjectInfo:
        return self.inner.stat(key)

    def now_ms(self) -> int:
        return self.inner.now_ms()

    def close(self) -> None:
        self.inner.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"


# What callers share ---------------------------------------------------------------------------------------------------


def iterate_layers(objects: object) -> Iterator[Any]:
    """Yield a store and the stores that it wraps, outermost first: a wrapper has its store as ``inner``."""
    layer = objects
    while layer is not None:
        yield layer
        layer = getattr(layer, "inner", None)


def method_of(objects: ObjectStore, name: str) -> Callable[..., Any] | None:
    """Return the method of the outermost layer that has one of this name; None if the storage lacks it."""
    methods = (getattr(layer, name, None) for layer in iterate_layers(objects))
    return next((method for method in methods if method is not None), None)


def transport_of(objects: ObjectStore) -> str | None:
    """Return the library that sends the requests to S3; None before the first one, or on other storage."""
    return next((name for layer in iterate_layers(objects) if (name := getattr(layer, "transport", None))), None)


def place_of(objects: ObjectStore) -> str:
    """Return what tells a storage from all others that processes of this machine may use, also under the same URL."""
    backend = unwrapped(objects)
    place: str = getattr(backend, "place", None) or getattr(backend, "identity", None) or objects.url
    return place


def unwrapped(objects: ObjectStore) -> ObjectStore:
    """Return the store below wrappers that only count, repeat or remember requests.

    Their classes have an attribute ``transparent``. Any other wrapper, such as one that injects faults, is returned
    itself: it must see every request.
    """
    store: ObjectStore = next(
        layer for layer in iterate_layers(objects) if not getattr(type(layer), "transparent", False)
    )
    return store


def read_if_there(objects: ObjectStore, key: str) -> bytes | None:
    """Read an object; None if it does not exist."""
    try:
        return objects.get(key)
    except ObjectNotFoundError:
        return None


def iterate_pages(objects: ObjectStore, prefix: str, start_after: str = "") -> Iterator[Sequence[ObjectInfo]]:
    """Yield the objects with a prefix in the order of their keys, a page at a time; at least one page."""
    while True:
        page = objects.list(prefix, start_after, PAGE)
        yield page
        if len(page) < PAGE:
            return
        start_after = page[-1].key


def iterate_objects(objects: ObjectStore, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
    """Yield the objects with a prefix in the order of their keys; memory holds a page of them."""
    return chain.from_iterable(iterate_pages(objects, prefix, start_after))


def make_durable(objects: ObjectStore, keys: Sequence[str]) -> None:
    """Flush existing objects, so that they survive a power cut, before objects that they replace are deleted.

    Another process may have written them, and may not have lived to flush them, or may have failed to. Only a store on
    a file system has a ``sync(keys)``, found through wrappers; on others what is visible is durable, and this makes no
    request. Objects that do not exist are ignored.

    Raises:
        StorageError: They could not be flushed.
    """
    sync = method_of(objects, "sync")
    if sync is not None:
        sync(keys)


#: How often a claim calls put_if_absent before it raises UnknownOutcomeError.
_MAX_ATTEMPTS = 8


class Claim:
    """An attempt to create ``key`` with ``data``; :meth:`resolve` may be repeated after an unknown outcome.

    ::

        put_if_absent      read the object     next step
        created                                it holds our bytes
        exists             any bytes           they are those of the writer that won
        unknown, refused   of another writer   that writer won
        unknown, refused   our bytes           repeat put_if_absent: they are visible, but it is unknown if they stay
        any                not found           repeat put_if_absent with the same bytes

    Repeating with the same bytes is safe: an earlier create that still arrives can only write these bytes. An error
    alone never decides the outcome, and neither does the sight of our own bytes: on a file system they are visible
    before the folder is flushed, and if that failed, the name may be lost in a power cut. An answer of put_if_absent,
    also that the name exists, says that the object is durable. The bytes of each claim must be unique; entries contain
    a unique id for this purpose. See docs/internals/design/commit.md.
    """

    __slots__ = ("data", "doubtful", "key", "unknown_outcomes")

    def __init__(self, key: str, data: bytes) -> None:
        self.key = key
        self.data = data
        #: Whether a put_if_absent may have created the object, or may still create it: set before each attempt, so
        #: that an interrupt leaves it set, and unset only if the storage has refused every attempt.
        self.doubtful = False
        self.unknown_outcomes = 0

    def resolve(self, objects: ObjectStore, pause: Callable[[int], None]) -> bytes:
        """Create the object, or find out which writer created it.

        Args:
            objects: The object store.
            pause: Waits before the n-th repetition; called with n, from 1.

        Returns:
            The bytes of the object: ``self.data`` if this claim won, else those of the writer that won.

        Raises:
            UnknownOutcomeError: The outcome is still unknown after all attempts. Calling again is safe.
            StorageError: The storage refused every attempt, also in earlier calls; the object was not created.
        """
        cause: StorageError | None = None
        own_bytes_seen = False
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            refused_so_far = not self.doubtful
            self.doubtful = True
            name_exists = False
            try:
                # Either answer says that the object is durable: as created now, or as it was seen at the last read.
                if objects.put_if_absent(self.key, self.data) or own_bytes_seen:
                    return self.data
                name_exists = True
            except UnknownOutcomeError as error:
                self.unknown_outcomes += 1
                cause = error
            except StorageError as error:
                if refused_so_far:  # Otherwise an earlier attempt may still create the object.
                    self.doubtful = False
                    raise
                cause = error
            stored_data = self._read_object(objects)
            own_bytes_seen = stored_data == self.data
            if stored_data is not None and (name_exists or not own_bytes_seen):
                return stored_data
            pause(attempt)
        msg = f"{self.key} on {objects.url}: the storage did not confirm whether the object was created"
        raise UnknownOutcomeError(msg) from cause

    def _read_object(self, objects: ObjectStore) -> bytes | None:
        """Read what is stored under the name; None if there is nothing, or the storage does not answer."""
        try:
            return objects.get(self.key)
        except ObjectNotFoundError:
            return None
        except StorageError:
            return None  # The next attempt resolves it.


# What backends share --------------------------------------------------------------------------------------------------


def is_temporary(name: str) -> bool:
    """Whether a part of a key, or the name of a file, is that of a temporary file, of a live or a killed writer.

    The one rule for them: no key has such a part, so neither a list nor a copy of a store has them, and a vacuum sweeps
    them.
    """
    return name.startswith(TEMPORARY)


def check_key(key: str) -> str:
    """Return the key if it is legal in every backend.

    A legal key consists of ``/``-separated parts of UTF-8 text without control characters and backslashes; no part is
    empty, ``.`` or ``..``, or starts with ``.tmp-``.

    Raises:
        StorageRefusedError: The key is illegal; for example, ``..`` would escape from the root of a local store.
    """
    _check_text(key)
    for part in key.split("/"):
        if part in ("", ".", "..") or is_temporary(part):
            raise StorageRefusedError(f"The object key {key!r} is not legal: a part of it is {part!r}.")
    return key


def check_prefix(prefix: str) -> str:
    """Return the prefix if a legal key could start with it. Its last part may be incomplete or empty."""
    _check_text(prefix)
    if any(part in ("", ".", "..") for part in prefix.split("/")[:-1]):
        raise StorageRefusedError(f"The key prefix {prefix!r} is not legal: no object can start with it.")
    return prefix


def check_range(key: str, start: int | None, end: int | None) -> tuple[int, int | None]:
    """Check the byte range ``[start, end)``, and return it with 0 for a missing start."""
    first_byte = 0 if start is None else start
    if first_byte < 0 or (end is not None and end < 0):
        raise StorageRefusedError(f"The byte range [{start}, {end}) of {key!r} is not legal: it must not be negative.")
    return first_byte, end


def is_legal_text(name: str) -> bool:
    """Whether the text contains no control characters, backslashes or bytes outside UTF-8."""
    return _ILLEGAL.search(name) is None


def _check_text(key: str) -> None:
    """Refuse a key with illegal characters, or one that is too long for S3."""
    if not is_legal_text(key):
        raise StorageRefusedError(
            f"The object key {key!r} is not legal: it contains control characters, backslashes or invalid UTF-8."
        )
    size = len(key.encode("utf-8"))
    if size > MAX_KEY_BYTES:
        raise StorageRefusedError(f"The object key {key[:60]!r}… is not legal: {size} bytes, at most {MAX_KEY_BYTES}.")
