"""The ``with`` block around a transaction."""

from __future__ import annotations

from types import TracebackType
from typing import Generic, Protocol, TypeVar

from txnstore.errors import TxnStoreError, UnknownOutcomeError


class Transactional(Protocol):
    """What a transaction is begun and ended on."""

    def begin_transaction(self) -> None: ...

    def commit_transaction(self) -> None: ...

    def abort_transaction(self) -> None: ...


P = TypeVar("P", bound=Transactional)


class TransactionScope(Generic[P]):
    """The ``with`` block of :meth:`Producer.transaction`."""

    __slots__ = ("_producer",)

    def __init__(self, producer: P) -> None:
        self._producer = producer

    def __enter__(self) -> P:
        self._producer.begin_transaction()
        return self._producer

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._commit()
        elif isinstance(error, Exception):
            self._abort_quietly(error)

    def _commit(self) -> None:
        try:
            self._producer.commit_transaction()
        except UnknownOutcomeError:
            raise  # Only the same call may follow (API-08).
        except TxnStoreError as error:
            if not error.fatal:
                self._abort_quietly(error)
            raise

    def _abort_quietly(self, error: Exception) -> None:
        """Abort after the block's own error, which stays the one that the caller sees."""
        try:
            self._producer.abort_transaction()
        except TxnStoreError as second:
            error.add_note(f"the transaction could not be aborted either: {second}")
