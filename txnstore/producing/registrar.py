"""The way of batches into the chain: sealed, uploaded, registered; one command at a time, repeated until answered.

This is what a producer keeps between calls, and what an interrupt or an unknown outcome must not lose.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from txnstore.core.commands import Ended, ProducerIdentity
from txnstore.errors import StorageError, TxnStoreError, UnknownOutcomeError
from txnstore.producing.accumulator import Accumulator
from txnstore.producing.batching import fail_all, resolve_all
from txnstore.producing.session import Pending, Session, rounds
from txnstore.producing.states import Lifecycle, Phase
from txnstore.producing.uploads import Upload

if TYPE_CHECKING:
    from txnstore.connection import Connection


class Registrar:
    """Registers what an accumulator has uploaded.

    ``lock`` guards the buffers and the phase; ``sending`` is held by whoever submits, and taken before it.
    ``session`` is that of the current epoch, ``pending`` the command that nobody has answered yet.
    """

    def __init__(
        self, store: Connection, identity: ProducerIdentity, life: Lifecycle, accumulator: Accumulator
    ) -> None:
        self._store = store
        self._life = life
        self._accumulator = accumulator
        self.lock = threading.RLock()
        self.sending = threading.RLock()
        self.session = Session(identity)
        self.pending: Pending | None = None

    def flush(self, *, crowd_only: bool = False) -> None:
        """Register what is uploaded: everything sent so far, or only as much as makes room for more."""
        with self.sending:
            with self.lock:
                if self._life.phase not in (Phase.READY, Phase.IN_TRANSACTION):
                    return
                self.seal(crowd_only=crowd_only)
            self.announce()
            self.settle()
            self.register(self.uploaded(crowd_only=crowd_only))
            if not crowd_only:
                self._register_offsets()

    def seal(self, *, crowd_only: bool = False) -> None:
        try:
            if crowd_only:
                self._accumulator.make_room()
            else:
                self._accumulator.seal()
        except BaseException as error:
            self.check_interrupt(error)
            raise

    def announce(self) -> None:
        """What lies in other chains joins the transaction while its segments are on their way (ADD-01)."""
        session = self.session
        groups = [offsets.group for offsets in session.offsets]
        if self._life.transactional_id is not None and self._store.coordinator.announce(
            session.identity, self._accumulator.sealed, groups
        ):
            session.started = True

    def check_interrupt(self, error: BaseException) -> None:
        """An interrupt may have left the buffers half changed: what they hold is failed, so that nothing gets lost.

        A command without an answer stays, because its sequences may be taken.
        """
        if isinstance(error, Exception):
            return
        self.fail(error)
        if self._life.phase is Phase.READY:
            self._accumulator.drop(error, self.pending.uploads if self.pending is not None else ())

    def uploaded(self, *, crowd_only: bool = False) -> list[Upload]:
        """The batches that are uploaded and not registered, in the order of their sends; waits for the uploads.

        A failed upload ends its batch, and with it the transaction. Without one, the good batches go on alone.
        """
        good, errors = [], []
        for upload in self._accumulator.wait(crowd_only=crowd_only):
            error = upload.future.exception()
            if error is None:
                good.append(upload)
                continue
            errors.append(error)
            fail_all([upload.batch], error)
            self.forget([upload])
        if errors:
            self.fail(errors[0])
            if self._life.transactional_id is None:
                self.register(good)
            raise errors[0]
        return good

    def forget(self, uploads: list[Upload]) -> None:
        with self.lock:
            self._accumulator.forget(uploads)

    def register(self, uploads: list[Upload]) -> None:
        """Give batches their offsets, with one entry a round, inside the open transaction if there is one."""
        for part in rounds(uploads):
            # A done callback that waits for another record has flushed the later rounds already.
            waiting = [upload for upload in part if not upload.batch.settled]
            if waiting:
                self.submit(Pending(self.session.append(waiting), waiting))

    def _register_offsets(self) -> None:
        """Offsets that came without records: once flushed, no reader of the group may begin before them (OFF-10)."""
        if self._life.phase is Phase.IN_TRANSACTION and self.session.offsets:
            self.submit(Pending(self.session.append([]), []))

    def settle(self) -> None:
        """Repeat the command whose outcome is unknown; its sequences make that harmless (SEQ-14)."""
        if self.pending is not None:
            self.submit(self.pending)

    def submit(self, pending: Pending) -> Ended | None:
        """Submit a command and settle its batches. An unknown outcome keeps the command for the next call.

        So does an interrupt, wherever it comes: as after a time-out, nobody knows (API-08).
        """
        repeated, self.pending = self.pending is pending, pending
        try:
            answer = self._store.submit(pending.command)
        except UnknownOutcomeError:
            self.session.started = True
            raise
        except StorageError:
            if not repeated:
                self.pending = None  # Nothing happened: the batches stay uploaded, the same call may be repeated.
            raise
        except Exception as error:
            self._refused(pending, error)
            raise
        except BaseException:
            self.session.started = True
            raise
        batches = [upload.batch for upload in pending.uploads]
        if isinstance(answer, Ended):
            pending.unknown = False
            self.forget(pending.uploads)
            resolve_all(batches, answer.appended)
            return answer
        self.session.advance(pending.command)
        for batch, landed in zip(batches, answer, strict=True):
            batch.resolve(landed)
        self.forget(pending.uploads)
        self.pending = None
        resolve_all(batches, answer)
        return None

    def _refused(self, pending: Pending, error: Exception) -> None:
        """A refused command ends its batches, and with them the transaction.

        Without one, each batch is tried alone: those of other partitions may be fine, and if an earlier attempt had an
        unknown outcome, they may even be in the log (SEQ-15, SEQ-18).
        """
        self.pending = None
        fatal = isinstance(error, TxnStoreError) and error.fatal
        if self._life.transactional_id is None and len(pending.uploads) > 1 and not fatal:
            for upload in pending.uploads:
                try:
                    self.submit(Pending(self.session.append([upload]), [upload]))
                except StorageError:
                    raise
                except Exception:  # noqa: BLE001, S112 - its future tells; the caller gets the first error
                    continue
            return
        # With several chains a part of it may be written, or its partitions added: there is something to abort.
        self.session.started = self.session.started or len(self._store.chains) > 1
        self.forget(pending.uploads)
        fail_all([upload.batch for upload in pending.uploads], error)
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """An error ends the producer if it is fatal, and the transaction otherwise (API-09, ERR-05)."""
        with self.lock:
            if self._life.fail(error):
                self._accumulator.drop(error)
