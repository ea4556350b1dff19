"""The settings of a run, drawn from its seed: actors, number of operations, faults."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from tests.harness.simulation.storage import COMMON, Mishap
from txnstore.chain.context import CHECKPOINT_EVERY

#: All actors, ``kind:name/instance``. Two producers of one id fence each other, as do the two copies.
#: The members of a group share only that group. The threads are two producers of one process.
EVERYBODY = (
    "producer:a/1",
    "producer:b/1",
    "producer:a/2",
    "plain:p/1",
    "threads:q/1",
    "copy:c/1",
    "copy:c/2",
    "member:m/1",
    "member:n/1",
    "committed:r/1",
    "uncommitted:u/1",
    "scan:s/1",
    "tidy:t/1",
    "recover:x/1",
)
#: They delete a topic and create it again, write to it, and take a chain away; half of the runs contain all of them.
#: They are drawn separately, so a seed without them gives the same run as before they were introduced.
PASSERS = (
    "topics:z/1",
    "topics:z/2",
    "passing:y/1",
    "passing:y/2",
    "stray:v/1",
    "stray:v/2",
    "away:w/1",
    "late:y/3",
    "late:l/1",
)
#: They commit offsets of the topic that is deleted and created again, in a part of the runs of those above.
FOLLOWERS = ("follow:f/1", "follow:f/2")
#: They use a second store, which is deleted and created again at its URL.
TENANTS = ("replace:d/1", "tenant:e/1", "tenant:e/2")
#: They write to a topic that is cleaned by key, and clean it.
CLEANERS = ("keys:i/1", "keys:j/1", "clean:g/1", "clean:g/2")
#: They delete records, up to an offset and by retention.
SHORTENERS = ("shorten:o/1", "shorten:o/2")
#: They compact round after round, and share the partitions by leases.
SHARERS = ("share:h/1", "share:h/2", "share:h/3")
#: They delete the history of the chains, and sleep meanwhile.
FORGETTERS = ("forget:k/1", "forget:k/2", "nap:k/3", "nap:k/4", "napscan:k/5")
#: It loses objects in the middle of what is numbered, and puts them back.
LOSERS = ("lose:b/1",)
#: It restores the wrong files, and creates a store over the remains of one.
OPERATORS = ("operate:p/1",)
#: They flush batches of many partitions, which share segments.
SPREADERS = ("spread:s/2", "spread:s/3")
#: They change the rules of the store, which all processes are checked by.
ADMINISTRATORS = ("admin:x/1", "admin:x/2")
#: They publish topics as tables, and read these as engines do.
PUBLISHERS = ("publish:t/2", "publish:t/3", "engine:e/3", "engine:e/4")
#: They alter topics while compactors plan.
ALTERERS = ("widen:v/2", "widen:v/3", "govern:n/2")
#: They coordinate one classic group, both at the same time.
GATEWAYS = ("gateway:q/2", "gateway:q/3")
#: Actors that keep answers and copies outside of the chains: operators that repeat calls, a backup, a streaming query.
KEEPERS = ("repeat:o/3", "repeat:o/4", "backup:b/3", "query:q/4")
#: Clients of transactions v1, two of them of one id.
SESSIONS = ("session:v1/1", "session:v1/2", "session:v2/1")
#: The world of gateways: their processes, and their clients: members of two groups, producers of two ids. The first
#: group is of one kind; members of all kinds compete for the second one.
NODES = ("node:g/1", "node:g/2")
CLIENTS = (
    "classic:c/1",
    "classic:c/2",
    "classic:c/3",
    "epochs:k/1",
    "epochs:k/2",
    "epochs:k/3",
    "classic:m/1",
    "epochs:m/2",
    "native:m/3",
    "wire:w1/1",
    "wire:w1/2",
    "wire:w2/1",
)
#: Actors that are in a share of the runs, drawn by this name.
_CROWDS = (
    ("tenants", 0.15, TENANTS),
    ("cleaners", 0.2, CLEANERS),
    ("shorteners", 0.3, SHORTENERS),
    ("rounds", 0.2, SHARERS),
    ("forgetters", 0.25, FORGETTERS),
    ("losers", 0.25, LOSERS),
    ("operators", 0.15, OPERATORS),
    ("spreaders", 0.4, SPREADERS),
    ("administrators", 0.3, ADMINISTRATORS),
    ("gateways", 0.3, GATEWAYS),
    ("sessions", 0.3, SESSIONS),
    ("publishers", 0.25, PUBLISHERS),
    ("keepers", 0.12, KEEPERS),
)
#: The actors of every run; each of the others is in most runs.
_ALWAYS = 2
#: The numbers of chains that seeds choose from.
_CHAINS = (1, 1, 2, 3, 8)
_SOME = (Mishap.LOST, Mishap.LATE, Mishap.OUTAGE, Mishap.PAUSE, Mishap.CRASH)


@dataclass(frozen=True, slots=True)
class Settings:
    """The ingredients of a run. ``operations``: what each actor does. ``rate``: the share of requests that go wrong.

    ``pace_ms``: how long an actor waits between two operations at most; a small one makes them meet more often.
    ``skew_ms``: how far clocks may be off at most; ``jumps``: the share of looks at a clock at which it jumps. ``far``:
    the share of processes whose clock is a year ahead, some days ahead, or some hours behind. ``hidden``: the share of
    GETs that do not find an entry that exists, where the chain must notice it. ``interrupts``: the share of creates
    that Ctrl-C interrupts. ``checkpoint_every``: the number of entries after which a process writes a checkpoint.
    ``parts``: whether small segments are read by parts, as large ones are. ``lease_ms``: how long a process trusts its
    look at the boundary of a chain; 0: as long as it does outside of the simulation. ``inline``: whether small commits
    are inlined, or their segments are objects. ``syncs``: the share of writes whose sync fails. ``losses``:
    how often the power is lost at most, each time after such a write. ``old_hints``: the share of GETs of a hint that
    return an earlier version. ``elsewhere``: the share of creates that something else answers, ten times that of GETs.
    ``machines``: on how many machines processes share entries; 0: no two share them. ``network``: whether the machines
    are connected. ``cuts``: the share of messages between processes with which something happens.
    ``closes``: the share of processes that close the store in the end.
    """

    seed: int
    chains: int = 1
    actors: tuple[str, ...] = EVERYBODY
    operations: int = 6
    pace_ms: int = 500
    partitions: int = 2
    mishaps: tuple[Mishap, ...] = COMMON
    rate: float = 0.05
    skew_ms: int = 5_000
    jumps: float = 0.01
    far: float = 0.0
    hidden: float = 0.0
    interrupts: float = 0.0
    checkpoint_every: int = CHECKPOINT_EVERY
    parts: bool = False
    lease_ms: int = 0
    inline: bool = True
    syncs: float = 0.0
    losses: int = 0
    old_hints: float = 0.0
    elsewhere: float = 0.0
    machines: int = 0
    network: bool = False
    cuts: float = 0.0
    closes: float = 0.0

    def to_json(self) -> str:
        """As one line, to be replayed by hand."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The settings that :meth:`to_json` gave."""
        fields: dict[str, Any] = json.loads(text)
        fields["actors"] = tuple(fields["actors"])
        fields["mishaps"] = tuple(map(Mishap, fields["mishaps"]))
        return cls(**fields)


