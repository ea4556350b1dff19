"""Cases of damage, what is done with a damaged store, and how that and its repair are judged."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

import duckdb

from tests.harness.corruption import worlds
from tests.harness.corruption.damages import EFFECTS, KINDS, Damage, apply
from tests.harness.corruption.worlds import READS, World, connected, world
from tests.harness.simulation.parts import reading_parts
from txnstore.compactor import RepairPlan, plan_repairs, repair
from txnstore.errors import CorruptionError, StoreNotFoundError, TxnStoreError
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on

_OBJECT = re.compile(r"(topics/|chains/|store\.json|entries/|checkpoints/|latest)")
#: An object that was given other content on purpose, with a checksum that fits, is not what a repair is for.
_ON_PURPOSE = "seal"


@dataclass(frozen=True)
class Case:
    """One or two damages of a world, drawn by a seed; ``parts``: segments are read by ranges."""

    seed: int
    damages: tuple[Damage, ...]
    world: str
    chains: int
    parts: bool = False

    @property
    def name(self) -> str:
        """What is damaged, without the keys."""
        return " + ".join(map(str, self.damages))

    @property
    def of(self) -> World:
        """The world."""
        return world(self.world, self.chains, self.parts)


@dataclass(frozen=True)
class Finding:
    """A wrong answer, an error that is none of ours or names no object, or a repair that does not keep its word."""

    case: Case
    key: str
    step: str
    what: str

    def __str__(self) -> str:
        return f"seed {self.case.seed} ({self.case.world}, {self.case.chains}): {self.key}: {self.step}: {self.what}"


def cases(count: int, seed: int) -> Iterator[Case]:
    """``count`` cases: all kinds and effects in turn, every third with a second damage; the rest drawn by the seed."""
    for number in range(seed, seed + count):
        rng = random.Random(number)
        damages = [Damage(EFFECTS[number % len(EFFECTS)], KINDS[number // len(EFFECTS) % len(KINDS)])]
        if rng.random() < 1 / 3:
            damages.append(Damage(rng.choice(EFFECTS), rng.choice(KINDS)))
        name = "plain" if damages[0].kind != "boundary" and rng.random() < 1 / 4 else "history"
        yield Case(number, tuple(damages), name, rng.choice([1, 2]), rng.random() < 1 / 4)


def run_case(case: Case) -> list[Finding]:
    """Damage a copy of a store, use it, repair another copy, use that, and return what is wrong."""
    key, objects = apply(case.damages, case.of, random.Random(f"{case.seed} damage"))
    with reading_parts(case.parts):
        findings = _Findings(case, key)
        readable = _used(findings, case.of.bucket(objects))
        if all(damage.effect != _ON_PURPOSE for damage in case.damages):
            _repaired(findings, case.of.bucket(objects), readable=readable)
        return findings.findings


class _Findings:
    """The findings of a case."""

    def __init__(self, case: Case, key: str) -> None:
        self.case, self.key, self.findings = case, key, list[Finding]()
        #: A scan and one of the other readers, in turn: each takes longer than all else.
        self.reads = sorted({"scan", list(READS)[case.seed % len(READS)]})

    def note(self, step: str, problem: str) -> None:
        """Something is wrong."""
        self.findings.append(Finding(self.case, self.key, step, problem))

    def named(self, error: TxnStoreError, step: str) -> None:
        """An error of ours is right if it names an object."""
        if not isinstance(error, StoreNotFoundError) and not _OBJECT.search(str(error)):
            self.note(step, f"no object is named: {error!r}")


# As it is -------------------------------------------------------------------------------------------------------------


def _used(findings: _Findings, bucket: MemoryStore) -> bool:
    """Open the store, and read it; whether all readers have returned the whole answer."""
    try:
        store = open_on(bucket, runtime=findings.case.of.runtime())
    except TxnStoreError as error:
        findings.named(error, "open")
        return False
    except Exception as error:  # noqa: BLE001 - reported
        findings.note("open", f"{error!r}"[:300])
        return False
    with store:
        readable = _read_all(findings, store, "")
        if not readable and not _verified(findings, store, "verify"):
            findings.note("verify", "finds nothing, and a reader failed")
        if findings.case.seed % 3 == 0:
            _compact(findings, store)
            _read(findings, store, "scan", " after compaction")
        return readable


def _read_all(findings: _Findings, store: Store, when: str) -> bool:
    """Whether each reader of the case returned the whole answer; all of them read."""
    return False not in [_read(findings, store, name, when) for name in findings.reads]


def _read(findings: _Findings, store: Store, name: str, when: str) -> bool:
    """Whether a reader returned the whole answer."""
    try:
        answer = READS[name](store)
    except TxnStoreError as error:
        findings.named(error, name + when)
    except duckdb.Error as error:  # A relation is evaluated outside of the store's methods.
        if not _OBJECT.search(str(error)):
            findings.note(name + when, f"no object is named: {str(error)[:200]}")
    except Exception as error:  # noqa: BLE001 - reported
        findings.note(name + when, f"{error!r}"[:300])
    else:
        if answer == findings.case.of.answers[name]:
            return True
        findings.note(name + when, "a wrong answer in silence")
    return False


def _verified(findings: _Findings, store: Store, step: str) -> list[str]:
    """The subjects of the violations that a deep verification finds."""
    try:
        return [item.subject.partition("#")[0] for item in store.verify(deep=True).violations]
    except CorruptionError as error:
        return [str(error)]
    except Exception as error:  # noqa: BLE001 - reported
        findings.note(step, f"{error!r}"[:300])
        return [""]


def _compact(findings: _Findings, store: Store) -> None:
    try:
        store.compact()
        store.vacuum()
    except TxnStoreError as error:
        findings.named(error, "compact")
    except Exception as error:  # noqa: BLE001 - reported
        findings.note("compact", f"{error!r}"[:300])


# Repaired -------------------------------------------------------------------------------------------------------------


def _repaired(findings: _Findings, bucket: MemoryStore, *, readable: bool) -> None:
    """Repair the store. Then it opens and is sound, or each object that is missed was named before.

    ``readable``: whether it opens, and is read, as it is.
    """
    of = findings.case.of
    try:
        plan = plan_repairs(connected(bucket, of), deep=True)
        repair(connected(bucket, of), plan)
    except TxnStoreError as error:
        findings.named(error, "recover")
        return
    except Exception as error:  # noqa: BLE001 - reported
        findings.note("recover", f"{error!r}"[:300])
        return
    if plan.repairs:
        _judge(findings, bucket, plan)
    elif not plan.lost and not readable:  # All that a verification finds is in the plan.
        findings.note("recover", "nothing is lost, and a reader fails")


def _judge(findings: _Findings, bucket: MemoryStore, plan: RepairPlan) -> None:
    """Compare a repaired store with what its plan has said."""
    of, named = findings.case.of, _named_by(plan)
    again = plan_repairs(connected(bucket, of))
    if again.repairs:
        findings.note("recover", f"is not done: {[(item.key, item.damage) for item in again.repairs]}"[:500])
    try:
        store = open_on(bucket, runtime=of.runtime())
    except TxnStoreError as error:
        if plan.opens:
            findings.note("open after recover", f"{error!r}, and {sorted(named)} were named"[:500])
        return
    with store:
        if not plan.opens:
            return  # A gap of more entries than an open looks at: it must not be written to, as the plan has said.
        subjects = _verified(findings, store, "verify after recover")
        if wrong := [key for key in subjects if key not in named]:
            findings.note("verify after recover", f"{wrong[:4]}, and {sorted(named)[:4]} were named"[:500])
        if not plan.lost and not _read_all(findings, store, " after recover"):
            findings.note("recover", "nothing is lost, and then a reader fails")


def _named_by(plan: RepairPlan) -> set[str]:
    """The objects of which a plan says that they are lost."""
    return {item.key for item in (*plan.lost, *plan.past)}


__all__ = ["EFFECTS", "KINDS", "Case", "Finding", "cases", "run_case", "worlds"]
