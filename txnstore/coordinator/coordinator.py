"""The coordinator: takes a command to the chain that decides it, and a transaction through all its chains.

In a store of one chain the connection submits to that chain directly. The coordinator has no state of its own: every
step of a transaction is an entry of a chain, so any process can continue where another stopped. A transaction inside
its coordinator's chain is one entry. Across chains it takes the steps of KIP-98 (``docs/internals/design/chains.md``)::

    coordinator's chain          other chains
    AddPartitions, AddOffsets
                                 batches, offsets      (in parallel, one entry per chain)
    TxnDecided, its markers                            the decision: a commit returns here
                                 markers               (in parallel, one entry per chain)
    TxnCompleted
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from txnstore.chain.chains import Chains
from txnstore.coordinator.completion import ATTEMPTS, Completions
from txnstore.coordinator.copies import copy_everywhere, delete_topic, submit_copying_topics, unknown_if_partial
from txnstore.core.authorization.changes import is_in_use
from txnstore.core.authorization.model import ChangeAcls, ChangeAuthorization, FollowAuthorization
from txnstore.core.catalog.model import AlterTopic, CatalogTopic, CreateTopic, DeleteTopic
from txnstore.core.commands import chain_of
from txnstore.core.groups.commands import CommitOffsets, ResetOffsets, TxnOffsets
from txnstore.core.groups.offsets import with_catalog_topic_id
from txnstore.core.log.appending import MAX_ADDED_AGE_MS, find_batch
from txnstore.core.log.commands import Added, Append, Appended
from txnstore.core.maintenance import DropObjects, ForgetObjects
from txnstore.core.model import Command, ProducerIdentity, TopicPartition
from txnstore.core.routes import Part, chains_of, join_answers, keys_by_chain, parts_of
from txnstore.core.routing import (
    CATALOG,
    chain_of_group,
    chain_of_partition,
    chain_of_producer,
    chain_of_transactional_id,
)
from txnstore.core.state import State
from txnstore.core.transactions.commands import (
    AbortTxn,
    DecidedTransaction,
    Ended,
    EndTxn,
    FenceProducer,
    InitProducer,
    KeptTransaction,
    PrepareTxn,
)
from txnstore.core.transactions.lookups import repeated_batches, was_decided
from txnstore.core.transactions.model import Transaction, TxnState
from txnstore.errors import (
    ConcurrentTransactionsError,
    InvalidTxnStateError,
    StorageError,
    TxnStoreError,
    UnknownOutcomeError,
    UnknownTopicOrPartitionError,
)
from txnstore.runtime import Runtime

T = TypeVar("T")
C = TypeVar("C", Append, EndTxn, CommitOffsets, ResetOffsets)


class Coordinator:
    """Submits commands to the chains of a store. Thread-safe.

    Args:
        runtime: The source of randomness.
        background: Returns the executor for work that no caller waits for.
    """

    def __init__(self, chains: Chains, runtime: Runtime, background: Callable[[], Executor]) -> None:
        self._chains = chains
        self._runtime = runtime
        self.completions = Completions(chains, background, runtime.sleep)

    def submit(self, command: Command) -> Any:
        """Commit a command and return its answer.

        Raises:
            StorageError: Nothing was written.
            UnknownOutcomeError: The outcome is unknown, or a part of the command is written; the same call continues
                from there.
            TxnStoreError: Another subclass of it: the command is refused.
        """
        match command:
            case InitProducer():
                return self._init(command)
            case Append():
                return self._append(command)
            case EndTxn():
                return self._end(command)
            case AbortTxn():
                return self._abort(command)
            case PrepareTxn():
                return self._prepare(command)
            case CreateTopic() | AlterTopic():
                return self._change_catalog(command)
            case DeleteTopic():
                return delete_topic(self._chains, command)
            case DropObjects() | ForgetObjects():
                return self._change_objects(command)
            case ChangeAuthorization() | ChangeAcls():
                return self._change_authorization(command)
            case CommitOffsets():
                return self._submit_part(chain_of(command, len(self._chains)), command)
            case ResetOffsets():
                return self._submit_part(chain_of(command, len(self._chains)), command)
        return self._submit(chain_of(command, len(self._chains)), command)

    def _submit(self, number: int, command: Command) -> Any:
        return submit_copying_topics(self._chains, number, command)

    def _submit_part(self, number: int, command: C) -> Any:
        """Submit the part of a command for one chain, with the topic ids of its offsets.

        The ids are looked up here, last of all, because a lookup can be outdated before its part is written:

        1. This process looks the ids up in the catalog's chain, as of entry *n*.
        2. A later entry of the catalog's chain is written, by this command or by another process.
        3. The chain of the group learns of that entry: one of its own entries follows from it (``State.seen``).
        4. The part arrives. Its ids are of entry *n*, so the chain cannot tell whether they are of the newest topics,
           and refuses them where they would replace other ids.

        With the lookup last, no earlier entry of this command causes that. If an entry that is written meanwhile does,
        the ids are looked up again, and only this part is repeated.
        """
        for _ in range(ATTEMPTS):
            identified, catalog_entry = self._identify_topics(command)
            try:
                return self._submit(number, identified)
            except UnknownTopicOrPartitionError:
                if catalog_entry is None or self._chains[CATALOG].refresh().sequence == catalog_entry:
                    raise
        return self._submit(number, self._identify_topics(command)[0])

    # Producers --------------------------------------------------------------------------------------------------------

    def _init(self, command: InitProducer) -> ProducerIdentity:
        """Grant an identity, after the previous transaction is completed in all chains (INIT-03, INIT-05)."""
        if command.transactional_id is not None:
            number = chain_of_transactional_id(command.transactional_id, len(self._chains))
            self.completions.wait_for(command.transactional_id)
        else:  # Any chain may grant a producer id.
            number = self._runtime.rng.randrange(len(self._chains)) if len(self._chains) > 1 else CATALOG
        for _ in range(ATTEMPTS):
            answer = self._chains[number].submit(command)
            if isinstance(answer, DecidedTransaction):
                self.completions.finish_first(answer)
            elif isinstance(answer, KeptTransaction):
                return self._fence_old(answer)
            else:
                identity: ProducerIdentity = answer
                return identity
        msg = (
            f"init of {command.transactional_id!r} gave up after {ATTEMPTS} attempts: other instances began new "
            "transactions each time"
        )
        raise ConcurrentTransactionsError(msg)

    def _fence_old(self, answer: KeptTransaction) -> ProducerIdentity:
        """Fence the old epoch of a kept transaction in all its chains, before the new identity is returned (TPC-05)."""
        coordinator_chain = chain_of_producer(answer.producer.producer_id)
        decision = (coordinator_chain, self._chains[coordinator_chain].state.sequence)
        command = FenceProducer(answer.producer, answer.partitions, answer.groups, decision)
        self._fence_in_all_chains(command)
        return answer.producer

    def _prepare(self, command: PrepareTxn) -> None:
        """Prepare in the coordinator's chain, then in the other chains of the transaction (TPC-03).

        The call returns after that: a prepared transaction takes no more batches or offsets in any chain.
        """
        producer = command.producer
        coordinator_chain = chain_of_producer(producer.producer_id)
        self.completions.wait_for(producer.transactional_id)
        self.completions.when_free(producer, lambda: self._submit(coordinator_chain, command))
        state = self._chains[coordinator_chain].state
        txn = state.transactions[producer.transactional_id or ""]
        command_after = replace(command, after=(coordinator_chain, state.sequence))
        others = chains_of(txn, len(self._chains)) - {coordinator_chain}
        self._run_in_chains(
            {number: partial(self._submit, number, command_after) for number in sorted(others)}, happened=True
        )

    def _fence_in_all_chains(self, command: FenceProducer) -> None:
        """Submit a fence to all its chains; the entry that granted the new epoch is already stored."""
        numbers = chains_of(command, len(self._chains)) - {chain_of_producer(command.producer.producer_id)}
        self._run_in_chains(
            {number: partial(self._submit, number, command) for number in sorted(numbers)}, happened=True
        )

    def _append(self, command: Append) -> tuple[Appended, ...]:
        """Append batches in all their chains; those of a transaction after the coordinator has added them."""
        self._identify_topics(command)  # Unknown topics are refused before anything is written.
        parts = parts_of(command, len(self._chains))
        producer = command.producer
        if producer.transactional_id is None:
            work = {
                number: partial(self._submit_part, number, Append(producer, part.batches, part.offsets))
                for number, part in parts.items()
            }
            return join_answers(parts, self._run_in_chains(work, happened=False))
        coordinator_chain = chain_of_producer(producer.producer_id)
        coordinator_part = parts.get(coordinator_chain, Part())
        others = {number: part for number, part in parts.items() if number != coordinator_chain}
        try:
            added, appended = self._add_and_append(producer, coordinator_chain, coordinator_part, others, command)
        except InvalidTxnStateError:
            repeated_answer = self._find_repeated(command, coordinator_chain, others) if command.added_only else None
            if repeated_answer is None:
                raise
            return repeated_answer
        return join_answers(parts, {coordinator_chain: appended, **self._register(producer, added, others)})

    def _find_repeated(
        self, command: Append, coordinator_chain: int, others: Iterable[int]
    ) -> tuple[Appended, ...] | None:
        """Find where batches of an earlier transaction of the session were appended; None if any is unknown.

        The coordinator's chain answers for its own partitions, and does not know the logs of the others.
        """
        producer = command.producer
        states = self._chains.concurrently({number: self._chains[number].refresh for number in others})
        states[coordinator_chain] = self._chains[coordinator_chain].state
        txn = states[coordinator_chain].transactions.get(producer.transactional_id or "")
        if txn is None or (txn.producer_id, txn.epoch) != (producer.producer_id, producer.epoch):
            return None
        count = len(self._chains)
        state_by_partition = {batch.tp: states[chain_of_partition(batch.tp, count)] for batch in command.batches}
        return repeated_batches(state_by_partition, txn, command)

    def _add_and_append(
        self,
        producer: ProducerIdentity,
        coordinator_chain: int,
        coordinator_part: Part,
        others: dict[int, Part],
        joining: Append | None = None,
    ) -> tuple[Added | None, tuple[Appended, ...]]:
        """Add the partitions and groups of other chains to the transaction, and append the coordinator's part.

        One entry of the coordinator's chain; none if the transaction has all of them and the part is empty. A zombie is
        refused by this entry, so it writes nothing in chains that have not seen the newer epoch (FEN-02).

        Args:
            coordinator_part: The part of the command for this chain.
            others: The parts for other chains, by chain.
            joining: The whole command, if it may name partitions and groups that join the transaction without data.

        Returns:
            The evidence that these chains need to accept their parts, and where the batches were appended. The evidence
            is None only if there are no other parts, and the transaction is not open.
        """
        partitions = tuple(tp for part in others.values() for tp in part.partitions)
        groups = tuple(group for part in others.values() for group in part.groups)
        topic_ids = tuple(topic_id for part in others.values() for topic_id in part.topic_ids)
        joins_without_data = joining is not None and bool(joining.partitions or joining.groups)
        if joining is not None and joins_without_data:
            partitions = tuple(dict.fromkeys((*partitions, *joining.partitions)))
            groups = tuple(dict.fromkeys((*groups, *joining.groups)))
            topic_ids = tuple(dict.fromkeys((*topic_ids, *joining.topic_ids, *self._topic_ids(joining.partitions))))
        self.completions.wait_for(producer.transactional_id)
        command = Append(
            producer,
            coordinator_part.batches,
            coordinator_part.offsets,
            partitions,
            groups,
            topic_ids=topic_ids,
            added_only=joining is not None and joining.added_only,
        )
        added = self._find_added(coordinator_chain, command)
        if added is not None and self._may_be_too_old(added, others):
            added, command = None, replace(command, renews=True)
        # A batch that rests on an outdated state is refused by its chain. The answer that they are added is not checked
        # by anything that follows, so the head of the coordinator's chain gives it.
        if added is not None and not joins_without_data and not (coordinator_part.batches or coordinator_part.offsets):
            return added, ()
        submit = partial(self._submit_part, coordinator_chain, command)
        while True:
            appended = self.completions.when_free(producer, submit)
            added = self._find_added(coordinator_chain, command)
            if added is not None or not others:
                return added, appended
            # The entry has added them, so another process has ended the transaction since: the next attempt is refused.

    def _find_added(self, coordinator_chain: int, command: Append) -> Added | None:
        """Return evidence that the open transaction has the partitions and groups of an append; None if it lacks any.

        Read from the state of this process: it is true as of that entry, which comes before the decision.
        """
        state = self._chains[coordinator_chain].state
        txn = state.transactions.get(command.producer.transactional_id or "")
        if txn is None or not _has_added(txn, command):
            return None
        return Added(coordinator_chain, state.sequence, state.timestamp, txn.session_epoch)

    def _topic_ids(self, tps: Iterable[TopicPartition]) -> tuple[tuple[str, str], ...]:
        """Return pairs of (topic, topic id) for partitions whose topic id is known."""
        topics = self._chains[CATALOG].state.topics
        return tuple((name, topics[name].topic_id) for name in sorted({tp.topic for tp in tps}) if name in topics)

    def _may_be_too_old(self, added: Added, chains: Iterable[int]) -> bool:
        """Whether a chain may soon refuse the evidence as too old, if the coordinator's chain was idle for hours."""
        now = max([self._runtime.clock(), *(self._chains[number].state.timestamp for number in chains)])
        return now - added.timestamp > MAX_ADDED_AGE_MS // 2

    def add_in_background(
        self, producer: ProducerIdentity, partitions: Iterable[TopicPartition], groups: Iterable[str]
    ) -> bool:
        """Start to add partitions and groups of other chains to the transaction.

        It saves the next append a round trip. If it fails, that append adds them, or raises.

        Returns:
            Whether there is something to add.
        """
        count = len(self._chains)
        if count == 1:
            return False
        coordinator_chain = chain_of_producer(producer.producer_id)
        tps = tuple(tp for tp in partitions if chain_of_partition(tp, count) != coordinator_chain)
        names = tuple(dict.fromkeys(group for group in groups if chain_of_group(group, count) != coordinator_chain))
        if not (tps or names):
            return False
        command = Append(producer, partitions=tps, groups=names, topic_ids=self._topic_ids(tps))
        if self._find_added(coordinator_chain, command) is not None:
            return False
        submit = partial(self._submit, coordinator_chain, command)
        self.completions.in_background(
            producer.transactional_id, lambda: self.completions.when_free(producer, submit, wait=False)
        )
        return True

    def _register(
        self, producer: ProducerIdentity, added: Added | None, parts: dict[int, Part]
    ) -> dict[int, tuple[Appended, ...]]:
        """Append the batches and offsets of a transaction in other chains."""
        work = {
            number: partial(self._submit_part, number, Append(producer, part.batches, part.offsets, added=added))
            for number, part in parts.items()
        }
        return self._run_in_chains(work, happened=True)

    def _end(self, command: EndTxn) -> Ended:
        """Decide a transaction in the coordinator's chain, after the last batches in all other chains."""
        producer = command.producer
        coordinator_chain = chain_of_producer(producer.producer_id)
        parts = parts_of(command, len(self._chains))
        coordinator_part = parts.get(coordinator_chain, Part())
        others = {number: part for number, part in parts.items() if number != coordinator_chain}
        self.completions.wait_for(producer.transactional_id)
        # A repeated end must return the answer of the first attempt, also if a topic is unknown by now:
        # 1. The first attempt is decided, and its answer is lost.
        # 2. Another process deletes a topic of the offsets, whose markers are written.
        # 3. The repetition finds no such topic, but the transaction is decided: the chain returns the answer.
        was_decided_before = False
        try:
            self._identify_topics(command)  # Unknown topics are refused before anything is written.
        except UnknownTopicOrPartitionError:
            was_decided_before = self._earlier_decision(command, coordinator_chain) is not None
            if not was_decided_before:
                raise
        appended = self._append_before_end(command, coordinator_chain, others) if others else {}
        after = self._entries_after_parts(producer, coordinator_chain, others)
        last = replace(command, batches=coordinator_part.batches, offsets=coordinator_part.offsets, after=after)
        submit = self._submit if was_decided_before else self._submit_part
        try:
            ended: Ended = self.completions.when_free(producer, lambda: submit(coordinator_chain, last))
        except StorageError as error:
            raise unknown_if_partial(error, happened=bool(others)) from error
        if ended.unfinished is not None:
            self.completions.finish_later(ended.unfinished)
        if ended.repeated:
            return ended
        return replace(ended, appended=join_answers(parts, {**appended, coordinator_chain: ended.appended}))

    def _append_before_end(
        self, command: EndTxn, coordinator_chain: int, parts: dict[int, Part]
    ) -> dict[int, tuple[Appended, ...]]:
        """Append the batches and offsets of other chains before the decision.

        If they are refused because an earlier attempt of this end was decided, returns where that one appended them.
        """
        producer = command.producer
        try:
            added, _ = self._add_and_append(producer, coordinator_chain, Part(), parts)
            return self._register(producer, added, parts)
        except StorageError:
            raise
        except TxnStoreError:
            txn = self._earlier_decision(command, coordinator_chain)
            if txn is None:
                raise
            states = self._chains.concurrently({number: self._chains[number].refresh for number in parts})
            return {
                number: tuple(find_batch(states[number], producer, batch, txn.updated_at) for batch in part.batches)
                for number, part in parts.items()
            }

    def _earlier_decision(self, command: EndTxn, coordinator_chain: int) -> Transaction | None:
        """Return the transaction if an earlier attempt of this end was decided, else None."""
        txn = self._chains[coordinator_chain].refresh().transactions.get(command.producer.transactional_id or "")
        return txn if txn is not None and was_decided(txn, command) else None

    def _entries_after_parts(
        self, producer: ProducerIdentity, coordinator_chain: int, parts: dict[int, Part]
    ) -> tuple[tuple[int, int], ...]:
        """Return, for each other chain of the transaction, an entry that follows all its batches and offsets."""
        txn = self._chains[coordinator_chain].state.transactions.get(producer.transactional_id or "")
        numbers = set(parts) | (chains_of(txn, len(self._chains)) if txn is not None else set())
        return tuple((number, self._chains[number].state.sequence) for number in sorted(numbers - {coordinator_chain}))

    def _abort(self, command: AbortTxn) -> None:
        number = chain_of_transactional_id(command.transactional_id, len(self._chains))
        answer = self._chains[number].submit(command)
        if answer is not None:
            self.completions.finish_first(answer)

    # Catalog, objects, offsets ----------------------------------------------------------------------------------------

    def _change_catalog(self, command: CreateTopic | AlterTopic) -> CatalogTopic:
        """Change the catalog, then the copies of the topic in the chains that lead its partitions.

        Raises:
            UnknownOutcomeError: The topic is altered, and a chain may still delete records by its earlier settings.
                Repeat the call: it changes only the copies then.
        """
        topic: CatalogTopic = self._chains[CATALOG].submit(command)
        errors = copy_everywhere(self._chains, topic)
        if errors and isinstance(command, AlterTopic):
            msg = f"topic {topic.name!r} is altered, but not in every chain yet; repeat the call: {errors[0]}"
            raise UnknownOutcomeError(msg) from errors[0]
        return topic

    def _change_authorization(self, command: ChangeAuthorization | ChangeAcls) -> Any:
        """Change the rules in chain 0, then make all other chains follow from them.

        A process that commits to another chain after that has read the change: no clock and no poll is needed. Also if
        nothing has changed, because an earlier attempt may have stopped half way.

        Raises:
            UnknownOutcomeError: The rules have changed, and a chain does not follow from them yet; repeat the call.
        """
        catalog = self._chains[CATALOG]
        answer = catalog.submit(command)
        if is_in_use(catalog.state):
            follow = FollowAuthorization(catalog.state.sequence)
            others = [chain for chain in self._chains if chain is not catalog]
            self._run_in_chains({chain.number: partial(chain.submit, follow) for chain in others}, happened=True)
        return answer

    def _change_objects(self, command: DropObjects | ForgetObjects) -> tuple[str, ...] | None:
        """Split a command on objects by chain, and run the parts; return the keys that were dropped."""
        work = {
            number: partial(self._chains[number].submit, type(command)(keys))
            for number, keys in keys_by_chain(command.keys, len(self._chains)).items()
        }
        answers = self._run_in_chains(work, happened=False)
        if isinstance(command, ForgetObjects):
            return None
        return tuple(key for number in sorted(answers) for key in answers[number])

    def _identify_topics(self, command: C) -> tuple[C, int | None]:
        """Return the command with the topic ids of its offsets, which the chain of a group does not know.

        If the cached state of the catalog's chain refuses them, its head decides.

        Returns:
            The command, and the entry of the catalog's chain that the ids are as of; None: the command has no offsets.

        Raises:
            UnknownTopicOrPartitionError: A partition does not exist, or its topic was created again since it was read.
        """
        offsets = (command.offsets,) if isinstance(command.offsets, TxnOffsets) else command.offsets
        if not offsets:
            return command, None
        catalog = self._chains[CATALOG].state
        try:
            identified = _identify_offsets(catalog, offsets)
        except UnknownTopicOrPartitionError:
            catalog = self._chains[CATALOG].refresh()
            identified = _identify_offsets(catalog, offsets)
        identified_offsets: Any = identified[0] if isinstance(command.offsets, TxnOffsets) else identified
        return replace(command, offsets=identified_offsets), catalog.sequence

    def _run_in_chains(self, work: Mapping[int, Callable[[], T]], *, happened: bool) -> dict[int, T]:
        """Run the work of all chains concurrently, and return the answers.

        Args:
            work: The work of each chain.
            happened: A part of the command is already stored.

        Raises:
            StorageError: All chains failed, and nothing of the command is stored.
            UnknownOutcomeError: Some chains failed, or ``happened`` is set.
            TxnStoreError: Another subclass of it: a chain refused its part; raised before storage errors.
        """
        answers, errors = self._chains.try_concurrently(work)
        refusals = [errors[number] for number in sorted(errors) if not isinstance(errors[number], StorageError)]
        if refusals:
            raise refusals[0]
        for number in sorted(errors):
            raise unknown_if_partial(errors[number], happened=happened or bool(answers)) from errors[number]
        return answers


def _identify_offsets(catalog: State, offsets: tuple[TxnOffsets, ...]) -> tuple[TxnOffsets, ...]:
    """Add the topic ids of the catalog to offsets, and the entry by which they are known."""
    return tuple(
        replace(
            group_offsets,
            offsets=tuple(
                with_catalog_topic_id(catalog, group_offsets.group, offset) for offset in group_offsets.offsets
            ),
            catalog=catalog.sequence,
        )
        for group_offsets in offsets
    )


def _has_added(txn: Transaction, command: Append) -> bool:
    """Whether the open transaction of the producer has all partitions and groups of an append, and is not prepared."""
    return (
        txn.state is TxnState.ONGOING
        and not txn.is_prepared
        and (txn.producer_id, txn.epoch) == (command.producer.producer_id, command.producer.epoch)
        and txn.partitions.issuperset(command.partitions)
        and txn.groups.issuperset(command.groups)
        and all(topic_id in txn.topic_ids.get(name, ()) for name, topic_id in command.topic_ids)
    )
