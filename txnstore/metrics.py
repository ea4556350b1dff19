"""The metrics of a store: counters and durations of this process, and the state of the store.

Plain values. :meth:`txnstore.Store.metrics` returns them; :mod:`txnstore.monitoring` exports them.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The upper bounds of the buckets of every histogram, in milliseconds. A last bucket counts what takes longer.
BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000)


@dataclass(frozen=True, slots=True)
class Histogram:
    """The durations of calls of one kind, in buckets with fixed bounds.

    Attributes:
        bounds_ms: The inclusive upper bounds of the buckets, in milliseconds, ascending.
        counts: The number of calls in each bucket; one more than there are bounds, for what took longer.
        total_ms: The duration of all calls together, in milliseconds.
    """

    bounds_ms: tuple[int, ...] = BOUNDS_MS
    counts: tuple[int, ...] = (0,) * (len(BOUNDS_MS) + 1)
    total_ms: int = 0

    @property
    def count(self) -> int:
        """The number of calls."""
        return sum(self.counts)

    def quantile_ms(self, quantile: float) -> float:
        """Return an upper bound of the duration of this part of the calls in ms: the bound of its bucket.

        Args:
            quantile: The part, from 0 to 1, such as 0.99.

        Returns:
            0 if there was no call; infinity if the bucket has no bound.
        """
        rank, seen = quantile * self.count, 0
        for bound, count in zip((*self.bounds_ms, float("inf")), self.counts, strict=True):
            seen += count
            if seen and seen >= rank:
                return bound
        return 0


@dataclass(frozen=True, slots=True)
class ChainStatus:
    """A chain.

    Attributes:
        chain: Its number.
        entries: The number of its entries.
        checkpoint: The last entry that its newest checkpoint includes, by the hint; 0 if there is none. An open reads
            all later entries.
        journal_watermark: The entry in which its earliest transaction began that is not completed: a vacuum keeps the
            history from it on. The next entry if there is none; 0 if it is not known.
    """

    chain: int
    entries: int
    checkpoint: int
    journal_watermark: int


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """A partition.

    Attributes:
        topic: Its topic.
        partition: Its number.
        log_start: The first offset that can be read.
        last_stable: The last stable offset, where ``read_committed`` readers stop.
        high_watermark: The offset of the next record that is appended.
        lso_distance: ``high_watermark - last_stable``: how far open transactions hold the readers back.
        blocked: The committed records from ``last_stable`` on, which wait for an open transaction.
        segments: The number of segments; a compaction merges small ones.
        bytes: The size of these segments.
    """

    topic: str
    partition: int
    log_start: int
    last_stable: int
    high_watermark: int
    lso_distance: int
    blocked: int
    segments: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TransactionStatus:
    """A transaction that is open, or decided and not completed.

    Attributes:
        transactional_id: The transactional id.
        producer_id: The producer id.
        state: Its state, such as ``ONGOING``.
        prepared: Whether an external coordinator decides it (KIP-939); it has no timeout then.
        age: Seconds since its first record or offset, by the clock of this process, and never before the time of the
            newest entry.
        timeout: Seconds after which any process may abort it.
    """

    transactional_id: str
    producer_id: int
    state: str
    prepared: bool
    age: float
    timeout: float


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A consumer group.

    Attributes:
        group: Its name.
        state: ``Empty``, ``Reconciling`` or ``Stable``.
        generation: Grows with each change of its members; -1: it never had members.
        members: The number of its live members.
    """

    group: str
    state: str
    generation: int
    members: int


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The progress of a group in a partition.

    Attributes:
        group: The group.
        topic: The topic.
        partition: The number of the partition.
        offset: The committed offset; None if nothing is committed.
        lag: How many offsets it is behind the last stable offset (LSO-13).
    """

    group: str
    topic: str
    partition: int
    offset: int | None
    lag: int


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A table of a topic in the newest cut.

    Attributes:
        topic: Its topic.
        version: The number of its version; 0: it is not published yet.
        rows: The rows that readers see.
        copied_bytes: The size of the files that are copies of rows, which a compaction makes unnecessary.
        behind: How many entries the chains have after what it shows: the cut, unless it could not be published with it.
        lag: How much later the newest of them was written, in seconds.
    """

    topic: str
    version: int
    rows: int
    copied_bytes: int
    behind: int
    lag: float


#: The kinds of maintenance, in the order in which a round does them.
MAINTENANCE_KINDS = ("recover", "retain", "compact", "expire", "checkpoint", "tables", "vacuum")


