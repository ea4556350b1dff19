"""The keys of all objects of a store: the module that builds and parses them. See docs/format.md."""

from __future__ import annotations

import re

from txnstore._version import __version__
from txnstore.core.model import TopicPartition, value_class

STORE = "store.json"
TOPICS = "topics/"
CHAINS = "chains/"
HINTS = "chains/latest/"
LEASES = "leases/"
COMMITTERS = "committers/"
BACKUPS = "backups/"
TABLES = "tables/"
CUTS = "tables/cuts/"
#: The hint to the newest cut of tables.
LATEST_CUT = f"{CUTS}latest.json"
_DIGITS = 20
#: The id of a store.
_ID = re.compile("[0-9a-f-]{36}")
_OF_COMMITTERS = re.compile(rf"{COMMITTERS}{_ID.pattern}/[0-9]{{4}}(-[^/]+\.json|/[0-9a-f]{{32}})")
#: The endings of the keys of objects with segments.
_ENDINGS = ("parquet", "arrow")


@value_class()
class Keys:
    """The keys of the entries, checkpoints, index files and boundaries of one store.

    Its id is part of them, so that no object of a store that was deleted is taken for one of the store that was created
    in its place.
    """

    store_id: str

    @property
    def chains(self) -> str:
        """The prefix of the entries, checkpoints, index files and boundaries of all chains."""
        return f"{CHAINS}{self.store_id}/"

    def chain(self, chain: int) -> str:
        """The prefix of all objects of a chain but its hint."""
        return f"{self.chains}{chain:04d}/"

    def entries(self, chain: int) -> str:
        """The prefix of a chain's entries."""
        return f"{self.chain(chain)}entries/"

    def entry(self, chain: int, sequence: int) -> str:
        """The key of entry ``sequence`` of a chain."""
        return f"{self.entries(chain)}{sequence:0{_DIGITS}d}.json"

    def checkpoints(self, chain: int) -> str:
        """The prefix of a chain's checkpoints and index files."""
        return f"{self.chain(chain)}checkpoints/"

    def checkpoint_state(self, chain: int, sequence: int) -> str:
        """The state after entry ``sequence``; written last, it completes the checkpoint."""
        return f"{self.checkpoints(chain)}{sequence:0{_DIGITS}d}/state.json"

    def index_file(self, chain: int, after: int, until: int) -> str:
        """The index file of the entries from ``after + 1`` to ``until``."""
        return f"{self.checkpoints(chain)}{until:0{_DIGITS}d}-{after:0{_DIGITS}d}.index"

    def boundaries(self, chain: int) -> str:
        """The prefix of a chain's boundaries."""
        return f"{self.chain(chain)}boundaries/"

    def boundary(self, chain: int, number: int) -> str:
        """The boundary ``number`` of a chain; the first one is 1."""
        return f"{self.boundaries(chain)}{number:0{_DIGITS}d}.json"

    @property
    def maintenance(self) -> str:
        """What says when the store was last maintained. Below the chains: who may read these may read it."""
        return f"{self.chains}maintenance.json"

    @property
    def leases(self) -> str:
        """The prefix of the leases of compactors."""
        return f"{LEASES}{self.store_id}/"

    def lease(self, number: int) -> str:
        """The lease ``number`` of a compactor; the first one is 1."""
        return f"{self.leases}{number:0{_DIGITS}d}.json"

    @property
    def committers(self) -> str:
        """The prefix of what processes of several machines meet by."""
        return f"{COMMITTERS}{self.store_id}/"

    def committer(self, chain: int) -> str:
        """The announcement of the process that commits to a chain for other machines, of this release."""
        return f"{self.committers}{chain:04d}-{__version__}.json"

    def caller(self, chain: int, nonce: str) -> str:
        """What a process creates, by a name that a committer has drawn, to show that it may write to the store."""
        return f"{self.committers}{chain:04d}/{nonce}"


def latest(chain: int) -> str:
    """The hint to a chain's newest checkpoint; without the store's id, so that it is read together with that."""
    return f"{HINTS}{chain:04d}.json"


def checkpoint_sequence(key: str) -> int | None:
    """Return the sequence number of a checkpoint, or None if ``key`` is not its ``state.json``."""
    parts = key.split("/")
    if len(parts) == 6 and parts[3] == "checkpoints" and parts[5] == "state.json" and parts[4].isdigit():
        return int(parts[4])
    return None


def index_range(key: str) -> tuple[int, int] | None:
    """Return the entries ``(after, until)`` of an index file, or None if ``key`` is not one."""
    parts = key.split("/")
    until, _, after = parts[-1].removesuffix(".index").partition("-")
    if len(parts) == 5 and parts[3] == "checkpoints" and until.isdigit() and after.isdigit():
        return int(after), int(until)
    return None


