"""The ``with`` block around a transaction."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from txnstore.errors import TxnStoreError, UnknownOutcomeError


class Transactional(Protocol):
    """An object with transactions: a producer, or a job that wraps one."""

    def begin_transaction(self) -> None: ...

    def commit_transaction(self) -> None: ...

    def abort_transaction(self) -> None: ...


P = TypeVar("P", bound=Transactional)


class TransactionScope(Generic[P]):
    """The ``with`` block of :meth:`Producer.transaction`: begins a transaction, and ends it when the block ends.

    The end of the block commits; an exception in it aborts and is raised again. A transaction that the block itself has
    committed or aborted is left as it is. After an interrupt, such as ``KeyboardInterrupt``, the transaction is left
    open. If the commit fails, the transaction is aborted, unless the error is fatal, or the outcome is unknown and only
    the same commit may be repeated (API-08).

    Args:
        producer: The object with transactions.
        is_open: Whether it has a transaction that was not ended by a successful call.
    """

    __slots__ = ("_is_open", "_producer")

    def __init__(self, producer: P, is_open: Callable[[], bool]) -> None:
        self._producer = producer
        self._is_open = is_open

    def __repr__(self) -> str:
        return f"<transaction of {self._producer!r}: use it as `with producer.transaction() as txn: …`>"

    def __enter__(self) -> P:
        self._producer.begin_transaction()
        return self._producer

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._is_open():
            return
        if error is None:
            self._commit()
        elif isinstance(error, Exception):
            self._abort_quietly(error)

    def _commit(self) -> None:
        """Commit; after an error that is not fatal, abort, unless the outcome is unknown."""
        try:
            self._producer.commit_transaction()
        except UnknownOutcomeError:
            raise  # Only the same call may be repeated (API-08).
        except TxnStoreError as error:
            if not error.fatal:
                self._abort_quietly(error)
            raise

    def _abort_quietly(self, error: Exception) -> None:
        """Abort after an error, which the caller gets; a failure of the abort is added to it as a note."""
        try:
            self._producer.abort_transaction()
        except TxnStoreError as second:
            error.add_note(f"the transaction could not be aborted either: {second}")
