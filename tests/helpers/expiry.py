"""Expiration in the world of the pure core: limits, and a later command."""

from __future__ import annotations

from tests.helpers.core import World
from txnstore.core.expiration import Expire, Expired

DAY = 86_400_000
NEVER = 10_000 * DAY
#: One clock alone, the others far away.
PRODUCERS = Expire(transactional_id_ms=NEVER, offsets_ms=NEVER)


def later(world: World, milliseconds: int, command: Expire) -> Expired:
    """Expire so long after the last entry."""
    world.now = world.state.timestamp + milliseconds - 1  # The entry itself takes one.
    expired = world.do(command)
    assert isinstance(expired, Expired)
    return expired
