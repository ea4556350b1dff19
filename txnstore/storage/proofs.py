"""Remembers in the user's cache which storage was probed, so that not each process on a machine probes it again.

A proof is a small file for one store, by its id, at one place and for one user. It is an economy and no evidence that
anything else depends on: without a cache, or with one that is damaged or read-only, each process probes.
"""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

_LOG = logging.getLogger(__name__)

#: A proof counts for this long, in ms: a server may get a new version, or another configuration.
VALID_MS = 7 * 24 * 60 * 60 * 1000


def proof_of(identity: str, store_id: str) -> Path:
    """Return the path of the proof for a storage and the store on it; ``XDG_CACHE_HOME`` moves it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():  # So the specification of the variable says.
        cache = Path("~/.cache").expanduser()
    name = hashlib.sha256(f"{identity}\n{store_id}".encode()).hexdigest()
    return Path(cache, "txnstore", "probed", name)


def is_proven(identity: str, store_id: str, now: int) -> bool:
    """Whether a process has probed this storage in the last :data:`VALID_MS` before ``now`` (ms)."""
    try:
        probed_at = int(proof_of(identity, store_id).read_text("ascii"))
    except (OSError, ValueError, RuntimeError):  # A user without a home directory is a RuntimeError.
        return False
    return 0 <= now - probed_at < VALID_MS


def remember(identity: str, store_id: str, now: int) -> None:
    """Remember that the storage was probed at ``now`` (ms), if there is a cache to write to."""
    try:
        path = proof_of(identity, store_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(now), "ascii")
    except (OSError, RuntimeError) as error:
        _LOG.debug("the probe of the storage is not remembered: %s", error, extra={"error": str(error)})
