"""The generations of classic groups in the chains of the store."""

from __future__ import annotations

from txnstore.connection import Connection
from txnstore.core.groups.commands import StoreGeneration
from txnstore.core.groups.model import Group
from txnstore.errors import InconsistentGroupProtocolError
from txnstore.gateway.commits import Commits
from txnstore.gateway.freshness import Freshness
from txnstore.gateway.groups.model import StoredGeneration


class ChainGenerations:
    """Loads generations at the heads of the chains, and stores them by commands.

    Args:
        connection: The connection to the store.
        freshness: Looks at the heads.
        commits: Commits commands.
    """

    def __init__(self, connection: Connection, freshness: Freshness, commits: Commits) -> None:
        self._connection = connection
        self._freshness = freshness
        self._commits = commits

    async def load(self, group: str) -> StoredGeneration | None:
        """The newest stored generation of a group; None if it has none.

        Raises:
            InconsistentGroupProtocolError: It has live members with leases, or of KIP-848.
        """
        found = (await self._freshness.head()).groups.get(group)
        if found is None:
            return None
        expired = dict(self._connection.chains.expired_members(group))
        if any(expired.get(member.member_id) != member.seen_at for member in found.members.values()):
            msg = f"group {group!r} has live members that are no classic members, so none can join it"
            raise InconsistentGroupProtocolError(msg)
        return _generation(found)

    async def store(self, group: str, expected: StoredGeneration | None, generation: StoredGeneration) -> None:
        """Store a generation, unless it is stored already; the gateway asks for it, whatever its members are.

        Raises:
            IllegalGenerationError: The stored generation is not ``expected``.
        """
        before = {member.member_id for member in expected.members} if expected is not None else set()
        replaced = before - {member.member_id for member in generation.members}
        is_same = expected is not None and expected.generation == generation.generation
        await self._commits.submit(
            StoreGeneration(
                group,
                expected.generation if expected is not None else -1,
                generation.generation,
                generation.protocol_type or None,
                generation.protocol or None,
                generation.leader or None,
                generation.members,
                tuple(sorted(replaced)) if is_same else (),
            ),
            None,
        )


def _generation(group: Group) -> StoredGeneration | None:
    """What is stored of a group, also of one that had members of another kind, whose generations continue."""
    classic = group.classic
    if classic is None:
        return StoredGeneration(group.generation, "") if group.generation >= 0 else None
    return StoredGeneration(
        group.generation, classic.protocol_type or "", classic.protocol or "", classic.leader or "", classic.members
    )
