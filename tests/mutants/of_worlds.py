"""Faults of other catalogues for the simulation, in runs that have more of what shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.harness.simulation import Mishap
from tests.harness.simulation.settings import FOLLOWERS, OPERATORS, PASSERS, TENANTS
from tests.mutants.mutant import Mutant
from tests.mutants.of_groups import GROUPS
from tests.mutants.of_heads import HEADS
from tests.mutants.of_identity import IDENTITY
from txnstore.chain.checkpoints.saver import Saver
from txnstore.chain.loading import Loader

_HOLES: Mapping[str, Any] = {"hidden": 0.3, "jumps": 0.0}
_READERS = {"actors": ("producer:a/1", "plain:p/1", "committed:r/1", "scan:s/1"), "operations": 6, "pace_ms": 5_000}
_INTERRUPTS = {"actors": ("producer:a/1", "producer:b/1", "plain:p/1"), "interrupts": 0.3, "operations": 6}
_SITE = {"actors": TENANTS, "operations": 6, "pace_ms": 200}
_TOPICS = tuple(name for name in PASSERS if name.startswith("topics:"))
_FOLLOWED = {
    "actors": (*_TOPICS, *FOLLOWERS, "follow:f/3", "follow:f/4"),
    "operations": 10,
    "pace_ms": 5_000,
    "mishaps": (Mishap.SLOW,),
    "rate": 0.05,
}

#: Vacuums without other actors that stop them, and files that are misplaced for longer than their grace period.
_OPERATED = {"actors": ("producer:a/1", "tidy:t/1", "tidy:t/2", "tidy:t/3", *OPERATORS), "operations": 12}

_OTHERS = {mutant.name: mutant for mutant in (*HEADS, *IDENTITY, *GROUPS)}


def _simulated(
    name: str, settings: Mapping[str, Any], mishaps: tuple[Mishap, ...] | None = (), chains: int = 1
) -> Mutant:
    return replace(
        _OTHERS[name], name=f"{name} (simulated)", test=None, chains=chains, mishaps=mishaps, settings=settings
    )


WORLDS = (
    _simulated("the first name without an entry is the end of a chain", {**_READERS, **_HOLES}),
    _simulated("a head that was read long ago is trusted", {**_READERS, **_HOLES}),
    _simulated("a refused repetition decides an interrupted create", _INTERRUPTS, (Mishap.BUSY,)),
    _simulated("a store that was open once exists for all time", _SITE),
    _simulated("a commit that succeeds shows that the store exists", _SITE),
    _simulated("a reader does not look whether the store exists", _SITE),
    _simulated("any store.json is that of the open store", _SITE),
    _simulated("an offset of a recreated topic is committed", _FOLLOWED, None, chains=3),
    _simulated("an offset that was checked in an old catalog is committed", _FOLLOWED, None, chains=3),
    _simulated("the first offset of a topic does not follow from the catalog", _FOLLOWED, None, chains=3),
    _simulated("a store is created over what is left of another one", _OPERATED),
    _simulated("a vacuum deletes what another store names", _OPERATED),
    _simulated("a process believes the hint of another store", _OPERATED),
    Mutant(
        "a missing checkpoint leaves the entries after it",
        Loader.first,
        "$saved, $window = self._newest() or $saved, None",
        "$saved = self._newest() or $saved",
        settings={"checkpoint_every": 8, "hidden": 0.3, "jumps": 0.0},
    ),
    Mutant(
        "the head of a checkpoint is written before its index",
        Saver._save,
        "in checkpoint.encoded(self._keys, self._number, $ends, $state, $stored):",
        "in [*checkpoint.encoded(self._keys, self._number, $ends, $state, $stored)][::-1]:",
        settings={"checkpoint_every": 8},
    ),
    Mutant(
        "the hint is written before the checkpoint that it names",
        Saver._save,
        "in checkpoint.encoded(self._keys, self._number, $ends, $state, $stored):",
        "in [checkpoint.hint_to(self._number, $state.sequence), "
        "*checkpoint.encoded(self._keys, self._number, $ends, $state, $stored)]:",
        settings={"checkpoint_every": 8},
    ),
)
