"""The members of groups under their names in a trace, and the membership that each sends with a commit (KIP-447)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.harness.traces import Op


@dataclass(frozen=True)
class Claim:
    """The membership that a commit carries: without one there is no member id, and generation -1 (OFF-08)."""

    member_id: str = ""
    generation: int = -1
    instance: str | None = None


class Members:
    """The last membership of each member. One that has left or was replaced still sends it, as a zombie does."""

    def __init__(self) -> None:
        self._claims: dict[tuple[str, str], Claim] = {}

    def update(self, group: str, name: str, claim: Claim) -> None:
        """Store the id or generation that a member received."""
        self._claims[group, name] = claim

    def claim_of(self, group: str, name: str) -> Claim:
        """The last id and generation that a member received."""
        return self._claims[group, name]

    def named(self, group: str, member_ids: Iterable[str]) -> list[str]:
        """The names of the members with these ids, in the order in which they joined."""
        ids = set(member_ids)
        return [name for (of, name), claim in self._claims.items() if of == group and claim.member_id in ids]

    def claim(self, op: Op) -> Claim:
        """The membership of an operation: that of ``member``, with a generation that is ``ahead`` by some number.

        The id of a member that has never joined is its name, which no member has as id.
        """
        name = op.get("member", "")
        last = self._claims.get((op["group"], name), Claim(name))
        return Claim(
            last.member_id,
            op.get("generation", last.generation + op.get("ahead", 0)),
            op.get("instance", last.instance),
        )
