"""What an outside coordinator keeps of a transaction that it decides (KIP-939)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from txnstore.errors import InvalidConfigError

_TEXT = re.compile(r"(\d+):(\d+)")


@dataclass(frozen=True, slots=True)
class PreparedTxn:
    """The name of a prepared transaction: producer id and epoch. ``str`` gives it as text, :meth:`parse` takes that."""

    producer_id: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.epoch}"

    @classmethod
    def parse(cls, text: str | PreparedTxn) -> PreparedTxn:
        """The transaction of this text. :class:`InvalidConfigError` if it is none."""
        if isinstance(text, PreparedTxn):
            return text
        found = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            msg = f"a prepared transaction is named by 'producer id:epoch', not by {text!r}"
            raise InvalidConfigError(msg)
        return cls(int(found[1]), int(found[2]))