def settings_of(seed: int, chains: int | None = None) -> Settings:
    """The settings that a seed stands for; ``chains`` None: a number of chains that comes from the seed, too."""
    rng = random.Random(f"settings/{seed}")
    drawn = rng.choice(_CHAINS)
    actors = [actor for place, actor in enumerate(EVERYBODY) if place < _ALWAYS or rng.random() < 0.55]
    drawn_apart = random.Random(f"passers/{seed}")
    if drawn_apart.random() < 0.5:
        actors += [actor for actor in PASSERS if actor.startswith("topics:") or drawn_apart.random() < 0.8]
        if random.Random(f"followers/{seed}").random() < 0.4:
            actors += FOLLOWERS
    for name, share, crowd in _CROWDS:
        if random.Random(f"{name}/{seed}").random() < share:
            actors += crowd
    forgets = FORGETTERS[0] in actors
    mishaps: tuple[Mishap, ...] = rng.choice(((), COMMON, COMMON, _SOME, (rng.choice(COMMON),)))
    settings = Settings(
        seed=seed,
        chains=drawn if chains is None else chains,
        actors=tuple(actors),
        operations=rng.choice((2, 4, 6)),
        pace_ms=rng.choice((20, 200, 5_000)),
        partitions=rng.choice((1, 2, 3)),
        mishaps=mishaps,
        rate=rng.choice((0.02, 0.05, 0.1)) if mishaps else 0.0,
        skew_ms=rng.choice((0, 5_000, 100_000)),
        jumps=rng.choice((0.0, 0.0, 0.02)),
        far=random.Random(f"far/{seed}").choice((0.0, 0.0, 0.3)),
        interrupts=random.Random(f"interrupts/{seed}").choice((0.0, 0.0, 0.05)),
        checkpoint_every=random.Random(f"checkpoints/{seed}").choice((CHECKPOINT_EVERY, CHECKPOINT_EVERY, 8)),
        parts=random.Random(f"parts/{seed}").random() < 0.15,
        lease_ms=random.Random(f"leases/{seed}").choice((10_000, 60_000)) if forgets else 0,
        inline=random.Random(f"inline/{seed}").random() < 0.7,
        syncs=random.Random(f"syncs/{seed}").choice((0.0, 0.0, 0.02, 0.1)),
        losses=random.Random(f"losses/{seed}").choice((0, 1, 2)),
        old_hints=random.Random(f"old hints/{seed}").choice((0.0, 0.0, 0.3)),
        elsewhere=random.Random(f"elsewhere/{seed}").choice((0.0, 0.0, 0.0, 0.03)),
        closes=random.Random(f"closes/{seed}").choice((0.0, 0.0, 0.8)),
    )
    # A clock that is set back by the length of a pause hides the pause.
    hidden = random.Random(f"hidden/{seed}").choice((0.0, 0.0, 0.1)) if not settings.jumps else 0.0
    return replace(settings, hidden=hidden)


