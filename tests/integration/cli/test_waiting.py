"""``consume`` and ``group show`` say why nothing is printed: others hold the partitions, or the log ends before."""

from __future__ import annotations

import pytest

import txnstore
from tests.helpers.cli import Cli


@pytest.fixture
def cli(local_store_url: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    with txnstore.create(local_store_url) as store:
        store.create_topic("orders", partitions=2)
        with store.producer() as producer:
            producer.send("orders", b"a", partition=0)
            producer.send("orders", b"b", partition=1)
    return Cli(local_store_url, monkeypatch)


def test_consume_names_the_member_that_holds_the_partitions(cli: Cli) -> None:
    """The member of a killed process, as far as others can tell."""
    with txnstore.open(cli.url) as store, store.consumer("orders", group="g") as other:
        other.poll()
        member_id = other.group_metadata().member_id
        result = cli("consume", "orders", "--group", "g")
        assert (result.status, result.out) == (0, "")
        assert f"Waiting for orders-1, which member {member_id} holds until 20" in " ".join(result.err.split())
        assert cli("consume", "orders", "--group", "g", "--json").err == ""


def test_group_show_names_the_member_that_another_waits_for(cli: Cli) -> None:
    with txnstore.open(cli.url) as store, store.consumer("orders", group="g") as first:
        first.poll()
        with store.consumer("orders", group="g") as second:
            second.poll()
            ids = [consumer.group_metadata().member_id for consumer in (first, second)]
            shown = " ".join(cli("group", "show", "g").err.split())
            assert f"Member {ids[1]} waits for orders-1, which member {ids[0]} holds until 20" in shown
            (described,) = cli.ok("group", "show", "g", "--json").lines
            assert {member["member_id"]: member["held_by"] for member in described["members"]} == {
                ids[0]: [],
                ids[1]: [ids[0]],
            }


def test_consume_from_past_the_end_says_where_it_is(cli: Cli) -> None:
    result = cli("consume", "orders", "--from", "7")
    assert (result.status, result.out) == (0, "")
    assert "Offset 7 is past the end: orders-0 ends at 1, orders-1 ends at 1" in result.err
    assert cli("consume", "orders", "--from", "1").err.count("past the end") == 0


def test_consume_begins_at_a_time(cli: Cli) -> None:
    moments = {"c": 1_000, "d": 2_000, "e": 3_000}
    with txnstore.open(cli.url) as store:
        store.create_topic("timed")
        with store.producer() as producer:
            for value, moment in moments.items():
                producer.send("timed", value.encode(), timestamp=moment)

    def values(start: str) -> list[str]:
        return [line["value"] for line in cli.ok("consume", "timed", "--from", start, "--json").lines]

    assert values("1970-01-01T00:00:02Z") == ["d", "e"]
    assert values("1970-01-01 02:00:02+02:00") == ["d", "e"]
    assert values("1970-01-01T00:00:01.001") == ["d", "e"], "a time without a zone is in UTC"
    assert values("1969-12-31") == ["c", "d", "e"]
    assert values("-30000d") == ["c", "d", "e"]
    result = cli("consume", "timed", "--from", "-1h")
    assert (result.status, result.out) == (0, "")
    assert "All records are older than 20" in result.err
    assert "timed-0 ends at 3" in result.err
    assert cli("consume", "timed", "--from", "-1h", "--group", "g").status == 2


def test_produce_says_how_to_end_what_is_typed(cli: Cli) -> None:
    result = cli("produce", "orders", stdin="x\n", terminal=True)
    assert (result.status, result.err) == (0, "Type one record per line; end with Ctrl-D\n")
    result = cli("produce", "orders", "--transactional-id", "job", "--key-separator", ":", stdin="k:x\n", terminal=True)
    assert result.err == "Type one record per line, as KEY:VALUE; Ctrl-D commits them, Ctrl-C aborts\n"
    result = cli("produce", "orders", "--format", "json", "--json", stdin='{"value":"x"}\n', terminal=True)
    assert (result.status, result.err) == (0, "")