@dataclass(frozen=True, slots=True)
class MaintenanceStatus:
    """A kind of maintenance.

    Attributes:
        kind: The kind, as ``txnstore maintain --only`` takes it.
        age: Seconds since a process last did it, or saw that there was nothing to do; if none has, since the store was
            created. By the clock of this process.
    """

    kind: str
    age: float


@dataclass(frozen=True, slots=True)
class RetentionStatus:
    """The retention of a topic.

    Attributes:
        topic: The topic.
        overdue: For how many seconds its oldest record should have been deleted; 0: none should.
    """

    topic: str
    overdue: float


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """The state of a store at one moment, whichever processes use it.

    Attributes:
        chains: Its chains, by number.
        partitions: Its partitions, by topic and number.
        transactions: Its open transactions, by transactional id.
        groups: Its consumer groups, by name.
        lags: The partitions in which a group has committed, or has members.
        tables: Its tables, by topic.
        maintenance: The kinds of maintenance.
        retention: Its topics with a retention, by name.
    """

    chains: tuple[ChainStatus, ...]
    partitions: tuple[PartitionStatus, ...]
    transactions: tuple[TransactionStatus, ...]
    groups: tuple[GroupStatus, ...]
    lags: tuple[GroupLag, ...]
    tables: tuple[TableStatus, ...] = ()
    maintenance: tuple[MaintenanceStatus, ...] = ()
    retention: tuple[RetentionStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreMetrics:
    """Counters and durations of one open store in this process, since it was opened.

    Attributes:
        gets: Requests that read an object, or asked for its size.
        puts: Requests that wrote an object, conditional ones included.
        lists: Requests that listed keys.
        deletes: Requests that deleted objects.
        failures: Requests that failed, after all repetitions; a missing object is not a failure.
        retries: Repetitions of requests after a failure or an unknown outcome.
        bytes_in: Bytes that were read.
        bytes_out: Bytes that were written.
        commits: Entries that this process added to the chains.
        commands: Commands that these entries decided, refused ones included; callers may share an entry.
        carried: Commands of other processes of this machine in these entries.
        handed_over: Commands of this process that entries of another process of this machine carry.
        conflicts: Lost races: how often another writer created the entry that this process tried to create.
        unknown_outcomes: Writes of entries whose outcome was unknown.
        checkpoints: Checkpoints that this process wrote.
        checkpoint_failures: Checkpoints that it could not write; the log says why. Opening the store takes longer.
        background_merged_batches: Small batches that this process has merged in the background.
        background_merge_failures: Times that this failed; the log says why, and the next one repeats it.
        refusals: Commands and reads of this process that were refused, because its principal lacks a right.
        durations: How long the calls of each kind took. ``get``, ``put``, ``put_if_absent``, ``list``, ``delete``,
            ``stat``, ``now_ms``: the requests, with their repetitions. ``commit``: commands, until their entries are
            stored, or the command is refused. ``poll``: polls of consumers, without the pauses in which they wait for
            new records. A kind without calls is not listed.
        status: The state of the store; None unless it was asked for.
    """

    gets: int
    puts: int
    lists: int
    deletes: int
    failures: int
    retries: int
    bytes_in: int
    bytes_out: int
    commits: int
    commands: int
    carried: int
    handed_over: int
    conflicts: int
    unknown_outcomes: int
    checkpoints: int
    checkpoint_failures: int
    background_merged_batches: int
    background_merge_failures: int
    refusals: int
    durations: dict[str, Histogram]
    status: StoreStatus | None = None


@dataclass(slots=True)
class ChainMetrics:
    """Counters of the commits of a chain in this process.

    Attributes:
        commits: Entries written.
        commands: Commands in these entries, including refused ones.
        carried: Commands of other processes in these entries.
        handed_over: Commands of this process that entries of other processes carry.
        conflicts: Slots that another process took first.
        unknown_outcomes: Conditional creates whose outcome was unknown at first.
        retries: Repetitions of conditional creates.
        checkpoints: Checkpoints written.
        checkpoint_failures: Checkpoints after a commit that could not be written.
        background_merged_batches: Small batches that were merged in the background.
        background_merge_failures: Times that this failed; the next one repeats it.
        refusals: Commands and reads that were refused for a missing right.
    """

    commits: int = 0
    commands: int = 0
    carried: int = 0
    handed_over: int = 0
    conflicts: int = 0
    unknown_outcomes: int = 0
    retries: int = 0
    checkpoints: int = 0
    checkpoint_failures: int = 0
    background_merged_batches: int = 0
    background_merge_failures: int = 0
    refusals: int = 0
