"""Cases of damage, what is done with a damaged store, and how that and its repair are judged."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.harness.corruption.buckets import Bucket, reachable
from tests.harness.corruption.damages import EFFECTS, KINDS, Damage, apply
from tests.harness.corruption.readers import Note, check_keys, guarded, maintain
from tests.harness.corruption.worlds import ANSWERS, World, connected, world
from tests.harness.simulation.parts import reading_parts
from txnstore.compactor import RepairPlan, plan_repairs, repair
from txnstore.errors import CorruptionError, TxnStoreError
from txnstore.store import Store, open_on

#: An object that was given other content on purpose, with a checksum that fits, is not what a repair is for.
_ON_PURPOSE = "seal"


@dataclass(frozen=True)
class DamagedCase:
    """One or two damages of a world, drawn by a seed; ``parts``: segments are read by ranges."""

    seed: int
    damages: tuple[Damage, ...]
    world: str
    chains: int
    parts: bool = False

    def __str__(self) -> str:
        return " + ".join(map(str, self.damages))

    @property
    def group(self) -> str:
        """With which cases it is counted."""
        return self.damages[0].effect

    @property
    def contents(self) -> list[tuple[str, str]]:
        """What is done, and with which kinds of objects."""
        return [(damage.effect, damage.kind) for damage in self.damages]

    @property
    def of(self) -> World:
        """The world."""
        return world(self.world, self.chains, self.parts)

    @property
    def reads(self) -> list[str]:
        """A scan and one of the other readers, in turn: each takes longer than all else."""
        return sorted({"scan", list(ANSWERS)[self.seed % len(ANSWERS)]})

    def run(self, note: Note) -> str:
        """Damage a copy of a store, use it, repair another copy, use that; returns what was damaged."""
        damaged, objects = apply(self.damages, self.of, random.Random(f"{self.seed} damage"))
        with reading_parts(self.parts):
            with reachable(self.of.bucket(objects, f"damaged-{self.seed}")) as bucket:
                readable = _used(self, bucket, note)
                check_keys(bucket, note)
            if all(damage.effect != _ON_PURPOSE for damage in self.damages):
                with reachable(self.of.bucket(objects, f"repaired-{self.seed}")) as bucket:
                    _repaired(self, bucket, note, readable=readable)
                    check_keys(bucket, note)
        return f"{damaged} ({self.world}, {self.chains})"


def damaged_case(number: int) -> DamagedCase:
    """The case of a seed: all kinds and effects in turn, every third with a second damage; the rest is drawn."""
    rng = random.Random(number)
    damages = [Damage(EFFECTS[number % len(EFFECTS)], KINDS[number // len(EFFECTS) % len(KINDS)])]
    if rng.random() < 1 / 3:
        damages.append(Damage(rng.choice(EFFECTS), rng.choice(KINDS)))
    name = "plain" if damages[0].kind != "boundary" and rng.random() < 1 / 4 else "history"
    return DamagedCase(number, tuple(damages), name, rng.choice([1, 2]), rng.random() < 1 / 4)


# As it is -------------------------------------------------------------------------------------------------------------


def _used(case: DamagedCase, bucket: Bucket, note: Note) -> bool:
    """Open the store, and read it; whether all readers have returned the whole answer."""
    store = guarded("open", lambda: open_on(bucket, runtime=case.of.runtime()), note, strict=True)
    if store is None:
        return False
    with store:
        readable = _read_all(case, store, "", note)
        if not readable and not _verified(store, "verify", note):
            note("verify", "finds nothing, and a reader failed")
        if case.seed % 3 == 0:
            maintain(store, note, strict=True)
            _read(case, store, "scan", " after compaction", note)
        return readable


def _read_all(case: DamagedCase, store: Store, when: str, note: Note) -> bool:
    """Whether each reader of the case returned the whole answer; all of them read."""
    return False not in [_read(case, store, name, when, note) for name in case.reads]


def _read(case: DamagedCase, store: Store, name: str, when: str, note: Note) -> bool:
    """Whether a reader returned the whole answer."""
    answer = guarded(name + when, lambda: ANSWERS[name](store), note, strict=True)
    if answer is None:
        return False
    if answer == case.of.answers[name]:
        return True
    note(name + when, "a wrong answer in silence")
    return False


def _verified(store: Store, step: str, note: Note) -> list[str]:
    """The subjects of the violations that a deep verification finds."""
    try:
        return [item.subject.partition("#")[0] for item in store.verify(deep=True).violations]
    except CorruptionError as error:
        return [str(error)]
    except Exception as error:  # noqa: BLE001 - reported
        note(step, f"{error!r}"[:300])
        return [""]


# Repaired -------------------------------------------------------------------------------------------------------------


def _repaired(case: DamagedCase, bucket: Bucket, note: Note, *, readable: bool) -> None:
    """Repair the store. Then it opens and is sound, or each object that is missed was named before.

    ``readable``: whether it opens, and is read, as it is.
    """

    def repaired() -> RepairPlan:
        plan = plan_repairs(connected(bucket, case.of), deep=True)
        repair(connected(bucket, case.of), plan)
        return plan

    plan = guarded("recover", repaired, note, strict=True)
    if plan is None:
        return
    if plan.repairs:
        _judge(case, bucket, plan, note)
    elif not plan.lost and not readable:  # All that a verification finds is in the plan.
        note("recover", "nothing is lost, and a reader fails")


def _judge(case: DamagedCase, bucket: Bucket, plan: RepairPlan, note: Note) -> None:
    """Compare a repaired store with what its plan has said."""
    named = {item.key for item in (*plan.lost, *plan.past)}
    again = plan_repairs(connected(bucket, case.of))
    if again.repairs:
        note("recover", f"is not done: {[(item.key, item.damage) for item in again.repairs]}"[:500])
    try:
        store = open_on(bucket, runtime=case.of.runtime())
    except TxnStoreError as error:
        if plan.opens:
            note("open after recover", f"{error!r}, and {sorted(named)} were named"[:500])
        return
    with store:
        if not plan.opens:
            return  # A gap of more entries than an open looks at: it must not be written to, as the plan has said.
        subjects = _verified(store, "verify after recover", note)
        if wrong := [key for key in subjects if key not in named]:
            note("verify after recover", f"{wrong[:4]}, and {sorted(named)[:4]} were named"[:500])
        if not plan.lost and not _read_all(case, store, " after recover", note):
            note("recover", "nothing is lost, and then a reader fails")
