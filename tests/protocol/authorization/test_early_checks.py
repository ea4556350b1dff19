"""What clients check themselves, because it would be uploaded in vain, or nothing would be committed at all."""

from __future__ import annotations

import duckdb
import pytest

from tests.helpers.shop import ALICE, ALICES, Shop, allow


def test_views_of_topics_without_the_right_to_read_them_raise_when_they_are_read() -> None:
    shop = Shop()
    with shop.stack:
        shop.admin.acls.create(ALICES)
        alice = shop.as_(ALICE)
        with alice.duckdb() as connection:
            assert connection.sql('SELECT count(*) FROM "in"').fetchall() == [(0,)]
            with pytest.raises(duckdb.Error, match="TopicAuthorizationError: User:alice has no right to READ"):
                connection.sql("SELECT count(*) FROM secret").fetchall()


def test_a_client_is_not_refused_by_rules_that_are_out_of_date() -> None:
    """It has not read the entry with the new rule, and nothing else makes it read that."""
    shop = Shop()
    with shop.stack:
        shop.admin.acls.create(ALICES[0])
        alice = shop.as_(ALICE)
        with alice.producer("a") as producer:
            shop.admin.acls.create(allow(ALICE, "WRITE", "TOPIC", "out"))
            with producer.transaction():
                producer.send("out", b"x")
        assert shop.admin.scan("out").to_table().num_rows == 1
