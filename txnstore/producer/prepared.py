"""The id of a prepared transaction, which an external coordinator stores (KIP-939)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from txnstore.errors import InvalidConfigError

_TEXT = re.compile(r"(\d+):(\d+)")


@dataclass(frozen=True, slots=True)
class PreparedTxn:
    """The name of a prepared transaction. ``str()`` returns it as text, :meth:`parse` reads that text.

    Attributes:
        producer_id: The producer id.
        epoch: The epoch of the transaction.
    """

    producer_id: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.epoch}"

    @classmethod
    def parse(cls, text: str | PreparedTxn) -> PreparedTxn:
        """The transaction with this text.

        Args:
            text: ``"<producer id>:<epoch>"``; a :class:`PreparedTxn` is returned as it is.

        Raises:
            InvalidConfigError: The text has another form.
        """
        if isinstance(text, PreparedTxn):
            return text
        match = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            msg = f"a prepared transaction is named '<producer id>:<epoch>', such as '7:3', not {text!r}"
            raise InvalidConfigError(msg)
        return cls(int(match[1]), int(match[2]))
