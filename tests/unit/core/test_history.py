"""The history of a transactional id of which the first entries are deleted."""

from __future__ import annotations

from txnstore.core.expiration import TransactionalIdExpired
from txnstore.core.history import Happened, steps_of


def test_an_expired_id_whose_begin_is_deleted_is_shown_with_its_newest_producer_id() -> None:
    expired = TransactionalIdExpired(transactional_id="id", producer_ids=[3, 9, 5])
    (step,) = steps_of("id", {0: [Happened(0, 70, 1_000, "writer", [expired])]})
    assert (step.step, step.entry, step.producer_id, step.epoch) == ("EXPIRED", 70, 9, -1)
