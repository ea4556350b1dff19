"""When a store was last maintained: a small object, written by the processes that maintain it. It is advice.

Without it, or with a wrong one, a task is done once more, or a warning is needless.
See docs/internals/design/maintenance.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from txnstore.chain.codec import Int64, Stored, decode, encode
from txnstore.chain.keys import Keys
from txnstore.core.model import value_class
from txnstore.errors import CorruptionError, UnsupportedFormatError
from txnstore.storage.base import ObjectStore, read_if_there

_LOG = logging.getLogger(__name__)


@value_class(kw_only=True)
class MaintenanceDocument(Stored):
    """When each kind of maintenance was last done, or there was nothing to do: ms by the storage's clock."""

    done: dict[str, Int64]


def read_maintained(objects: ObjectStore, keys: Keys) -> dict[str, int]:
    """Return when each kind was last done, in ms by the storage's clock; kinds that never were are missing. One GET.

    Raises:
        StorageError: The storage failed.
    """
    data = read_if_there(objects, keys.maintenance)
    if data is None:
        return {}
    try:
        return dict(decode(MaintenanceDocument, keys.maintenance, data).done)
    except (CorruptionError, UnsupportedFormatError) as error:
        extra = {"key": keys.maintenance, "error": str(error)}
        _LOG.warning("what says when the store was maintained is not readable: %s", error, extra=extra)
        return {}


def write_maintained(objects: ObjectStore, keys: Keys, maintained_at: Mapping[str, int], now: int) -> dict[str, int]:
    """Add times to those that are stored, of which the later ones stay; return all. A GET and a PUT.

    Of two processes that do it at once, one may lose its times, and adds them again the next time.

    Args:
        maintained_at: When this process has done each kind.
        now: The time of the storage: what is stored of a later one was measured before its clock was set back.

    Raises:
        StorageError: The storage failed.
    """
    merged = {kind: time for kind, time in read_maintained(objects, keys).items() if time <= now}
    for kind, time in maintained_at.items():
        merged[kind] = max(time, merged.get(kind, time))
    objects.put(keys.maintenance, encode(MaintenanceDocument(done=merged)))
    return merged
