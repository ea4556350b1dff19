"""The storage contract: tests that every backend must pass. Inherit, define a fixture ``store``, run with pytest.

class TestMyStore(StorageContract):
    @pytest.fixture
    def store(self) -> ObjectStore: …      # an empty store, fresh for each test
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from txnstore.errors import ObjectNotFoundError, StorageError, StorageRefusedError
from txnstore.storage.base import ObjectInfo, ObjectStore
from txnstore.storage.probe import probe

ODD_KEYS = (
    "a b/c d",
    "ü/日本/💡",
    "a%20b/%2F",
    "a+b=c&d?e#f",
    "q'uote\"s/(x)[y]{z}",
    "~tilde/!bang/$dollar/@at/,comma;semi:colon",
    "trailing.dot./..three...dots",
    ".hidden/-dash/_under",
    "UPPER/lower/UPPER.lower",
    "x" * 200 + "/" + "y" * 200,
)

ILLEGAL_KEYS = (
    "", "/", "/absolute", "trailing/", "a//b", ".", "..", "../up", "a/../b", "a/./b", "a/..",
    "back\\slash", "nul\0", "line\nfeed", "\ud800", ".tmp-x", "a/.tmp-x", "a/.tmp-x/b", "é" * 600,
)  # fmt: skip


@contextmanager
def raises(kind: type[BaseException]) -> Iterator[None]:
    """Assert that the block raises this class or a subclass."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def keys_of(infos: Sequence[ObjectInfo]) -> list[str]:
    """The keys of a listing, in order."""
    return [info.key for info in infos]


