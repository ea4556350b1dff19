"""SQL over a topic that this user may not read: the storage's refusal, without DuckDB's traceback around it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator

import duckdb
import pytest

from tests.helpers.connections import connection_of
from tests.helpers.sqlstore import fill
from txnstore.errors import StorageRefusedError
from txnstore.sql import read_table
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on

QUERY = "SELECT max(value) FROM private"


class _Denies(MemoryStore):
    """As a policy that grants all but one topic."""

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        if key.startswith("topics/private/"):
            try:
                raise PermissionError("403")
            except PermissionError as error:
                raise StorageRefusedError(f"Cannot read {key}: access denied") from error
        return super().get(key, start, end)


@pytest.fixture
def store() -> Iterator[Store]:
    with create_on(_Denies()) as made:
        for name in ("orders", "private"):
            made.create_topic(name)
            fill(made, name, transactions=1)
        yield made


@pytest.mark.usefixtures("own_objects")
def test_refusal_is_raised_as_the_error_of_the_storage(store: Store) -> None:
    with pytest.raises(StorageRefusedError, match=r"topics/private/.*: access denied") as caught:
        read_table(connection_of(store), QUERY)
    assert isinstance(caught.value.__cause__, PermissionError)
    assert "duckdb" not in "".join(traceback.format_exception_only(caught.value)).lower()
    assert caught.value.__suppress_context__
    assert read_table(connection_of(store), "SELECT count(*) FROM orders").num_rows == 1


@pytest.mark.usefixtures("own_objects")
@pytest.mark.parametrize(
    "run",
    [lambda store: store.sql(QUERY).fetchall(), lambda store: store.duckdb().sql(QUERY).fetchall()],
    ids=["sql", "duckdb"],
)
def test_error_of_a_lazy_relation_ends_with_the_refusal(store: Store, run: Callable[[Store], object]) -> None:
    """DuckDB raises it when it evaluates the relation, and writes a traceback before it."""
    with pytest.raises(duckdb.Error, match="StorageRefusedError: Cannot read topics/private/") as caught:
        run(store)
    assert str(caught.value).splitlines()[-1].endswith("access denied")
