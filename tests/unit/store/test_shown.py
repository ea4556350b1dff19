"""What a notebook or a shell shows of the objects of the library."""

from __future__ import annotations

import txnstore


def test_no_object_shows_its_address(local_store_url: str) -> None:
    with txnstore.create(local_store_url) as store:
        store.create_topic("orders")
        with store.producer() as producer:
            future = producer.send("orders", b"1")
            assert repr(future) == "<txnstore.RecordFuture of orders-0, pending>"
            future.result()
            assert repr(future) == "<txnstore.RecordFuture of orders-0, done>"
            table = producer.send_table("orders", [{"value": b"2"}])
            table.result()
            assert repr(table) == "<txnstore.TableFuture of orders-0, done>"
        assert repr(store.tables) == f"<the tables of {store.url}>"
        assert repr(store.acls) == f"<the rules of {store.url}>"
        shown = repr(store.verify())
        assert shown.startswith("VerifyReport(violations=(), ")
        assert len(shown) < 200
