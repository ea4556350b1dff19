"""Erases records: rewrites the batches that have them, then deletes all objects with them. See
docs/internals/design/erasure.md.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from txnstore.catalog.iceberg.location import location_of
from txnstore.catalog.settings import publishes_table
from txnstore.chain import keys
from txnstore.compactor.compact.compaction import largest_segment
from txnstore.compactor.compact.lease import CompactionLease
from txnstore.compactor.compact.memory import Memory
from txnstore.compactor.compact.options import CompactionOptions
from txnstore.compactor.compact.replacements import Replacements
from txnstore.compactor.engine import time_of_upload
from txnstore.compactor.erase.predicate import Predicate, predicate_of
from txnstore.compactor.erase.proof import prove_erased
from txnstore.compactor.erase.report import ErasedObject, ErasedPartition, EraseReport, Outcome
from txnstore.compactor.erase.rewriting import plan_rewrites, rewrite
from txnstore.compactor.erase.search import Looked, NamedObjects, Search, list_objects, look_unleased
from txnstore.compactor.foreign import foreign_stores
from txnstore.compactor.vacuum.history import delete_objects
from txnstore.compactor.vacuum.payloads import remove_payload
from txnstore.compactor.vacuum.soundness import check_no_others
from txnstore.compactor.vacuum.vacuum import SWEEP_MS, removed_before, sweep_temporary_files
from txnstore.connection import Connection
from txnstore.coordinator.copies import has_stale_copies
from txnstore.coordinator.recovery import recover
from txnstore.core.authorization.rights import erase_records_of
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.released import entry_released_at
from txnstore.core.log.visibility import aborted_batches, is_open
from txnstore.core.maintenance import DropObjects
from txnstore.core.model import TopicPartition, items_of
from txnstore.core.routing import chain_of_producer
from txnstore.core.transactions.model import DECIDED, Transaction, TxnState
from txnstore.core.view import View
from txnstore.errors import (
    CompactionConflictError,
    CorruptionError,
    ObjectNotFoundError,
    TxnStoreError,
    UnknownTopicOrPartitionError,
)
from txnstore.phrases import counted, some
from txnstore.read.expired import judge_missing_segment
from txnstore.storage.base import ObjectInfo
from txnstore.storage.recent import forget
from txnstore.tables.published import published_of
from txnstore.tables.sweep import tables_in_use
from txnstore.tables.tables import Tables
from txnstore.validation import check_bool, check_milliseconds, check_writable

_LOG = logging.getLogger(__name__)

#: How often an erasure begins again after the log was changed beside it.
_MAX_ROUNDS = 20
#: The maximum number of keys per entry.
_KEYS_PER_ENTRY = 5_000
#: A rebuilt table copies what no compaction has written; there is no limit to what must not stay.
_ANY_BYTES = 1 << 62


def erase(
    connection: Connection,
    topic: str,
    *,
    key: object = None,
    where: str | None = None,
    grace: float = 0.0,
    dry_run: bool = False,
    prove: bool = False,
    memory_limit: int | None = None,
) -> EraseReport:
    """Erase the records of a topic with a key, or those for which an expression of SQL is true, from all objects.

    What stays of the batches that have them is written again, at the same offsets, and takes their place with one entry
    for each partition. Then every object with such a record is deleted: also what was replaced earlier and waits for a
    vacuum, uploads of dead writers, and copies for the table of the topic, which is built again and has no earlier
    snapshots then. Of an entry the records go, and its line stays; records of others in it are moved before. Earlier
    snapshots cannot read the batches that were replaced any more. The committed offsets of groups stay.

    Each step may be repeated, so an erasure that was interrupted is completed by the same call.

    Args:
        connection: The connection to the store.
        topic: The topic.
        key: The key: bytes, or a value of the type of the key column; text is UTF-8 where keys are bytes.
        where: An expression of SQL over the columns of one row, as after WHERE: what it is true for is erased.
        grace: For so many seconds after their replacement, objects stay, so that readers of earlier snapshots can
            finish; the report says how many. The same call deletes them later. By default they are deleted at once.
        dry_run: Change nothing; return what was found.
        prove: Look into all objects again afterwards, with fresh eyes; for a key, also for its bytes in every object of
            the store. What is found in objects that wait for the end of the grace period is no trace.
        memory_limit: The memory in bytes of what is read and written at a time, by default 1 GiB.

    Raises:
        UnknownTopicOrPartitionError: There is no such topic.
        InvalidConfigError: The key is none of the topic; the expression is none of one row; or another value is wrong.
        UndecidedRecordsError: An open transaction, which the message names, has such records. Nothing was erased; if
            the transaction has begun meanwhile, no more than the message says.
        TopicAuthorizationError: The principal has no right to DELETE on the topic.
        ClusterAuthorizationError: It has no right to maintain the store (CLUSTER_ACTION).
        ReadOnlyError: The store was opened read-only, and this is not a dry run.
        CompactionConflictError: Another compaction works on the topic. Repeat the call.
        CorruptionError: An object with records in use is missing or damaged; nothing more was erased.
        UnsoundStoreError: There are chains of another store below the URL; nothing was erased.
        StorageRefusedError: The storage refuses to delete objects, or to overwrite entries.
    """
    grace_ms = check_milliseconds("grace", grace)
    check_bool("dry_run", dry_run)
    check_bool("prove", prove)
    memory = CompactionOptions(memory_limit=memory_limit).memory
    if not dry_run:
        check_writable(connection.read_only, connection.url, "no records can be erased")
    found_topic = connection.view().find_topic(topic)
    predicate = predicate_of(found_topic, key, where)
    if not dry_run:
        connection.check_writable("no records can be erased")
        connection.check_rights(*erase_records_of([topic]))
        connection.check_storage()
    connection.chains.identity.confirm()
    check_no_others(connection, foreign_stores(connection.objects, connection.keys))
    erasure = _Erasure(connection, found_topic, predicate, grace_ms, memory)
    report = erasure.look_only() if dry_run else _run_leased(connection, found_topic, erasure)
    forget(connection.objects)
    if prove:
        waiting = {item.key for item in report.objects if item.outcome == "waits"}
        traces = prove_erased(connection, topic, predicate, memory)
        report = replace(report, traces=tuple(trace for trace in traces if trace.key not in waiting))
    if not dry_run:
        extra = {"topic": topic, "records": report.records, "objects": len(report.found), "waiting": report.waiting}
        _LOG.info("records erased", extra=extra)
    return report


def _run_leased(connection: Connection, topic: CatalogTopic, erasure: _Erasure) -> EraseReport:
    """Erase under a lease, so that no compaction reads what is erased, and writes it again."""
    wanted = frozenset(TopicPartition(topic.name, number) for number in range(topic.partitions))
    held = frozenset[TopicPartition]()

    def choose(others: frozenset[TopicPartition]) -> Collection[TopicPartition]:
        nonlocal held
        held = wanted & others
        return () if held else wanted

    with CompactionLease(connection.objects, connection.keys, connection.runtime) as lease:
        if not lease.take(choose):
            msg = (
                f"a compaction works on {some(map(str, sorted(held)))}, and may write again what is to be erased: "
                "erase when it has ended, or three minutes after it has died"
            )
            raise CompactionConflictError(msg)
        return erasure.run()


class _Erasure:
    """One erasure. It looks, replaces, and deletes, until a look finds nothing that it may delete."""

    def __init__(
        self, connection: Connection, topic: CatalogTopic, predicate: Predicate, grace_ms: int, memory: Memory
    ) -> None:
        self._connection, self._topic, self._predicate = connection, topic, predicate
        self._grace_ms, self._memory = grace_ms, memory
        self._search = Search(connection, topic, predicate, memory)
        self._erased = Counter[TopicPartition]()
        #: The outcome of what was looked into, by key; ``clean`` if it is not here.
        self._objects: dict[str, ErasedObject] = {}
        self._rebuilt = False

    def look_only(self) -> EraseReport:
        """What an erasure would find."""
        view, found = look_unleased(self._connection, self._topic.name, self._search_in)
        self._note(found, "found")
        ended = self._ended(view)
        plan_rewrites(view, [item.key for item in found], ended=ended)  # Raises if others hold some of them.
        lost = {number for number, txn in ended.items() if txn.state is not TxnState.PREPARE_COMMIT}
        return self._report(view, _live_records(view, self._topic, found, lost), waiting=0, dry_run=True)

    def run(self) -> EraseReport:
        """Erase."""
        connection, reason = self._connection, ""
        for attempt in range(1, _MAX_ROUNDS + 1):
            listed, view = list_objects(self._connection, self._topic.name), self._current_view()
            self._follow_topic(view)
            try:
                found = self._search.look(listed, NamedObjects(view))
                is_replaced = self._replace(view, found)
                is_published = self._publish(view, found, is_replaced=is_replaced)
                deleted, waiting = self._delete(connection.view(refresh=False), found)
            except (CompactionConflictError, CorruptionError) as error:
                if isinstance(error, CorruptionError) and judge_missing_segment(connection, error) is error:
                    raise
                reason = str(error)
                connection.runtime.backoff(attempt)
                continue
            self._note(waiting, "waits")
            if not (is_replaced or is_published or deleted):
                sweep_temporary_files(connection.objects, SWEEP_MS)  # Of local writers that have died.
                return self._report(view, self._erased, waiting=len(waiting), dry_run=False)
        msg = f"the erasure gave up after {_MAX_ROUNDS} attempts, because the log was changed in each: {reason}"
        raise CompactionConflictError(msg)

    def _current_view(self) -> View:
        """The newest view, after what producers and administrators have abandoned was ended."""
        connection = self._connection
        view = connection.view()
        logs = (log for state in view.states for _, log in items_of(state.partitions))
        # A chain with an old copy of the catalog still names objects of a deleted topic.
        if not has_stale_copies(view) and not any(log.open_txns for log in logs):
            return view
        recover(connection.chains, connection.coordinator)
        return connection.view(refresh=False)

    def _ended(self, view: View) -> dict[int, Transaction]:
        """The transactions that an erasure ends first, by their producers."""
        ages, ended = self._connection.chains.ages, dict[int, Transaction]()
        for producer in {
            each for state in view.states for _, log in items_of(state.partitions) for each in log.open_txns
        }:
            txn = view.owner(producer)
            if txn is not None and (
                txn.state in DECIDED or ages.has_expired(view.states[chain_of_producer(producer)], txn)
            ):
                ended[producer] = txn
        return ended

    def _search_in(self, view: View) -> Search:
        self._follow_topic(view)
        return self._search

    def _follow_topic(self, view: View) -> None:
        """Look with the columns that the topic has now; what was looked into has no others.

        Raises:
            UnknownTopicOrPartitionError: It was deleted, or created again, since the erasure began.
        """
        topic = view.find_topic(self._topic.name)
        if topic.topic_id != self._topic.topic_id:
            msg = f"topic {topic.name!r} was deleted and created again while records of it were erased: erase again"
            raise UnknownTopicOrPartitionError(msg)
        if topic.version != self._topic.version:
            looked = self._search.looked
            self._topic, self._search = topic, Search(self._connection, topic, self._predicate, self._memory)
            self._search.looked = looked

    # Steps ------------------------------------------------------------------------------------------------------------

    def _replace(self, view: View, found: Sequence[Looked]) -> bool:
        """Replace the batches in these objects by what stays of them; whether there were any.

        Raises:
            CompactionConflictError: The log of a partition was changed since the view was read.
        """
        has_begun = self._erased or self._objects
        done = f"erased {counted(self._erased.total(), 'record')}, and no more" if has_begun else ""
        rewrites = plan_rewrites(view, [item.key for item in found], done=done)
        connection, replacements = self._connection, Replacements.of(self._connection)
        objects = connection.objects.with_read_cache()
        for item in rewrites:
            is_own = item.topic.topic_id == self._topic.topic_id
            rewritten = rewrite(
                objects,
                connection.pool,
                connection.runtime,
                item=item,
                predicate=self._predicate if is_own else None,
                uploaded_at=time_of_upload(connection.runtime, connection.chains, item.tp),
                target_bytes=largest_segment(item.topic),
                memory=self._memory,
            )
            for refusal in replacements.submit(item.topic, rewritten.commands, erases=is_own).values():
                raise refusal
            self._erased[item.tp] += rewritten.removed
        return bool(rewrites)

    def _publish(self, view: View, found: Sequence[Looked], *, is_replaced: bool) -> bool:
        """Build the table of the topic again if a snapshot of it may name one of these objects; whether it did."""
        connection, name = self._connection, self._topic.name
        if not found:
            return False
        cut = published_of(connection).newest()
        table = cut.tables.get(name) if cut is not None else None
        has_table = table is not None and not table.dropped
        is_enabled = publishes_table(view.topics[name].config)
        if not (has_table or (is_enabled and is_replaced)):
            return False
        if has_table and not is_replaced and not self._is_in_table(found):
            return False
        # Also if no version has them: one that is written now, by a publisher with an older view, loses to this one.
        errors: list[TxnStoreError] = []
        Tables(connection).sync(tail_bytes=_ANY_BYTES, rebuild=[name] if is_enabled else [], on_error=errors.append)
        if errors and self._is_in_table(found):  # Else they are those of other tables, which stay as they were.
            raise errors[0]
        self._rebuilt = True
        return True

    def _is_in_table(self, found: Iterable[Looked]) -> bool:
        """Whether a snapshot of the table may name one of these objects."""
        published, location = published_of(self._connection), location_of(self._connection.objects)
        cut = published.newest()
        table = cut.tables.get(self._topic.name) if cut is not None else None
        if table is None or table.dropped:
            return False
        try:
            named = {location.key(path) for path in published.all_locations(table)}
        except CorruptionError:
            return True  # It is damaged, and is built again.
        return not named.isdisjoint(item.key for item in found)

    def _delete(self, view: View, found: Sequence[Looked]) -> tuple[list[Looked], list[Looked]]:
        """Delete the objects that nothing names any more, and the records in entries; returns these, and what waits."""
        named = NamedObjects(view)
        unnamed = [item for item in found if not named.batches_of(item.key)]
        ready = unnamed if not self._grace_ms else self._old_enough(view, unnamed)
        self._connection.chains.make_durable(view)
        segments = [item for item in ready if keys.has_segments(item.key)]
        entries = [item for item in ready if keys.entry_sequence(item.key) is not None]
        copies = [item for item in ready if item.key.startswith(keys.TABLES)]
        deleted = self._drop(segments)
        for item in entries:
            with suppress(ObjectNotFoundError):
                remove_payload(self._connection.objects, item.key)
        delete_objects(self._connection.objects, [_info(item) for item in copies])
        self._note([*deleted, *copies], "deleted")
        self._note(entries, "emptied")
        done = [*deleted, *entries, *copies]
        self._search.forget(item.key for item in done)
        keys_done = {item.key for item in ready}
        return done, [item for item in unnamed if item.key not in keys_done]

    def _drop(self, segments: Sequence[Looked]) -> list[Looked]:
        """Announce objects with segments, and delete those that no batch has come to name; returns these."""
        dropped: list[Looked] = []
        for start in range(0, len(segments), _KEYS_PER_ENTRY):
            chunk = segments[start : start + _KEYS_PER_ENTRY]
            allowed = set(self._connection.submit(DropObjects(tuple(item.key for item in chunk))))
            dropped += [item for item in chunk if item.key in allowed]
        delete_objects(self._connection.objects, [_info(item) for item in dropped])
        return dropped

    def _old_enough(self, view: View, items: Sequence[Looked]) -> list[Looked]:
        """The objects that were written, and replaced, before the grace period."""
        connection, limit = self._connection, self._connection.objects.now_ms() - self._grace_ms
        removed = {item.key for item in items if item.key in view.removals}
        young = removed - removed_before(connection, view, removed, self._grace_ms)
        in_tables = self._in_loaded_tables() if any(item.key.startswith(keys.TABLES) for item in items) else set()
        ready: list[Looked] = []
        for item in items:
            if (sequence := keys.entry_sequence(item.key)) is not None:
                state = view.states[keys.chain_number(item.key) or 0]
                released_at = entry_released_at(state, sequence)
                is_old = released_at is None or released_at <= connection.chains.ages.newest_older_than(
                    state, self._grace_ms
                )
            elif item.key.startswith(keys.TABLES):
                is_old = item.modified_ms <= limit and item.key not in in_tables
            else:
                is_old = item.modified_ms <= limit and item.key not in young
            if is_old:
                ready.append(item)
        return ready

    def _in_loaded_tables(self) -> set[str]:
        """The objects of the table of the topic that engines may have loaded within the grace period."""
        connection, published = self._connection, published_of(self._connection)
        location, named = location_of(connection.objects), set[str]()
        for cut in tables_in_use(connection, published, connection.objects.now_ms(), self._grace_ms).cuts:
            table = cut.tables.get(self._topic.name)
            if table is not None and not table.dropped:
                with suppress(CorruptionError):  # No engine can load it.
                    named |= {location.key(path) for path in published.all_locations(table)}
        return named

    # Reporting --------------------------------------------------------------------------------------------------------

    def _note(self, items: Iterable[Looked], outcome: Outcome) -> None:
        self._objects |= {item.key: ErasedObject(item.key, item.rows, outcome) for item in items}

    def _report(self, view: View, erased: Counter[TopicPartition], *, waiting: int, dry_run: bool) -> EraseReport:
        """Report the objects that were changed, and those that were searched and had nothing."""
        clean = (key for key, item in self._search.looked.items() if not item.found and key not in self._objects)
        objects = {**self._objects, **{key: ErasedObject(key, 0, "clean") for key in clean}}
        return EraseReport(
            self._topic.name,
            tuple(state.sequence for state in view.states),
            tuple(ErasedPartition(tp, erased[tp]) for tp in sorted(erased) if erased[tp]),
            tuple(objects[key] for key in sorted(objects)),
            waiting,
            self._rebuilt,
            dry_run,
        )


def _live_records(
    view: View, topic: CatalogTopic, found: Iterable[Looked], lost: Container[int]
) -> Counter[TopicPartition]:
    """The records that would be erased: from the log start on, in batches that are not, and will not be, aborted.

    Args:
        lost: The producers whose open transactions will be aborted.
    """
    named, counts = NamedObjects(view), Counter[TopicPartition]()
    logs = {tp: (log, aborted_batches(log)) for tp, log in view.partitions_of(topic.name)}
    for item in found:
        partitions, all_offsets = (column.to_numpy() for column in item.places.columns)
        offsets = {number: np.sort(all_offsets[partitions == number]) for number in np.unique(partitions)}
        for tp, batch in named.batches_of(item.key):
            if tp not in logs or tp.partition not in offsets:
                continue
            log, is_aborted = logs[tp]
            if not is_aborted(batch) and not (is_open(log, batch) and batch.producer_id in lost):
                bounds = [max(log.log_start, batch.base_offset), batch.limit]
                start, stop = np.searchsorted(offsets[tp.partition], bounds)
                counts[tp] += max(0, int(stop - start))
    return counts


def _info(item: Looked) -> ObjectInfo:
    return ObjectInfo(item.key, item.size, item.modified_ms)
