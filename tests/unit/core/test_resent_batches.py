"""All batches of a job are sent to another chain again when a third one failed: each is recognised, however many."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers.chains import Cluster
from txnstore.core.log.commands import Added, Append
from txnstore.core.log.model import WINDOW
from txnstore.core.transactions.commands import InitProducer
from txnstore.errors import OutOfOrderSequenceError


def test_batch_outside_window_is_recognised_by_its_segment() -> None:
    """SEQ-03, REC-01: it is answered with its first offsets; another batch with its sequence is refused as ever."""
    cluster = Cluster(chains=2)
    name, (tp, *_) = cluster.home(0), cluster.led_by(1)
    identity = cluster.do(0, InitProducer(name))
    cluster.do(0, Append(identity, partitions=(tp,)))
    added = Added(0, cluster.states[0].sequence, cluster.states[0].timestamp)
    batches = tuple(cluster.batch(tp, sequence) for sequence in range(WINDOW + 3))
    first = cluster.do(1, Append(identity, batches, added=added))
    state = cluster.states[1]
    again = cluster.do(1, Append(identity, batches, added=added))
    assert again == tuple(replace(answer, duplicate=True) for answer in first)
    assert cluster.states[1] is state, "nothing was written"
    with pytest.raises(OutOfOrderSequenceError):
        cluster.do(1, Append(identity, (cluster.batch(tp, 0),), added=added))
    with pytest.raises(OutOfOrderSequenceError):
        cluster.do(1, Append(identity, (replace(batches[0], base_sequence=1),), added=added))
    cluster.sound()
