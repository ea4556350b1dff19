"""What an interrupted ``produce`` says about its transaction."""

from __future__ import annotations

import click
import pyarrow as pa
import pytest

from txnstore.cli.commands.produce import _abort_interrupted, _input_format, _SentRecords
from txnstore.errors import StorageError, StorageRefusedError
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on


class _Failing(MemoryStore):
    """Fails to write, and to read, with the errors that a test sets."""

    writing: StorageError | None = None
    reading: StorageError | None = None

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if self.writing is not None:
            raise self.writing
        return super().put_if_absent(key, data)

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        if self.reading is not None:
            raise self.reading
        return super().get(key, start, end)


@pytest.mark.parametrize(
    ("form", "key_field", "separator"), [("text", None, None), (None, "id", None), (None, None, ":")]
)
def test_options_for_keys_are_refused_where_a_schema_has_a_key(
    form: str | None, key_field: str | None, separator: str | None
) -> None:
    store = create_on(MemoryStore())
    topic = store.create_topic("t", schema=pa.schema([("id", pa.int64())]), key="id")
    assert _input_format(topic, "json", None, None).schema is not None
    with pytest.raises(click.UsageError, match="its key is a column"):
        _input_format(topic, form, key_field, separator)


_REFUSED = StorageRefusedError("it is away.")
_LATER = "it is aborted at its timeout, a minute after it began"


@pytest.mark.parametrize(
    ("flushed", "committed", "writing", "reading", "message"),
    [
        (False, False, None, None, "was aborted: none of its records is visible"),
        (True, False, None, None, "was aborted: none of its records is visible"),
        (True, True, None, None, "was committed before the interrupt: 2 records sent"),
        (True, False, _REFUSED, None, f"could not be aborted (it is away.); {_LATER}. None of its records is visible"),
        (True, False, _REFUSED, _REFUSED, f"may be open or committed: it is away. Unless it is committed, {_LATER}"),
    ],
)
def test_interrupted_transaction_is_reported_as_its_chain_has_it(
    flushed: bool, committed: bool, writing: StorageError | None, reading: StorageError | None, message: str
) -> None:
    objects = _Failing()
    store = create_on(objects)
    store.create_topic("t")
    producer = store.producer("job")
    producer.begin_transaction()
    producer.send("t", b"a")
    producer.send("t", b"b")
    if flushed:
        producer.flush()
    if committed:
        producer.commit_transaction()
    objects.writing, objects.reading = writing, reading
    assert _abort_interrupted(store, producer, "job", _SentRecords(2)) == f"the transaction of 'job' {message}"
