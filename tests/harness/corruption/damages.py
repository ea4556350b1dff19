"""What is done to the objects of a store: to one of them, to two, or to a whole folder."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.harness.corruption.worlds import Objects, World
from tests.helpers import keys

#: What is done with one object.
EFFECTS = (
    "flip",
    "truncate",
    "delete",
    "duplicate",
    "swap",
    "seal",
    "empty",
    "run",
    "older",
    "foreign",
    "return",
    "backup",
    "folder",
)
KINDS = ("store", "latest", "state", "index", "entry", "segment", "boundary")
#: Those that are done with many objects.
_WHOLE = ("backup", "folder")
_FOLDERS = ("boundaries/", "checkpoints/", "chains/latest/", "topics/")


def kind_of(key: str) -> str:
    """The kind of an object."""
    if key == keys.STORE:
        return "store"
    if keys.has_segments(key):
        return "segment"
    if keys.entry_sequence(key) is not None:
        return "entry"
    if keys.boundary_number(key) is not None:
        return "boundary"
    if key.startswith(keys.HINTS):
        return "latest"
    return "index" if keys.index_range(key) is not None else "state"


@dataclass(frozen=True)
class Damage:
    """What is done with which kind of object; the kind does not matter for whole folders and backups."""

    effect: str
    kind: str

    def __str__(self) -> str:
        return self.effect if self.effect in _WHOLE else f"{self.effect} {self.kind}"


def apply(damages: Iterable[Damage], world: World, rng: random.Random) -> tuple[str, Objects]:
    """What was damaged, and the objects after that."""
    changed, names = dict(world.objects), []
    for damage in damages:
        names.append(_WHOLE_EFFECTS[damage.effect](world, changed, rng) if damage.effect in _WHOLE else "")
        if not names[-1]:
            names[-1] = _one(damage, world, changed, rng)
    return ", ".join(names), changed


def _one(damage: Damage, world: World, changed: Objects, rng: random.Random) -> str:
    """Damage one object, or some that follow each other; what was done."""
    candidates = sorted(key for key in changed if kind_of(key) == damage.kind)
    if damage.effect in ("delete", "run"):
        ends = set(_ends(changed))
        candidates = [key for key in candidates if key not in ends]
    if damage.effect == "return":
        return _returned(damage, world, changed, rng)
    if not candidates:
        return f"no {damage.kind}"
    versions = {"older": world.older, "foreign": {key: [data] for key, data in world.foreign.items()}}
    replacements = versions.get(damage.effect, {})
    key = rng.choice([key for key in candidates if key in replacements] or candidates)
    following = candidates[candidates.index(key) :]
    if damage.effect in ("delete", "run"):
        for name in following[: 1 if damage.effect == "delete" else _longest(rng, damage, changed, key)]:
            del changed[name]
    elif damage.effect == "duplicate":
        changed[_another_key(rng, key)] = changed[key]
    elif damage.effect == "swap":
        changed[key] = changed[rng.choice([name for name in candidates if name != key] or [key])]
    elif key in replacements:
        changed[key] = rng.choice(replacements[key])
    else:
        changed[key] = _CONTENTS.get(damage.effect, _halved)(changed[key], rng)
    return f"{damage.effect} {key}"


def _longest(rng: random.Random, damage: Damage, changed: Objects, key: str) -> int:
    """How many objects in a row are deleted. Of entries that no checkpoint follows an open looks at three names."""
    heads = [
        keys.checkpoint_sequence(name) or 0 for name in changed if keys.chain_number(name) == keys.chain_number(key)
    ]
    behind = damage.kind == "entry" and (keys.entry_sequence(key) or 0) + 4 > max(heads, default=0)
    return 2 if behind else rng.randint(2, 4)


def _flipped(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return b"x"
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def _truncated(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.choice([0, 1, len(data) - 1, rng.randrange(len(data) or 1)])]


def _halved(data: bytes, _rng: random.Random) -> bytes:
    return data[: len(data) // 2]


def _ends(objects: Objects) -> Iterator[str]:
    """The newest entries of chains, at the end of which a missing entry cannot be noticed (docs/guarantees.md)."""
    chains: dict[str, list[str]] = {}
    for key in sorted(objects):
        if kind_of(key) == "entry":
            chains.setdefault(key.rpartition("/")[0], []).append(key)
    for entries in chains.values():
        yield entries[-1]


def _returned(damage: Damage, world: World, changed: Objects, rng: random.Random) -> str:
    """Put a deleted object back."""
    deleted = sorted(key for key in world.older if key not in changed and kind_of(key) == damage.kind)
    if not deleted:
        return f"no deleted {damage.kind}"
    key = rng.choice(deleted)
    changed[key] = rng.choice(world.older[key])
    return f"return {key}"


def _laid_over(world: World, changed: Objects, rng: random.Random) -> str:
    """Copy an old backup over the store, without deleting what is newer."""
    number = rng.randrange(len(world.backups))
    without = rng.choice([None, "chains/latest/", "topics/"])
    changed.update((key, data) for key, data in world.backups[number].items() if without is None or without not in key)
    return f"backup {number}" + (f" without {without}" if without is not None else "")


def _mirrored(world: World, changed: Objects, rng: random.Random) -> str:
    """Make a folder, of one chain or of all, as it was in an old backup; what is newer is deleted."""
    number, folder = rng.randrange(len(world.backups)), rng.choice(_FOLDERS)
    chain = rng.choice(
        sorted({number_of_key for key in world.objects if (number_of_key := keys.chain_number(key)) is not None})
    )
    for key in [key for key in changed if folder in key and keys.chain_number(key) in (None, chain)]:
        del changed[key]
    for key, data in world.backups[number].items():
        if folder in key and keys.chain_number(key) in (None, chain):
            changed[key] = data
    return f"folder {folder} of chain {chain} as in backup {number}"


_WHOLE_EFFECTS = {"backup": _laid_over, "folder": _mirrored}


def _another_key(rng: random.Random, key: str) -> str:
    """A key of the same kind that is free."""
    digits = re.findall(r"\d{20}", key)
    if digits:
        return key.replace(digits[0], f"{int(digits[0]) + rng.choice([1000, 100_000]):020d}")
    folder, _, name = key.rpartition("/")
    return f"{folder}/copy-{name}" if folder else f"copy-{name}"


def _resealed(data: bytes, rng: random.Random) -> bytes:
    """A JSON document in which one value is another one, with a checksum that fits; other bytes for other objects."""
    try:
        document = json.loads(data)
    except ValueError:
        return bytes(rng.randrange(256) for _ in range(len(data)))
    document.pop("checksum", None)
    places = [name for name in document if name != "version"]
    document[rng.choice(places)] = rng.choice([None, -1, 2**70, "x", [], {}, [[]], 1.5, "../x"])
    return sealed(document)


def sealed(document: dict[str, Any]) -> bytes:
    """A document with the checksum that fits."""
    document.pop("checksum", None)
    body = json.dumps(document, separators=(",", ":")).encode()
    return body[:-1] + b',"checksum":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


#: What becomes of the contents of an object.
_CONTENTS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "flip": _flipped,
    "truncate": _truncated,
    "empty": lambda _data, _rng: b"",
    "seal": _resealed,
}