def entry_sequence(key: str) -> int | None:
    """Return the sequence number of the entry ``key``, or None if it is not an entry."""
    return _parse_number(key, "/entries")


def boundary_number(key: str) -> int | None:
    """Return the number of the boundary ``key``, or None if it is not a boundary."""
    return _parse_number(key, "/boundaries")


def lease_number(key: str) -> int | None:
    """Return the number of the lease ``key`` of any store, or None if it is not a lease."""
    return _parse_number(key, "") if key.startswith(LEASES) and key.count("/") == 2 else None


def backup(number: int) -> str:
    """The key of the cut ``number`` that a backup has in full; 0: of a copy that was begun, and has none yet."""
    return f"{BACKUPS}{number:0{_DIGITS}d}.json"


def backup_number(key: str) -> int | None:
    """Return the number of the cut of a backup ``key``, or None if it is none."""
    return _parse_number(key, "") if key.startswith(BACKUPS) and key.count("/") == 1 else None


def is_of_committers(key: str) -> bool:
    """Whether ``key`` has the form of the announcement of a committer, or of what its callers create; of any store."""
    return _OF_COMMITTERS.fullmatch(key) is not None


def is_of_chain(key: str) -> bool:
    """Whether ``key`` has the form of an entry, a boundary, an index file or the ``state.json`` of a checkpoint."""
    numbers = entry_sequence(key), boundary_number(key), checkpoint_sequence(key)
    return any(number is not None for number in numbers) or index_range(key) is not None


def _parse_number(key: str, ending: str) -> int | None:
    """Return the number of a numbered object in a folder with this ending."""
    folder, _, name = key.rpartition("/")
    digits, _, suffix = name.partition(".")
    if folder.endswith(ending) and suffix == "json" and len(digits) == _DIGITS and digits.isdigit():
        return int(digits)
    return None


def chain_number(key: str) -> int | None:
    """Return the number of the chain that the entry, checkpoint or index file ``key`` belongs to, or None."""
    parts = key.split("/")
    return int(parts[2]) if store_of(key) is not None and len(parts) > 3 and parts[2].isdigit() else None


def store_of(key: str) -> str | None:
    """Return the id of the store whose entry, index file, checkpoint or boundary ``key`` is, or None."""
    parts = key.split("/")
    return parts[1] if len(parts) > 2 and f"{parts[0]}/" == CHAINS and _ID.fullmatch(parts[1]) else None


def segment(topic: str, partition: int, name: str, fmt: str) -> str:
    """The key of an object with a segment; ``name`` is unique, ``fmt`` is ``parquet`` or ``arrow``.

    If it has rows of several partitions, the key names one of them, and so the chain that orders its deletion.
    """
    return f"{TOPICS}{topic}/{partition}/{name}.{fmt}"


def cut(number: int) -> str:
    """The key of the cut ``number`` of the tables; the first one is 1."""
    return f"{CUTS}{number:0{_DIGITS}d}.json"


def cut_number(key: str) -> int | None:
    """Return the number of the cut ``key``, or None if it is not a cut."""
    return _parse_number(key, "") if key.startswith(CUTS) and key.count("/") == 2 else None


def table(topic: str) -> str:
    """The prefix of all objects of a topic's table but the segments."""
    return f"{TABLES}{topic}/"


def table_in(key: str) -> str:
    """Return the prefix of the table that the key of an object below it names."""
    return f"{TABLES}{key.removeprefix(TABLES).partition('/')[0]}/"


def table_metadata(topic: str, name: str) -> str:
    """The key of an object of a table's metadata."""
    return f"{table(topic)}metadata/{name}"


def table_version(topic: str, number: int) -> str:
    """The key of the version ``number`` of a table's metadata; the first one is 1."""
    return table_metadata(topic, f"v{number}.metadata.json")


def table_hint(topic: str) -> str:
    """The key of the hint to a table's newest version."""
    return table_metadata(topic, "version-hint.text")


def table_data(topic: str, name: str) -> str:
    """The key of a data file of a table that is no segment: a tail, or position deletes."""
    return f"{table(topic)}data/{name}.parquet"


def partition_in(key: str) -> TopicPartition:
    """Return the partition that the key of an object with a segment names."""
    topic, partition, _ = key.split("/")[-3:]
    return TopicPartition(topic, int(partition))


def has_segments(key: str) -> bool:
    """Whether ``key`` has the form of the key of an object with segments, so that txnstore may have written it."""
    parts = key.split("/")
    return (
        len(parts) == 4 and f"{parts[0]}/" == TOPICS and parts[2].isdigit() and parts[3].rpartition(".")[2] in _ENDINGS
    )
