"""The keys of all objects of a store: the only module that builds or parses a key. See docs/format.md."""

from __future__ import annotations

STORE = "store.json"
TOPICS = "topics/"
CHAINS = "chains/"
_DIGITS = 20


def entries(chain: int) -> str:
    """The prefix of a chain's entries."""
    return f"chains/{chain:04d}/entries/"


def entry(chain: int, sequence: int) -> str:
    """The key of entry ``sequence`` of a chain."""
    return f"{entries(chain)}{sequence:0{_DIGITS}d}.json"


def checkpoints(chain: int) -> str:
    """The prefix of a chain's checkpoints."""
    return f"chains/{chain:04d}/checkpoints/"


def checkpoint_head(chain: int, sequence: int) -> str:
    """The head of the checkpoint of the state after entry ``sequence``; written last, it completes the checkpoint."""
    return f"{checkpoints(chain)}{sequence:0{_DIGITS}d}/head.json"


def checkpoint_batches(chain: int, sequence: int) -> str:
    """The batches of the checkpoint of the state after entry ``sequence``."""
    return f"{checkpoints(chain)}{sequence:0{_DIGITS}d}/batches.parquet"


def checkpoint_sequence(key: str) -> int | None:
    """The sequence number of a checkpoint, or None if ``key`` is not the head of one."""
    parts = key.split("/")
    if len(parts) == 5 and parts[2] == "checkpoints" and parts[4] == "head.json" and parts[3].isdigit():
        return int(parts[3])
    return None


def checkpoint_of(key: str) -> int | None:
    """The sequence number of the checkpoint that ``key`` is a part of, or None."""
    parts = key.split("/")
    if len(parts) == 5 and parts[2] == "checkpoints" and parts[3].isdigit():
        return int(parts[3])
    return None


def entry_sequence(key: str) -> int | None:
    """The sequence number of the entry ``key``, or None if it is not an entry."""
    folder, _, name = key.rpartition("/")
    digits, _, suffix = name.partition(".")
    if folder.endswith("/entries") and suffix == "json" and len(digits) == _DIGITS and digits.isdigit():
        return int(digits)
    return None


def chain_number(key: str) -> int | None:
    """The number of the chain that ``key`` belongs to, or None."""
    parts = key.split("/")
    return int(parts[1]) if len(parts) > 2 and parts[0] + "/" == CHAINS and parts[1].isdigit() else None


def latest(chain: int) -> str:
    """The hint to a chain's newest checkpoint."""
    return f"chains/{chain:04d}/latest.json"


def segment(topic: str, partition: int, name: str, fmt: str) -> str:
    """The key of a segment; ``name`` is unique, ``fmt`` is ``parquet`` or ``arrow``."""
    return f"{TOPICS}{topic}/{partition}/{name}.{fmt}"


def is_segment(key: str) -> bool:
    """Whether ``key`` has the form of a segment's key, so that txnstore may have written it."""
    parts = key.split("/")
    return (
        len(parts) == 4
        and parts[0] + "/" == TOPICS
        and parts[2].isdigit()
        and parts[3].rpartition(".")[2] in ("parquet", "arrow")
    )
