"""Conformance items of the core without another test: states on disk, lost data, incomplete identities."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers.chains import Cluster
from tests.helpers.connections import connection_of
from tests.helpers.core import World, with_txn
from tests.helpers.shell import another_process, backend, new_store
from txnstore.chain.checkpoints.document import from_document, to_document
from txnstore.chain.codec import _with_checksum
from txnstore.core.log.commands import Append
from txnstore.core.model import Map, Outcome
from txnstore.core.transactions.commands import EndTxn, InitProducer
from txnstore.core.transactions.model import MAX_EPOCH, TxnState
from txnstore.errors import ConcurrentTransactionsError, OutOfOrderSequenceError


@pytest.mark.parametrize("state", TxnState)
def test_stm_03_states_that_pass_in_a_moment_are_never_stored(state: TxnState) -> None:
    """STM-03, STM-01: DEAD and the epoch fence are refused by the writer; the others come back by their names."""
    world = World()
    world.client("a")
    odd = with_txn(world.state, replace(world.txn("a"), state=state))
    if state in {TxnState.DEAD, TxnState.PREPARE_EPOCH_FENCE}:
        with pytest.raises(ValueError, match=state.name):
            to_document(odd, [])
    else:
        assert from_document(to_document(odd, []), Map()).transactions["a"].state is state


@pytest.mark.parametrize("name", ["DEAD", "PREPARE_EPOCH_FENCE", "UNHEARD_OF"])
def test_stm_03_a_checkpoint_with_such_a_state_is_not_believed(name: str) -> None:
    """STM-03: it is damaged; the state comes from the entries."""
    store = new_store()
    store.producer("a")
    store.checkpoint()
    objects = backend(store)
    (head,) = [item.key for item in objects.list("chains/") if item.key.endswith("state.json")]
    body = objects.get(head).rpartition(b',"checksum":"')[0] + b"}"
    objects.put(head, _with_checksum(body.replace(b'"EMPTY"', b'"%s"' % name.encode())))
    assert connection_of(another_process(store)).view().transactions["a"].state is TxnState.EMPTY


def test_rec_09_data_that_a_restore_has_lost_is_noticed() -> None:
    """REC-09: the storage was set back by two appends; the live producer's next one does not fit."""
    world = World()
    client = world.client("a")
    client.send(2)
    client.send(1)
    kept = len(world.entries)
    client.send(1)
    client.send(1)
    world.entries = world.entries[:kept]
    world.state = world.replay()
    world.refuse(OutOfOrderSequenceError, client.append(client.numbered()))
    assert world.ends() == (0, 3)


def test_tv2_05_the_next_id_waits_while_its_transaction_is_completed() -> None:
    """TV2-05: the epoch was the last one, so the decision names a new producer id; its requests are delayed."""
    cluster = Cluster(chains=2)
    cluster.name = cluster.home(0)
    identity = cluster.do(0, InitProducer(cluster.name))
    state = cluster.states[0]
    txn = replace(state.transactions[cluster.name], epoch=MAX_EPOCH)
    cluster.states[0] = replace(state, transactions=state.transactions.insert(cluster.name, txn))
    cluster.identity = replace(identity, epoch=MAX_EPOCH)
    own, other = cluster.led_by(0)[0], cluster.led_by(1)[0]
    cluster.send([other])
    following = cluster.prepare().producer
    assert (following.producer_id != identity.producer_id, following.epoch) == (True, 0)
    for command in (
        Append(following, (cluster.batch(own),)),
        Append(following, partitions=(other,)),
        EndTxn(following, Outcome.COMMIT),
    ):
        with pytest.raises(ConcurrentTransactionsError):
            cluster.do(0, command)
    cluster.finish()
    cluster.do(0, Append(following, (cluster.batch(own),)))
    cluster.sound()
