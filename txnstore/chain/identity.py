"""Whether the store that a process has open still exists: a store can be deleted, and created again at its URL.

The chains of the new store have other keys, so nothing of one store gets into the other. But the process that has the
old store open finds the next names of its chains free, as at a head without new entries. So it reads ``store.json``
again every few seconds, before it commits or looks at a head. See docs/guarantees.md.
"""

from __future__ import annotations

from collections.abc import Callable

from txnstore.chain import keys
from txnstore.chain.codec import StoreDocument, decode
from txnstore.chain.context import ChainContext
from txnstore.errors import ObjectNotFoundError, StoreNotFoundError

#: After this many milliseconds, the next commit or look at a head reads ``store.json`` again.
CONFIRM_MS = 5_000


#: The first bytes of every ``store.json`` of a store, in any version of the format.
_DOCUMENT_PREFIX = b'{"version":'


def _no_wait() -> None:
    """Stand for the wait of a request that was not begun: return immediately."""


def document_of(data: bytes | None, url: str) -> StoreDocument:
    """Decode the document in ``store.json``; ``data`` is None if it does not exist.

    Raises:
        StoreNotFoundError: There is no ``store.json``, or it is not a store's.
        CorruptionError: It is damaged.
        UnsupportedFormatError: A newer txnstore wrote it.
    """
    if data is None:
        msg = f"there is no txnstore at {url}: it has no {keys.STORE}"
        raise StoreNotFoundError(msg)
    # A truncated document of a store, even an empty one, is damage that `recover` repairs, not an object of others.
    if not data.startswith(_DOCUMENT_PREFIX[: len(data)]):
        problem = f"its {keys.STORE} belongs to something else; a store needs a URL of its own"
        msg = f"there is no txnstore at {url}: {problem}"
        raise StoreNotFoundError(msg)
    return decode(StoreDocument, keys.STORE, data)


class Identity:
    """The identity of an open store. Thread-safe."""

    def __init__(self, context: ChainContext) -> None:
        self._objects, self._keys = context.objects, context.keys
        self._runtime, self._pool = context.runtime, context.pool
        #: The monotonic time in ms before the last request that has shown that the store exists. Assigned in one step,
        #: without a lock: a lost update costs one request more.
        self._confirmed_at = self._runtime.monotonic()

    def was_read(self, at: int) -> None:
        """Record that ``store.json`` was read for this store after ``at`` (monotonic ms), for :meth:`begin`."""
        self._confirmed_at = at

    def is_due(self) -> bool:
        """Whether ``store.json`` was last read longer ago than :data:`CONFIRM_MS`."""
        return abs(self._runtime.monotonic() - self._confirmed_at) > CONFIRM_MS

    def begin(self) -> Callable[[], object]:
        """Begin :meth:`confirm` beside other requests if it is due; return a function that waits for it, and raises."""
        return self._pool.submit(self.confirm).result if self.is_due() else _no_wait

    def confirm(self) -> None:
        """Read ``store.json`` and compare the id in it.

        Raises:
            StoreNotFoundError: The store was deleted; another one may be in its place.
            CorruptionError: ``store.json`` is damaged.
        """
        now = self._runtime.monotonic()
        try:
            document = decode(StoreDocument, keys.STORE, self._objects.get(keys.STORE))
        except ObjectNotFoundError as error:
            msg = f"the store {self._keys.store_id} at {self._objects.url} was deleted while it was in use"
            if self._objects.list(self._keys.chains, limit=1):
                msg = (
                    f"the store {self._keys.store_id} at {self._objects.url} has lost its {keys.STORE} while it was in "
                    "use; its chains exist: `txnstore recover` writes it again"
                )
            raise StoreNotFoundError(msg) from error
        self.check(document.store_id)
        self._confirmed_at = max(now, self._confirmed_at)

    def check(self, store_id: str) -> None:
        """Check the id that ``store.json`` has now.

        Raises:
            StoreNotFoundError: It is another one: the store was deleted, and another one was created in its place.
        """
        if store_id != self._keys.store_id:
            msg = (
                f"the store {self._keys.store_id} at {self._objects.url} was deleted while it was in use, and the "
                f"store {store_id} was created in its place; close this one and open the URL again"
            )
            raise StoreNotFoundError(msg)
