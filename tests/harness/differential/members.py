"""The members of groups under the names that a trace gives them, and what each claims when it commits (KIP-447)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.harness.differential.trace import Op


@dataclass(frozen=True)
class Claim:
    """The membership that a commit carries: without one there is no member id, and generation -1 (OFF-08)."""

    member_id: str = ""
    generation: int = -1
    instance: str | None = None


class Members:
    """What each member of each group was told last. Who has left or was replaced still claims that: a zombie."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], Claim] = {}

    def tell(self, group: str, name: str, claim: Claim) -> None:
        """A member was told its id or its generation."""
        self._told[group, name] = claim

    def told(self, group: str, name: str) -> Claim:
        """What a member was told last."""
        return self._told[group, name]

    def named(self, group: str, member_ids: Iterable[str]) -> list[str]:
        """The names of those that have these ids, in the order in which they have joined."""
        wanted = set(member_ids)
        return [name for (of, name), claim in self._told.items() if of == group and claim.member_id in wanted]

    def claim(self, op: Op) -> Claim:
        """The membership of an operation: that of ``member``, ``ahead`` of what it was told, unless it says otherwise.

        A member that has never joined is its own id: nobody has that one.
        """
        name = op.get("member", "")
        known = self._told.get((op["group"], name), Claim(name))
        return Claim(
            known.member_id,
            op.get("generation", known.generation + op.get("ahead", 0)),
            op.get("instance", known.instance),
        )
