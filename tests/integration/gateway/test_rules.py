"""Rules that another process changes: a gateway follows, also if its clients make it read nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

import txnstore
from tests.helpers.gateway import RunningGateway, serving
from tests.helpers.gateway_process import Client, fetch_fields, produce_fields, record_batch
from txnstore.gateway.apis import Api

ADMIN, ALICE = "User:admin", "User:alice"
#: Kafka's TOPIC_AUTHORIZATION_FAILED.
REFUSED = 29


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[txnstore.Store]:
    with txnstore.create(str(tmp_path), principal=ADMIN) as store:
        store.create_topic("t")
        store.acls.enable([ADMIN])
        with store.producer() as producer:
            producer.send("t", value=b"value")
        yield store


@pytest.fixture
def gateway(admin: txnstore.Store) -> Iterator[RunningGateway]:
    """A gateway of another process, as far as the store can tell, whose clients are all Alice."""
    with (
        txnstore.open(admin.url, principal=ALICE) as store,
        serving(store, {"auto.create.topics.enable": "true"}) as it,
    ):
        yield it


def _until(is_reached: Callable[[], bool]) -> None:
    assert any(is_reached() for _ in range(10_000)), "the gateway did not follow"


def _produced(client: Client) -> int:
    response = client.ask(Api.PRODUCE, 7, produce_fields("t", record_batch([b"more"])))
    return int(response.responses[0].partition_responses[0].error_code)


def _fetched(client: Client) -> int:
    response = client.ask(Api.FETCH, 11, fetch_fields("t", 0))
    return int(response.responses[0].partitions[0].error_code)


def test_a_right_that_is_granted_or_taken_counts_soon(admin: txnstore.Store, gateway: RunningGateway) -> None:
    """Neither a refusal nor a permission outlives its rule by more than a second."""
    reads = txnstore.Acl(ALICE, "ALLOW", "READ", "TOPIC", "t")
    writes = txnstore.Acl(ALICE, "ALLOW", "WRITE", "TOPIC", "t")
    with Client(*gateway.address) as client:
        assert (_produced(client), _fetched(client)) == (REFUSED, REFUSED)
        admin.acls.create(reads)
        admin.acls.create(writes)
        _until(lambda: _produced(client) == 0)
        _until(lambda: _fetched(client) == 0)
        admin.acls.delete(reads)
        _until(lambda: _fetched(client) == REFUSED)
        assert _produced(client) == 0


def test_a_topic_is_created_for_the_client_who_asks(admin: txnstore.Store, gateway: RunningGateway) -> None:
    admin.acls.create(txnstore.Acl(ALICE, "ALLOW", "CREATE", "TOPIC", "mine"))
    admin.acls.create(txnstore.Acl(ALICE, "ALLOW", "WRITE", "TOPIC", "m", "PREFIXED"))
    producer = confluent_kafka.Producer({"bootstrap.servers": gateway.bootstrap, "message.timeout.ms": 5_000})
    errors: dict[str | None, object] = {}
    for topic in ("mine", "more"):
        producer.produce(topic, b"v", on_delivery=lambda error, message: errors.update({message.topic(): error}))
    assert producer.flush(30) == 0
    assert errors["mine"] is None
    assert errors["more"] is not None
    assert [topic.name for topic in admin.topics()] == ["mine", "t"]
