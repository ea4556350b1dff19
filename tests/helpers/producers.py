"""What tests see and change of a producer beyond its public methods: the one place that names its private parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, cast

from txnstore.core.log.commands import Append
from txnstore.core.log.model import NewBatch
from txnstore.producer import Producer
from txnstore.producer.batches import ProducerBatch
from txnstore.producer.sender import Sender
from txnstore.producer.transaction import ProducerState, Transaction
from txnstore.threads import ForkLock, Task


def state_name(producer: Producer) -> str:
    """The state, under Kafka's name."""
    return repr(producer).rpartition(" ")[2].removesuffix(">")


def sender_of(producer: Producer) -> Sender:
    """The sender."""
    return producer._sender


def has_prepared(producer: Producer) -> bool:
    """Whether it holds a prepared transaction."""
    return producer._sender.txn.prepared is not None


def buffered(producer: Producer) -> int:
    """The number of bytes by which a send decides whether the buffer is full."""
    return producer._sender.buffer.bytes


def held(producer: Producer) -> int:
    """The bytes in open batches and in uploads that had not ended at the last count, as :func:`buffered` says."""
    buffer = producer._sender.buffer
    with producer._sender._lock.own:
        expected = sum(batch.bytes for batch in (*buffer._open.values(), *buffer._uploading))
        assert expected == buffer.bytes
        return expected


def has_more(producer: Producer) -> bool:
    """Whether records wait for a flush."""
    return producer._sender.has_more


def upload_all(producer: Producer) -> list[NewBatch]:
    """Upload all batches, and register none."""
    return [batch.new_batch for batch in _uploaded(producer)]


def registration(producer: Producer) -> Append:
    """Upload all batches; the command that registers them and the offsets, whose partitions the caller adds itself."""
    command = producer._sender.txn.append(_uploaded(producer)).command
    producer._sender._change_txn(Transaction.with_started)
    return cast("Append", command)


def _uploaded(producer: Producer) -> list[ProducerBatch]:
    with producer._sender._lock.own:
        producer._sender.buffer.seal_all()
    producer._sender._upload_together(None)
    return producer._sender._collect_uploaded()


def running_uploads(producer: Producer) -> list[Task[Any]]:
    """The uploads of batches that are not registered."""
    return [batch.upload for batch in producer._sender.buffer.sealed if batch.upload is not None]


def watch_tables(producer: Producer, watch: Callable[[], None]) -> None:
    """Call ``watch`` after each piece of a sent table."""
    add = producer._sender.send_table

    def watched(*args: Any) -> Any:
        parts = add(*args)
        watch()
        return parts

    producer._sender.send_table = watched  # type: ignore[assignment,method-assign]


def forget_end(producer: Producer) -> None:
    """Continue with the open transaction, as if the producer did not know that it is prepared."""
    producer._sender._change_txn(lambda txn: replace(txn, state=ProducerState.IN_TRANSACTION))


def set_epoch(producer: Producer, epoch: int) -> None:
    """Let the producer have another epoch."""
    producer._sender._change_txn(lambda txn: replace(txn, identity=replace(txn.identity, epoch=epoch)))


def linger_loop(producer: Producer) -> Task[None]:
    """The call that its thread runs."""
    return producer._linger.loop


def set_retry_pause(producer: Producer, seconds: float) -> None:
    """The pause after a failed flush of the thread."""
    producer._linger._retry_seconds = seconds


@contextmanager
def locked(producer: Producer) -> Iterator[None]:
    """Both locks of the producer are held."""
    with ExitStack() as stack:
        stack.enter_context(producer._sender._turn.own)
        stack.enter_context(producer._sender._lock.own)
        yield


def after_next_turn(producer: Producer, call: Callable[[], None]) -> None:
    """Call once after the next call that submits commands has released its lock, before it returns."""
    turn = producer._sender._turn

    def once() -> None:
        producer._sender._turn = turn
        call()

    producer._sender._turn = _Turn(turn, once)  # type: ignore[assignment]


class _Turn:
    """A lock that says when it was released."""

    def __init__(self, inner: ForkLock, released: Callable[[], None]) -> None:
        self._inner, self._released = inner, released

    @property
    @contextmanager
    def own(self) -> Iterator[None]:
        with self._inner.own:
            yield
        self._released()
