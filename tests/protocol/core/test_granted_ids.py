"""Producer ids of chains that the store does not have: no chain has granted them (INIT-06)."""

from __future__ import annotations

import pytest

from tests.helpers.chains import Cluster
from txnstore.core.log.commands import Added, Append
from txnstore.core.model import ProducerIdentity
from txnstore.core.transactions.commands import InitProducer
from txnstore.errors import InvalidPidMappingError


@pytest.mark.parametrize("chains", [1, 2])
@pytest.mark.parametrize("name", [None, "id"])
def test_init_06_producer_id_of_a_chain_that_does_not_exist_is_refused(chains: int, name: str | None) -> None:
    """INIT-06: with a transactional id or without, whatever the request says of its coordinator."""
    cluster = Cluster(chains)
    tp = cluster.led_by(0)[0]
    forged = ProducerIdentity(chains << 32, 0, name)
    before = cluster.states[0]
    command = Append(forged, (cluster.batch(tp),), added=Added(0, 1, cluster.now) if name is not None else None)
    with pytest.raises(InvalidPidMappingError, match=f"the store has no chain {chains}"):
        cluster.do(0, command)
    assert cluster.states[0] is before


def test_init_06_producer_id_of_another_chain_is_accepted() -> None:
    cluster = Cluster(2)
    identity = cluster.do(1, InitProducer(None))
    (appended,) = cluster.do(0, Append(identity, (cluster.batch(cluster.led_by(0)[0]),)))
    assert appended.base_offset == 0
