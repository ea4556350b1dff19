"""A cache of the contents of files that DuckDB reads through txnstore."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from weakref import WeakValueDictionary

from txnstore.threads import ForkLock, Task

#: The maximum size of unused files in a cache, in bytes.
CACHE_BYTES = 256 << 20


class Content:
    """The bytes of a file, in an object that supports weak references."""

    __slots__ = ("__weakref__", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data


class ContentCache:
    """A cache of file contents.

    Concurrent reads of a file load it once. Content in use is always kept; of unused content, the least recently used
    is evicted first. Thread-safe.

    Args:
        bound: The maximum size of unused content, in bytes.
    """

    def __init__(self, bound: int = CACHE_BYTES) -> None:
        self._bound = bound
        self._lock = ForkLock()
        self._recent: OrderedDict[str, Content] = OrderedDict()
        self._used: WeakValueDictionary[str, Content] = WeakValueDictionary()
        self._loading: dict[str, Task[Content]] = {}
        self._bytes = 0

    def get(self, path: str, load: Callable[[], bytes]) -> Content:
        """Return the content of a file, loaded with ``load`` if it is not cached.

        An exception of ``load`` is raised in all threads that wait for the file, and is not cached.
        """
        while True:
            with self._lock.own:
                content = self._used.get(path)
                if content is not None:
                    self._keep(path, content)
                    return content
                task = self._loading.get(path)
                if task is None or task.done():
                    task = self._loading[path] = Task(lambda: Content(load()))
            # The first caller runs it. If an interrupt ended the load of another thread, it is done again.
            runs_here = task.run()
            error = task.exception()
            if runs_here or error is None or isinstance(error, Exception):
                break
        with self._lock.own:
            if self._loading.get(path) is task:
                del self._loading[path]
            if error is None:
                content = self._used[path] = task.result()
                self._keep(path, content)
        return task.result()

    def _keep(self, path: str, content: Content) -> None:
        """Cache contents, and drop those used least recently beyond the bound."""
        if path not in self._recent:
            self._bytes += len(content.data)
        self._recent[path] = content
        self._recent.move_to_end(path)
        while self._bytes > self._bound and self._recent:
            _, dropped = self._recent.popitem(last=False)
            self._bytes -= len(dropped.data)