def under_rules(settings: Settings) -> Settings:
    """The same with administrators."""
    others = tuple(actor for actor in settings.actors if actor not in ADMINISTRATORS)
    return replace(settings, actors=(*others, *ADMINISTRATORS))


def with_tables(settings: Settings) -> Settings:
    """The same with publishers."""
    others = tuple(actor for actor in settings.actors if actor not in PUBLISHERS)
    return replace(settings, actors=(*others, *PUBLISHERS))


def with_alterations(settings: Settings) -> Settings:
    """The same with topics that are altered, and enough compactors."""
    others = tuple(actor for actor in settings.actors if actor not in (*ALTERERS, *SHARERS))
    return replace(settings, actors=(*others, *SHARERS, *ALTERERS))


def with_committers(settings: Settings) -> Settings:
    """The same on machines whose processes share entries, at a pace at which they meet."""
    rng = random.Random(f"committers/{settings.seed}")
    kinds = ("producer", "plain", "threads", "copy", "member")
    actors = [actor for actor in EVERYBODY if actor.partition(":")[0] in kinds]
    for _, _, crowd in _CROWDS:
        if crowd[0] in settings.actors and rng.random() < 0.4:
            actors += crowd
    machines = rng.choice((1, 1, 2))
    network = random.Random(f"network/{settings.seed}").choice((False, False, True))
    return replace(
        settings,
        actors=tuple(actors),
        machines=machines + network,
        network=network,
        cuts=rng.choice((0.0, 0.01, 0.05)),
        pace_ms=rng.choice((20, 20, 200)),
        chains=rng.choice((1, 1, settings.chains)),
        operations=rng.choice((4, 6, 8)),
    )


def with_power_cuts(settings: Settings) -> Settings:
    """The same with keepers on a disk that often fails to sync, and with few others, who would sync for them."""
    rng = random.Random(f"power cuts/{settings.seed}")
    kinds = ("producer", "plain", "copy", "tidy", "recover")
    others = [actor for actor in EVERYBODY if actor.partition(":")[0] in kinds and rng.random() < 0.3]
    publishers = PUBLISHERS[:1] if rng.random() < 0.3 else ()
    return replace(
        settings,
        actors=(*others, *rng.sample(KEEPERS, rng.choice((1, 2, 4))), *publishers),
        chains=rng.choice((1, 1, 3)),
        mishaps=rng.choice(((), _SOME)),
        syncs=rng.choice((0.05, 0.1, 0.2)),
        losses=rng.choice((2, 4, 6)),
        hidden=0.0,
        lease_ms=0,
    )


def of_gateways(seed: int, chains: int | None = None) -> Settings:
    """The settings of a seed in the world of gateways, which has little else: a run takes a tenth of the time."""
    rng = random.Random(f"gateways/{seed}")
    drawn = rng.choice((1, 1, 2, 3))
    chosen = rng.sample(CLIENTS, rng.choice((2, 3, 4, 5)))
    clients = [actor for actor in CLIENTS if actor in chosen]
    mishaps: tuple[Mishap, ...] = rng.choice(((), COMMON, COMMON, _SOME, (rng.choice(COMMON),)))
    return Settings(
        seed=seed,
        chains=drawn if chains is None else chains,
        actors=(*NODES, *clients),
        operations=rng.choice((4, 8, 12)),
        pace_ms=rng.choice((200, 1_000, 5_000)),
        partitions=rng.choice((1, 2, 3)),
        mishaps=mishaps,
        rate=rng.choice((0.02, 0.05, 0.1)) if mishaps else 0.0,
        skew_ms=rng.choice((0, 5_000)),
        checkpoint_every=rng.choice((CHECKPOINT_EVERY, CHECKPOINT_EVERY, CHECKPOINT_EVERY, 8)),
        inline=rng.random() < 0.7,
    )


def drawn(
    seed: int,
    chains: int | None = None,
    *,
    rules: bool = False,
    gateways: bool = False,
    tables: bool = False,
    alterations: bool = False,
    committers: bool = False,
    cuts: bool = False,
) -> Settings:
    """The settings that a seed stands for.

    Args:
        seed: The seed.
        chains: The number of chains; None: it comes from the seed, too.
        rules: In any case with administrators who change the rules of the store.
        gateways: In the world of gateways.
        tables: In any case with publishers of tables.
        alterations: With topics that are altered.
        committers: With processes that share entries.
        cuts: With power cuts, and actors that keep answers and copies outside of the chains.
    """
    settings = of_gateways(seed, chains) if gateways else settings_of(seed, chains)
    settings = under_rules(settings) if rules else settings
    settings = with_alterations(settings) if alterations else settings
    settings = with_committers(settings) if committers else settings
    settings = with_power_cuts(settings) if cuts else settings
    return with_tables(settings) if tables else settings
