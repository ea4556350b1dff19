"""The uploads of a producer: in threads of the pool, or in the thread that waits for them."""

from __future__ import annotations

from contextlib import suppress

from txnstore.connection import Connection
from txnstore.producer.accumulator import RecordAccumulator
from txnstore.producer.upload import Upload, deliver, encode_batch


class Uploader:
    """Uploads what the accumulator has sealed; a failing upload is tried again for ``delivery_timeout`` seconds."""

    def __init__(self, connection: Connection, accumulator: RecordAccumulator, delivery_timeout: float) -> None:
        self._connection = connection
        self._accumulator = accumulator
        self._delivery_timeout = delivery_timeout

    def start(self, *, keep_last: bool = False) -> None:
        """Begin the uploads of sealed batches; with ``keep_last`` all but one, which :meth:`wait_for` does itself."""
        unstarted, pool = self._accumulator.unstarted, None
        while len(unstarted) > keep_last:
            try:
                upload = unstarted.popleft()
            except IndexError:  # pragma: no cover - another thread took the last one
                return
            pool = pool or self._connection.pool
            upload.task = pool.submit(self._upload, upload)

    def upload_rest(self) -> None:
        """Do here what nobody has begun."""
        while True:
            try:
                upload = self._accumulator.unstarted[0]
            except IndexError:  # Perhaps another thread, in a send, has just begun the last one.
                return
            self.wait_for(upload)

    def _upload(self, upload: Upload) -> None:
        """Upload one batch, in whichever thread. An interrupt leaves it as it was, to be done again."""
        if upload.ended or upload.abandoned:
            return
        connection, batch = self._connection, upload.batch
        runtime, chain_time = connection.runtime, connection.view(refresh=False).timestamp
        try:
            table = batch.table(runtime.clock(), self._accumulator.row_format(batch))
            if table.num_rows != batch.rows:  # pragma: no cover - another thread has just uploaded it
                return
            encoded = encode_batch(runtime, batch.writer, batch.tp, table, chain_time)
            deliver(connection.objects, runtime, encoded, self._delivery_timeout, lambda: upload.abandoned)
            upload.new_batch = upload.new_batch or encoded.new_batch
        except Exception as error:  # noqa: BLE001 - whoever waits for the upload gets it
            upload.error = error
        self._accumulator.released(upload)

    def wait_for(self, upload: Upload) -> None:
        """Wait until an upload has ended; do it here if nobody has begun it."""
        if upload.task is None and not upload.ended:
            with suppress(ValueError):
                self._accumulator.unstarted.remove(upload)
            self._upload(upload)
        elif upload.task is not None:
            try:
                upload.task.result()
            finally:
                if upload.task.done() and not upload.ended:
                    upload.task = None  # An interrupt ended it: it is done again.