class StorageContract:
    """Tests that every backend must pass.

    Attributes:
        racers: The number of concurrent callers.
        races: The number of names that they race for.
        large_bytes: The size of a large object in bytes; set it above a backend's multipart threshold to test that.
    """

    racers = 8
    races = 10
    large_bytes = 5 * (1 << 20) + 1

    # --- creating -----------------------------------------------------------------------------------------------------

    def test_a_name_is_created_once(self, store: ObjectStore) -> None:
        """OBJ-01, OBJ-07: a second create returns False and changes nothing."""
        assert store.put_if_absent("a/b", b"first") is True
        assert store.put_if_absent("a/b", b"second") is False
        assert store.put_if_absent("a/b", b"first") is False
        assert store.get("a/b") == b"first"

    def test_a_name_that_was_put_is_taken(self, store: ObjectStore) -> None:
        store.put("a", b"put")
        assert store.put_if_absent("a", b"created") is False
        assert store.get("a") == b"put"

    def test_a_deleted_name_can_be_created_again(self, store: ObjectStore) -> None:
        assert store.put_if_absent("a", b"1")
        store.delete(["a"])
        assert store.put_if_absent("a", b"2") is True
        assert store.get("a") == b"2"

    def test_of_concurrent_creates_exactly_one_wins(self, store: ObjectStore) -> None:
        """OBJ-01: each name has exactly one winner, whose bytes are the object's."""
        for race in range(self.races):
            key = f"race/{race}"
            bodies = [f"{race}/{racer}/".encode() * 100 for racer in range(self.racers)]
            outcomes = self._together([partial(store.put_if_absent, key, body) for body in bodies])
            winners = [body for body, created in zip(bodies, outcomes, strict=True) if created]
            assert len(winners) == 1, f"{len(winners)} winners of {key}"
            assert store.get(key) == winners[0]

    def test_an_object_is_complete_when_it_is_seen(self, store: ObjectStore) -> None:
        """No reader sees partial content of an object."""
        body = b"0123456789abcdef" * 65_536
        contents: list[bytes] = []
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                try:
                    contents.append(store.get("torn"))
                except ObjectNotFoundError:
                    continue

        def write() -> None:
            try:
                assert store.put_if_absent("torn", body)
                store.put("torn", body)
            finally:
                done.set()

        self._together([read, write])
        contents.append(store.get("torn"))
        assert {len(data) for data in contents} == {len(body)}

    def test_the_probe_accepts_it_and_leaves_nothing(self, store: ObjectStore) -> None:
        """OBJ-01."""
        probe(store, lambda: "contract")
        assert keys_of(store.list("")) == []

    # --- putting and getting ------------------------------------------------------------------------------------------

    def test_put_overwrites(self, store: ObjectStore) -> None:
        store.put("a", b"1")
        store.put("a", b"22")
        assert store.get("a") == b"22"
        assert store.stat("a").size == 2

    def test_get_of_ranges(self, store: ObjectStore) -> None:
        store.put("a", b"0123456789")
        assert store.get("a", 2, 5) == b"234"
        assert store.get("a", None, 3) == b"012"
        assert store.get("a", 0, 1) == b"0"
        assert store.get("a", 7) == b"789"
        assert store.get("a", 7, 99) == b"789"
        assert store.get("a", 9, 10) == b"9"

    def test_get_of_empty_ranges(self, store: ObjectStore) -> None:
        store.put("a", b"0123456789")
        for start, end in ((0, 0), (3, 3), (5, 2), (10, 12), (10, None), (99, None), (99, 100), (10, 10)):
            assert store.get("a", start, end) == b"", (start, end)

    def test_negative_ranges_are_refused(self, store: ObjectStore) -> None:
        store.put("a", b"0123456789")
        for start, end in ((-1, None), (0, -1), (-5, -1)):
            with raises(StorageRefusedError):
                store.get("a", start, end)

    def test_an_empty_object(self, store: ObjectStore) -> None:
        assert store.put_if_absent("created", b"") is True
        assert store.put_if_absent("created", b"x") is False
        store.put("put", b"")
        for key in ("created", "put"):
            assert store.get(key) == b""
            assert store.get(key, 0, 5) == b""
            assert store.stat(key).size == 0
        assert [info.size for info in store.list("")] == [0, 0]

    def test_a_large_object(self, store: ObjectStore) -> None:
        unit = bytes(range(256))
        body = (unit * (self.large_bytes // 256 + 1))[: self.large_bytes]
        store.put("large", body)
        assert store.stat("large").size == len(body)
        assert store.get("large") == body
        assert store.get("large", len(body) - 3) == body[-3:]
        assert store.get("large", 1_000_000, 1_000_500) == body[1_000_000:1_000_500]

    def test_all_bytes_survive(self, store: ObjectStore) -> None:
        body = bytes(range(256)) + b"\r\n\r\n" + bytes(1000)
        assert store.put_if_absent("bytes", body)
        assert store.get("bytes") == body

    def test_a_missing_object(self, store: ObjectStore) -> None:
        store.put("folder/a", b"1")
        for key in ("b", "folder", "folder/b", "nowhere/b", "folder/a/b"):
            with raises(ObjectNotFoundError):
                store.get(key)
            with raises(ObjectNotFoundError):
                store.get(key, 0, 0)
            with raises(ObjectNotFoundError):
                store.stat(key)

    def test_odd_keys(self, store: ObjectStore) -> None:
        for number, key in enumerate(ODD_KEYS):
            assert store.put_if_absent(key, str(number).encode()) is True, key
            assert store.put_if_absent(key, b"again") is False, key
        for number, key in enumerate(ODD_KEYS):
            assert store.get(key) == str(number).encode(), key
            assert store.stat(key).key == key
            assert keys_of(store.list(key)) == [key]
        assert keys_of(store.list("")) == sorted(ODD_KEYS)
        store.delete(ODD_KEYS)
        assert keys_of(store.list("")) == []

    def test_illegal_keys_are_refused(self, store: ObjectStore) -> None:
        for key in ILLEGAL_KEYS:
            calls: list[Callable[[], object]] = [
                partial(store.put, key, b"1"),
                partial(store.put_if_absent, key, b"1"),
                partial(store.get, key),
                partial(store.stat, key),
                partial(store.delete, [key]),
            ]
            for call in calls:
                with raises(StorageRefusedError):
                    call()
        assert keys_of(store.list("")) == []

    # --- listing ------------------------------------------------------------------------------------------------------

    def test_a_list_is_in_the_order_of_whole_keys(self, store: ObjectStore) -> None:
        """``-`` and ``.`` sort before ``/``: keys are compared as a whole, not folder by folder."""
        keys = ["a-b", "a.b", "a/b/c", "a/b-c", "a/b.c", "a0", "b", "B", "a/10", "a/9", "é", "z/\U0001f4a1", "z/\uffee"]
        for key in keys:
            store.put(key, b"")
        assert keys_of(store.list("")) == sorted(keys)

    def test_a_list_by_prefix(self, store: ObjectStore) -> None:
        for key in ("a/1", "a/2", "ab/1", "b/1", "a-1"):
            store.put(key, b"12")
        assert keys_of(store.list("a/")) == ["a/1", "a/2"]
        assert keys_of(store.list("a")) == ["a-1", "a/1", "a/2", "ab/1"]
        assert keys_of(store.list("a/1")) == ["a/1"]
        assert keys_of(store.list("c")) == []
        assert keys_of(store.list("c/d/")) == []
        assert keys_of(store.list("a/1/")) == []
        assert {info.size for info in store.list("")} == {2}

    def test_a_list_from_a_name(self, store: ObjectStore) -> None:
        for key in ("a/1", "a/2", "a/3/x", "a/4", "b/1"):
            store.put(key, b"")
        assert keys_of(store.list("a/", "a/1")) == ["a/2", "a/3/x", "a/4"]
        assert keys_of(store.list("a/", "a/2zzz")) == ["a/3/x", "a/4"]
        assert keys_of(store.list("a/", "a/3")) == ["a/3/x", "a/4"]
        assert keys_of(store.list("a/", "a/3/x")) == ["a/4"]
        assert keys_of(store.list("a/", "a/4")) == []
        assert keys_of(store.list("a/", "b")) == []
        assert keys_of(store.list("b/", "a/9")) == ["b/1"]

    def test_a_list_with_a_limit(self, store: ObjectStore) -> None:
        for number in range(5):
            store.put(f"a/{number}", b"")
        assert keys_of(store.list("a/", limit=2)) == ["a/0", "a/1"]
        assert keys_of(store.list("a/", "a/1", 2)) == ["a/2", "a/3"]
        assert keys_of(store.list("a/", "a/1", 99)) == ["a/2", "a/3", "a/4"]
        assert keys_of(store.list("a/", limit=0)) == []

    def test_a_list_of_an_empty_store(self, store: ObjectStore) -> None:
        assert keys_of(store.list("")) == []
        assert keys_of(store.list("a/b/")) == []

    def test_a_list_shows_a_write_at_once(self, store: ObjectStore) -> None:
        """Listings are not cached."""
        for number in range(3):
            assert keys_of(store.list("a/")) == [f"a/{n}" for n in range(number)]
            store.put(f"a/{number}", b"")
        store.delete(["a/1"])
        assert keys_of(store.list("a/")) == ["a/0", "a/2"]

    def test_illegal_prefixes_are_refused(self, store: ObjectStore) -> None:
        for prefix in ("/", "../", "a/../", "a//", "\0", "a\\"):
            with raises(StorageRefusedError):
                store.list(prefix)

    # --- deleting -----------------------------------------------------------------------------------------------------

    def test_delete_is_idempotent(self, store: ObjectStore) -> None:
        for key in ("a/1", "a/2", "b"):
            store.put(key, b"")
        store.delete(["a/1", "missing", "nowhere/x", "b/below-an-object"])
        store.delete(["a/1"])
        store.delete([])
        assert keys_of(store.list("")) == ["a/2", "b"]
        with raises(ObjectNotFoundError):
            store.get("a/1")

    # --- times --------------------------------------------------------------------------------------------------------

    def test_times_are_the_stores(self, store: ObjectStore) -> None:
        """OBJ-16: ``now_ms`` and ``modified_ms`` are of the same clock, with a resolution of at most one second."""
        store.put("b", b"1")  # A local store has no clock before its folder exists.
        before = store.now_ms()
        assert store.put_if_absent("a", b"1")
        after = store.now_ms()
        modified = store.stat("a").modified_ms
        assert before - 1000 <= modified <= after + 1000
        assert abs(store.list("a")[0].modified_ms - modified) < 1000
        assert keys_of(store.list("")) == ["a", "b"], "reading the clock must not leave objects"

    # --- the rest -----------------------------------------------------------------------------------------------------

    def test_it_works_after_close(self, store: ObjectStore) -> None:
        store.put("a", b"1")
        store.close()
        store.close()
        assert store.get("a") == b"1"

    def test_many_threads(self, store: ObjectStore) -> None:
        def work(worker: int) -> list[bytes]:
            for number in range(5):
                store.put(f"{worker}/{number}", f"{worker}.{number}".encode())
            return [store.get(info.key) for info in store.list(f"{worker}/")]

        results = self._together([partial(work, worker) for worker in range(self.racers)])
        assert results == [[f"{worker}.{n}".encode() for n in range(5)] for worker in range(self.racers)]

    def test_only_our_errors_leave(self, store: ObjectStore) -> None:
        assert isinstance(store, ObjectStore)
        with raises(StorageError):
            store.get("missing")

    def test_url_and_repr_are_plain(self, store: ObjectStore) -> None:
        assert "://" in store.url
        assert "@" not in store.url
        assert store.url in repr(store) or store.url.split("://", 1)[1] in repr(store)

    @staticmethod
    def _together(calls: Sequence[Callable[[], object]]) -> list[object]:
        """Run the calls concurrently, each in its own thread; returns their results."""
        start = threading.Barrier(len(calls))

        def run(call: Callable[[], object]) -> object:
            start.wait()
            return call()

        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(run, calls))
