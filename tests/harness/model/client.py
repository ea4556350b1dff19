"""A producer of an application: its state, its buffer, its sequences (API-01).

Records wait in the buffer until a flush or a commit; then the records of a partition are one batch.
"""

from __future__ import annotations

from tests.harness.model.broker import Broker, Data, Identity, Offsets
from tests.harness.model.log import MAX_SEQUENCE, Record, RefusedError

#: Errors after which a producer can only be closed; after any other the transaction can only be aborted (ERR-02).
FATAL = {
    "INVALID_PRODUCER_EPOCH",
    "INVALID_PRODUCER_ID_MAPPING",
    "INVALID_TRANSACTION_TIMEOUT",
    "PRODUCER_FENCED",
}


class Producer:
    """An idempotent producer; a transactional one if it has a transactional id."""

    def __init__(self, broker: Broker, transactional_id: str | None, timeout_ms: int = 60_000) -> None:
        self.broker = broker
        self.timeout_ms = timeout_ms
        self.identity: Identity = broker.init(transactional_id, timeout_ms)
        self.state = "READY"
        self.error: str | None = None
        self._new_transaction()

    def _new_transaction(self) -> None:
        self.buffer: dict[str, list[Record]] = {}
        self.offsets: list[Offsets] = []
        self.started = False
        #: When the first record or offsets of the transaction were sent: its timeout runs from then (TMO-01).
        self.first_at: int | None = None
        if self.transactional:
            self.sequences: dict[str, int] = {}  # From 0 in each epoch, and an end bumps the epoch (TV2-01).
        elif not hasattr(self, "sequences"):
            self.sequences = {}

    @property
    def transactional(self) -> bool:
        """Whether it has a transactional id."""
        return self.identity.transactional_id is not None

    def begin(self) -> None:
        """Begin a transaction without a request (API-02)."""
        self._check(None)
        if not self.transactional or self.state != "READY":
            raise RefusedError("INVALID_TXN_STATE")
        self.state = "IN_TRANSACTION"

    def send(self, partition: str, record: Record) -> None:
        """Put a record into the buffer."""
        self._check("IN_TRANSACTION" if self.transactional else "READY")
        if partition not in self.broker.logs:
            raise RefusedError("UNKNOWN_TOPIC_OR_PARTITION")
        self._first()
        self.buffer.setdefault(partition, []).append(record)

    def send_offsets(self, offsets: Offsets) -> None:
        """Put consumed positions into the buffer; the transaction commits them."""
        self._check("IN_TRANSACTION")
        if offsets.offsets:
            self._first()
            self.offsets.append(offsets)

    def send_bad_offsets(self, error: str) -> None:
        """Positions that are refused: without them the transaction must not be committed (API-05)."""
        self._check("IN_TRANSACTION")
        self._abortable(error)

    def _first(self) -> None:
        self.first_at = self.broker.now if self.first_at is None else self.first_at

    def _abortable(self, error: str) -> None:
        self.state, self.error = "ABORTABLE_ERROR", error
        self.buffer, self.offsets = {}, []
        raise RefusedError(error)

    def flush(self) -> dict[str, list[int]]:
        """Write the buffered records; returns their offsets."""
        self._check(None)
        if self.state == "ABORTABLE_ERROR":
            raise RefusedError("INVALID_TXN_STATE")
        if self.state not in {"READY", "IN_TRANSACTION"}:
            return {}
        return self._write()

    def _write(self) -> dict[str, list[int]]:
        data = [Data(tp, self.sequences.get(tp, 0), records) for tp, records in self.buffer.items()]
        if not data and not self.offsets:
            return {}
        if self.transactional and not self.started and self.broker.now - (self.first_at or 0) > self.timeout_ms:
            self._abortable("INVALID_PRODUCER_EPOCH")
        try:
            answers = self.broker.produce(self.identity, data, self.offsets)
        except RefusedError as refused:
            self._fail(refused)
            raise
        self.started = True
        self.buffer, self.offsets = {}, []
        for batch in data:
            self.sequences[batch.partition] = (batch.sequence + len(batch.records)) % (MAX_SEQUENCE + 1)
        return {
            batch.partition: list(range(base, base + len(batch.records)))
            for batch, (base, _) in zip(data, answers, strict=True)
        }

    def commit(self) -> dict[str, list[int]]:
        """Write the buffered records, then commit; an empty transaction sends no request (API-07)."""
        self._check("IN_TRANSACTION")
        written = self._write()
        if self.started:
            self._end("COMMIT")
        self._ended()
        return written

    def abort(self) -> None:
        """Drop the buffered records, then abort (API-06)."""
        self._check(None)
        if self.state not in {"IN_TRANSACTION", "ABORTABLE_ERROR"}:
            raise RefusedError("INVALID_TXN_STATE")
        if self.started:
            self._end("ABORT")
        self._ended()

    def _end(self, outcome: str) -> None:
        try:
            self.identity = self.broker.end(self.identity, outcome)
        except RefusedError as refused:
            self._fail(refused)
            raise

    def _ended(self) -> None:
        self.state, self.error = "READY", None
        self._new_transaction()

    def close(self) -> None:
        """Flush the buffer or abort the open transaction, then refuse every call (API-11)."""
        try:
            if not self.transactional and self.state == "READY":
                self._write()
            elif self.state in {"IN_TRANSACTION", "ABORTABLE_ERROR"}:
                self.abort()
        except RefusedError as refused:
            if refused.error != "PRODUCER_FENCED":  # The newer instance has aborted the open transaction.
                raise
        finally:
            self.state = "CLOSED"

    def _check(self, state: str | None) -> None:
        """Raise for a closed or failed producer, and for a call in another wrong state (ERR-06)."""
        if self.state == "CLOSED":
            raise RefusedError("PRODUCER_CLOSED")
        if self.state == "FATAL_ERROR":
            raise RefusedError(self.error or "")
        if state is not None and self.state != state:
            raise RefusedError("INVALID_TXN_STATE")

    def _fail(self, refused: RefusedError) -> None:
        """An error ends the producer or its transaction (API-09)."""
        self.error = refused.error
        self.buffer, self.offsets = {}, []
        if refused.error in FATAL:
            self.state = "FATAL_ERROR"
        elif self.transactional:
            self.state = "ABORTABLE_ERROR"
