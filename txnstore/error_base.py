"""The base class of all errors; :mod:`txnstore.errors` has the others, and names this one, too."""

from __future__ import annotations

from typing import ClassVar


class TxnStoreError(Exception):
    """The base class of all errors of txnstore.

    Attributes:
        retriable: Whether the same call may succeed later.
        abortable: Whether the transaction must be aborted; the producer can be used afterwards.
        fatal: Whether the object that raised the error cannot be used any more.
        advice: What to do, in a sentence or two; may be empty.
        kafka_code: The code of the corresponding error in Kafka's protocol (``Errors``), if there is one.
    """

    #: Users import it from there.
    __module__ = "txnstore.errors"

    retriable: ClassVar[bool] = False
    abortable: ClassVar[bool] = False
    fatal: ClassVar[bool] = False
    advice: ClassVar[str] = ""
    kafka_code: ClassVar[int | None] = None
