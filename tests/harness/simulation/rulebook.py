"""What the rules of the store were at each moment, and whether everything that was written or refused fits them.

An entry of chain 0 is judged by the rules before each of its events. An entry of another chain is decided by one state
of chain 0: one that its writer could know, and not one before what the chain follows from, or before a change whose
administrator had its answer. A refusal counts only if the rules gave cause for it between the call and its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain as concatenated
from itertools import groupby
from typing import Any, cast

from tests.harness.simulation.storage import Bucket
from tests.helpers import keys
from tests.helpers.rights import ACTION, ALTER, CHANGES, Need, Rules, named, needs
from txnstore.chain.chain import Chain
from txnstore.chain.codec import Entry
from txnstore.chain.keys import boundary_number, checkpoint_sequence
from txnstore.chain.payload import decode_entry
from txnstore.connection import Connection
from txnstore.core.authorization.model import ANONYMOUS, CLUSTER, Acl, Operation, ResourceType
from txnstore.core.events import Event
from txnstore.core.evolve import evolve
from txnstore.core.model import NO_FEATURES
from txnstore.core.routing import CATALOG
from txnstore.core.state import Observed, begin_entry, first_state
from txnstore.errors import (
    AuthorizationError,
    ClusterAuthorizationError,
    GroupAuthorizationError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
)

#: A super user, as long as rules are checked: who creates the store, and looks at it in the end.
ROOT = "User:root"
#: The principals of all other processes than those of administrators.
USERS = ("User:a", "User:b", "User:c")
TYPES: tuple[ResourceType, ...] = ("TOPIC", "GROUP", "TRANSACTIONAL_ID", "CLUSTER")
_TYPE_OF: Mapping[type[AuthorizationError], ResourceType] = {
    TopicAuthorizationError: "TOPIC",
    GroupAuthorizationError: "GROUP",
    TransactionalIdAuthorizationError: "TRANSACTIONAL_ID",
    ClusterAuthorizationError: "CLUSTER",
}


def everything() -> list[Acl]:
    """The rules that allow each user everything."""
    names = {kind: CLUSTER if kind == "CLUSTER" else "*" for kind in TYPES}
    return [Acl(user, "ALLOW", "ALL", kind, name) for user in USERS for kind, name in names.items()]


@dataclass(frozen=True, slots=True)
class Version:
    """The rules after an entry of chain 0, from a moment on."""

    at: int
    sequence: int
    rules: Rules


class Rulebook:
    """The versions of the rules, in the order of time, and what the other chains follow from.

    Args:
        bucket: The bucket of the run.
        anomalies: Gets what contradicts the rules at once; :meth:`strange_entries` has the rest.
    """

    def __init__(self, bucket: Bucket, anomalies: list[str]) -> None:
        self._bucket = bucket
        self._anomalies = anomalies
        self._versions = [Version(0, 0, Rules())]
        #: The rules after each entry of chain 0, without what a loss of power has taken back.
        self._after = {0: Rules()}
        #: The entry of chain 0 that each entry of another chain follows from.
        self._seen: dict[tuple[int, int], int] = {}
        #: The entries of chain 0 whose changes an administrator got the answer to, with the time of that.
        self._acknowledged: list[tuple[int, int]] = []
        #: The writers of the entries of chain 0 that change the rules.
        self._changes: dict[int, str] = {}
        bucket.entered, bucket.receded = self._entered, self._receded

    # What happens -----------------------------------------------------------------------------------------------------

    def _entered(self, key: str, data: bytes) -> None:
        chain, sequence = keys.chain_number(key) or 0, keys.entry_sequence(key) or 0
        entry = decode_entry(key, data)
        if chain == CATALOG:
            changes = [event for event in entry.events if isinstance(event, CHANGES)]
            if changes:
                self._changes[sequence] = entry.writer_id
            rules = self._after[sequence] = self._after[sequence - 1].after(changes)
            self._versions.append(Version(self._bucket.now_ms(), sequence, rules))
        else:
            observed = [each.sequence for each in entry.events if isinstance(each, Observed) and each.chain == CATALOG]
            self._seen[chain, sequence] = max([self.seen(chain, sequence - 1), *observed])

    def _receded(self) -> None:
        """A loss of power has taken entries back."""
        head = self._bucket.heads.get(CATALOG, 0)
        self._after = {sequence: rules for sequence, rules in self._after.items() if sequence <= head}
        self._changes = {sequence: writer for sequence, writer in self._changes.items() if sequence <= head}
        self._versions.append(Version(self._bucket.now_ms(), head, self._after[head]))

    def acknowledged(self, writer_id: str, before: int) -> None:
        """An administrator gets the answer to a change; ``before``: the entry of chain 0 that he knew when he asked."""
        own = [sequence for sequence, writer in self._changes.items() if writer == writer_id]
        self._acknowledged.append((self._bucket.now_ms(), max([before, *own])))

    def wrote(self, principal: str, began: int, key: str) -> None:
        """A process writes an object: those that readers believe are written by maintainers only (CLUSTER_ACTION)."""
        sequence, chain = checkpoint_sequence(key), keys.chain_number(key)
        if sequence is None and boundary_number(key) is None and not key.startswith(keys.HINTS):
            return
        least = 0
        if sequence is not None and chain is not None:
            least = sequence if chain == CATALOG else self.seen(chain, sequence)
        versions = list(self._from(least)) if sequence is not None else self._during(began)
        if not any(version.rules.have(principal, (ACTION,)) for version in versions):
            self._anomalies.append(f"not-allowed: {principal} writes {key}")

    def refused(self, principal: str, error: AuthorizationError, since: int) -> None:
        """A call is answered with a refusal."""
        kind, operation = _TYPE_OF[type(error)], cast("Operation", error.operation)
        for version in self._during(since):
            if not any(version.rules.allow(principal, operation, kind, name) for name in error.resources):
                return
        self._anomalies.append(f"refused-without-cause: since {since}: {error}")

    def may_read(self, principal: str, topics: Iterable[str], since: int) -> None:
        """A process has read all of these topics in a call that began at ``since``."""
        wanted: list[Need] = [(("READ", "TOPIC", topic),) for topic in topics]
        if not any(all(version.rules.have(principal, need) for need in wanted) for version in self._during(since)):
            self._anomalies.append(f"read-without-right: {principal} read {[*topics]}")

    def now(self) -> int:
        """The time of the storage."""
        return self._bucket.now_ms()

    def seen(self, chain: int, sequence: int) -> int:
        """The entry of chain 0 that another chain follows from after an entry of its own."""
        return self._seen.get((chain, sequence), 0)

    def _during(self, since: int) -> Iterator[Version]:
        """The versions that were in force at some time from ``since`` until now."""
        for place, version in enumerate(self._versions):
            if place + 1 == len(self._versions) or self._versions[place + 1].at >= since:
                yield version

    def _from(self, least: int, until: int | None = None) -> Iterator[Version]:
        """The versions with at least so many entries of chain 0, that existed until a time."""
        for version in self._versions:
            if version.sequence >= least and (until is None or version.at <= until):
                yield version

    # What is left -----------------------------------------------------------------------------------------------------

    def strange_entries(self, chains: int) -> Iterator[str]:
        """The events to which no principal, or not the one that asked for them, had the right."""
        names: dict[int, str] = {}
        entries = {chain: list(_entries(self._bucket.archive, chain)) for chain in range(chains)}
        for _, entry in concatenated.from_iterable(entries.values()):
            for event in entry.events:
                named(names, event)
        for chain, keyed in entries.items():
            state = first_state(chain, chains)
            for key, entry in keyed:
                state = begin_entry(state, entry.timestamp, entry.requires or NO_FEATURES)
                wanted: list[tuple[Event, list[Need]]] = []
                for event in entry.events:
                    wanted.append((event, needs(state, event, names)))
                    state = evolve(state, event)
                yield from self._strange(key, chain, entry, wanted)

    def _strange(self, key: str, chain: int, entry: Entry, wanted: list[tuple[Event, list[Need]]]) -> Iterator[str]:
        who = entry.principals
        if who is not None and sum(count for _, count in who) != len(entry.events):
            yield f"not-everyone-named: {key} has {len(entry.events)} events of {who}"
            return
        askers = [name for name, count in who or [(ANONYMOUS, len(entry.events))] for _ in range(count)]
        if chain == CATALOG:
            yield from self._strange_here(key, entry.sequence, askers, wanted)
            return
        created = self._bucket.created[key]
        least = max([self.seen(chain, entry.sequence - 1), *(to for at, to in self._acknowledged if at < created)])
        versions = list(self._from(least, created))
        if not versions:
            yield f"ahead-of-chain-0: {key} follows from entry {least}"
        for version in versions:
            if (who is None) <= (version.rules.mode == "off") and not list(_lacking(version.rules, askers, wanted)):
                return
        lacking = list(_lacking(versions[-1].rules, askers, wanted)) if versions else []
        yield f"not-allowed: {key} of {who}, by no rules from entry {least} on, such as {lacking[:1]}"

    def _strange_here(
        self, key: str, sequence: int, askers: list[str], wanted: list[tuple[Event, list[Need]]]
    ) -> Iterator[str]:
        """What is wrong in an entry of chain 0. Several changes of one command need the right before the first one."""
        rules, place = self._after[sequence - 1], 0
        for is_change, run in groupby(wanted, lambda item: isinstance(item[0], CHANGES)):
            together = list(run)
            judged = together[:1] if is_change else together
            for lacking in _lacking(rules, askers[place:], judged):
                yield f"not-allowed: {key}: {lacking}"
            place += len(together)
            rules = rules.after(event for event, _ in together)
            if is_change and not rules.have(askers[place - 1], (ALTER,)):
                yield f"locked-out: {askers[place - 1]} by {key}"


def _lacking(rules: Rules, askers: list[str], wanted: list[tuple[Event, list[Need]]]) -> Iterator[str]:
    for who, (event, rights) in zip(askers, wanted, strict=False):
        for need in rights:
            if not rules.have(who, need):
                yield f"{who} has no {need} for {type(event).__name__}"


def _entries(archive: Mapping[str, bytes], chain: int) -> Iterator[tuple[str, Entry]]:
    for key in sorted(archive):
        if key.startswith(keys.entries(chain)):
            yield key, decode_entry(key, archive[key])


@contextmanager
def refusals_judged(rulebook: Rulebook | None) -> Iterator[None]:
    """Inside the block, each refusal for a missing right is judged: there must be a cause for it during the call."""
    if rulebook is None:
        yield
        return
    calls = ((Chain, "_commit_in_round"), (Chain, "checkpoint"), (Connection, "check_rights"))
    before = [getattr(kind, name) for kind, name in calls]
    for (kind, name), call in zip(calls, before, strict=True):
        setattr(kind, name, _judged(call, rulebook))
    try:
        yield
    finally:
        for (kind, name), call in zip(calls, before, strict=True):
            setattr(kind, name, call)


def _judged(call: Callable[..., Any], rulebook: Rulebook) -> Callable[..., Any]:
    def judged(self: Any, *args: Any, **kwargs: Any) -> Any:
        since = rulebook.now()
        try:
            return call(self, *args, **kwargs)
        except AuthorizationError as error:
            rulebook.refused(error.principal, error, since)
            raise

    return judged
