"""The commands, on a local store: what they do, and the JSON that is a contract."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import txnstore
from tests.helpers.cli import Cli
from tests.helpers.connections import connection_of
from txnstore.chain.codec import encode
from txnstore.cli.app import root
from txnstore.compactor.compact.lease import DURATION_MS, LeaseDocument
from txnstore.core.model import TopicPartition


@pytest.fixture
def cli(local_store_url: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line on a store that is created."""
    txnstore.create(local_store_url).close()
    monkeypatch.delenv("TXNSTORE_STORE", raising=False)
    return Cli(local_store_url, monkeypatch)


@pytest.fixture
def orders(cli: Cli) -> Cli:
    """The same with a topic of Kafka records."""
    cli.ok("topic", "create", "orders", "--partitions", "3")
    return cli


@pytest.fixture
def typed(cli: Cli) -> Cli:
    """The same with a topic of typed columns."""
    columns = ["id:int64!", "at:timestamp[ms, UTC]", "amount:decimal(10, 2)", "data:binary"]
    options = [option for column in columns for option in ("--column", column)]
    cli.ok("topic", "create", "typed", *options, "--key", "id", "--timestamp", "at")
    return cli


def _values(cli: Cli, *options: str) -> list[Any]:
    return [record["value"] for record in cli.ok("consume", "orders", "--json", *options).lines]


# A store as a whole ---------------------------------------------------------------------------------------------------


def test_a_store_is_created_and_described(cli: Cli, tmp_path: Path) -> None:
    url = (tmp_path / "another").as_uri()
    (created,) = cli.ok("init", url, "--json").lines
    assert created == {"url": url, "store_id": txnstore.open(url).store_id, "chains": 1}
    (again,) = cli.ok("init", url, "--exist-ok", "--json").lines
    assert again == created
    (info,) = cli.ok("--store", url, "info", "--json").lines
    assert {name: info[name] for name in ("url", "store_id", "entries", "topics", "records", "bytes")} == {
        "url": url, "store_id": created["store_id"], "entries": 0, "topics": 0, "records": 0, "bytes": 0,
    }  # fmt: skip
    assert info["metrics"]["puts"] == 0, "looking changes nothing"


def test_shared_options_stand_before_or_after_the_command(orders: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    before = orders.ok("--json", "topic", "list").out
    assert orders.ok("topic", "list", "--json").out == before
    assert orders.ok("topic", "list", "--json", "--store", orders.url).out == before
    monkeypatch.setenv("TXNSTORE_STORE", orders.url)
    assert orders.ok("topic", "list", "--json").out == before


# Topics ---------------------------------------------------------------------------------------------------------------


def test_a_typed_topic_is_created_shown_and_altered(typed: Cli) -> None:
    (shown,) = typed.ok("topic", "show", "typed", "--json").lines
    assert shown["columns"] == [
        {"name": "id", "type": "int64", "nullable": False},
        {"name": "at", "type": "timestamp[ms, tz=UTC]", "nullable": True},
        {"name": "amount", "type": "decimal128(10, 2)", "nullable": True},
        {"name": "data", "type": "binary", "nullable": True},
    ]
    assert (shown["key"], shown["timestamp"], shown["partitions"]) == ("id", "at", 1)
    assert shown["config"]["cleanup.policy"] == "delete"
    result = typed(
        "topic", "alter", "typed", "--partitions", "2", "--add-column", "note:string",
        "--config", "delete.retention.ms=5", "--json",
    )  # fmt: skip
    assert result.status == 0
    assert result.err == ""
    (altered,) = result.lines
    assert (altered["partitions"], altered["columns"][-1]["name"]) == (2, "note")
    assert altered["config"]["delete.retention.ms"] == "5"
    (unset,) = typed.ok("topic", "alter", "typed", "--unset", "delete.retention.ms", "--json").lines
    assert unset["config"]["delete.retention.ms"] == "86400000"
    table = typed.ok("topic", "show", "typed").out
    assert "86400000" in table
    assert "timestamp[ms, tz=UTC]" in table
    assert "retention.ms" in table


def test_topics_are_listed_and_deleted(orders: Cli) -> None:
    orders.ok("produce", "orders", stdin="a\nb\n")
    (listed,) = orders.ok("topic", "list", "--json").lines
    assert (listed["topic"], listed["partitions"], listed["records"], listed["typed"]) == ("orders", 3, 2, False)
    assert "orders" in orders.ok("topic", "list").out
    orders.ok("topic", "delete", "orders", "--yes")
    assert orders.ok("topic", "list", "--json").lines == []
    assert "topic create" in orders("topic", "list").err


# Records --------------------------------------------------------------------------------------------------------------


def test_text_lines_round_trip(orders: Cli) -> None:
    (sent,) = orders.ok("produce", "orders", "--json", stdin=b"a\n\n\xff\tb\n").lines
    assert sent == {"topic": "orders", "records": 3, "transactional_id": None}
    result = orders("consume", "orders")
    assert (result.status, result.err) == (0, "3 records\n")
    assert _values(orders) == ["a", "", {"base64": "/wli"}]


def test_text_output_shows_the_requested_parts(orders: Cli) -> None:
    lines = '{"key":"k","value":"v","headers":[["h","1"],["i",null]],"timestamp":1700000000123,"partition":1}\n'
    orders.ok("produce", "orders", "--format", "json", stdin=lines)
    flags = ["--keys", "--headers", "--offsets", "--timestamps"]
    assert orders("consume", "orders", *flags).out == "2023-11-14T22:13:20.123Z\torders-1:0\th:1,i:null\tk\tv\n"


def test_output_of_consume_is_input_of_produce(orders: Cli) -> None:
    lines = '{"key":"k","value":null,"headers":[["h",{"base64":"/w=="}]],"timestamp":5,"partition":2}\n'
    orders.ok("produce", "orders", "--format", "json", stdin=lines)
    printed = orders.ok("consume", "orders", "--json").out
    orders.ok("produce", "orders", "--format", "json", stdin=printed)
    first, second = orders.ok("consume", "orders", "--json").lines
    assert {**first, "offset": 1} == second


def test_keys_choose_the_partition_as_in_kafka(orders: Cli) -> None:
    orders.ok("produce", "orders", "--key-separator", ":", stdin="".join(f"k{n}:x\n" for n in range(20)))
    orders.ok("produce", "orders", "--key-field", "id", stdin="".join(f'{{"id":"k{n}"}}\n' for n in range(20)))
    partitions: dict[str, set[int]] = {}
    for record in orders.ok("consume", "orders", "--json").lines:
        partitions.setdefault(record["key"], set()).add(record["partition"])
    assert len(partitions) == 20
    assert all(len(numbers) == 1 for numbers in partitions.values())
    assert len({number for numbers in partitions.values() for number in numbers}) == 3


def test_transaction_is_all_or_nothing(orders: Cli) -> None:
    failed = orders("produce", "orders", "--transactional-id", "job", "--key-separator", ":", stdin="a:1\nb:2\nwrong\n")
    assert failed.status == 1
    assert "line 3" in failed.err
    assert _values(orders) == []
    assert _values(orders, "--isolation", "read_uncommitted") == []
    (sent,) = orders.ok("produce", "orders", "--transactional-id", "job", "--json", stdin="a\nb\n").lines
    assert sent == {"topic": "orders", "records": 2, "transactional_id": "job"}
    assert sorted(_values(orders)) == ["a", "b"]


def test_rows_of_a_typed_topic_round_trip(typed: Cli) -> None:
    row = '{"id":1,"at":"2024-01-02T03:04:05Z","amount":"1.50","data":{"base64":"/w=="}}'
    typed.ok("produce", "typed", stdin=row + "\n")
    printed = typed("consume", "typed").out
    assert printed == row + "\n"
    typed.ok("produce", "typed", stdin=printed)
    records = typed.ok("consume", "typed", "--json").lines
    assert [record["value"] for record in records] == [records[0]["value"]] * 2
    assert (records[0]["key"], records[0]["timestamp"]) == (1, 1_704_164_645_000)


def test_a_null_fits_every_nullable_column(typed: Cli) -> None:
    """A column of nulls alone has no type of its own."""
    typed.ok("produce", "typed", stdin='{"id":1,"at":null,"amount":null,"data":null}\n')
    (record,) = typed.ok("consume", "typed", "--json").lines
    assert (record["value"]["amount"], record["value"]["data"]) == (None, None)


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_file_format_follows_the_suffix(typed: Cli, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.table({"id": [1, 2], "amount": pa.array(["1.5", None]).cast(pa.decimal128(10, 2))}), path)
    else:
        path.write_text("id,amount\n1,1.5\n2,\n" if suffix == "csv" else '{"id":1,"amount":1.5}\n{"id":2}\n')
    (sent,) = typed.ok("produce", "typed", "--file", str(path), "--json").lines
    assert sent["records"] == 2
    rows = [record["value"] for record in typed.ok("consume", "typed", "--json").lines]
    assert [(row["id"], row["amount"]) for row in rows] == [(1, "1.50"), (2, None)]


def test_group_continues_at_its_committed_offsets(orders: Cli) -> None:
    orders.ok("produce", "orders", "--partition", "0", stdin="a\nb\nc\n")
    group = ["--group", "readers"]
    assert _values(orders, *group, "--max", "2") == ["a", "b"]
    assert _values(orders, *group) == ["c"]
    assert _values(orders, *group) == []
    assert _values(orders, "--group", "late", "--from", "latest") == []


def test_a_part_of_the_log_is_read_by_offset_and_partition(orders: Cli) -> None:
    orders.ok("produce", "orders", "--partition", "0", stdin="a\nb\nc\n")
    orders.ok("produce", "orders", "--partition", "1", stdin="x\ny\n")
    assert _values(orders, "--partition", "0", "--from", "1") == ["b", "c"]
    assert sorted(_values(orders, "--from", "1")) == ["b", "c", "y"]
    assert _values(orders, "--from", "latest") == []
    assert _values(orders, "--from", "100") == [], "above the end nothing has come yet; it does not begin again"
    assert len(_values(orders, "--max", "4")) == 4


# Transactions, SQL, maintenance, the chain ----------------------------------------------------------------------------


def test_an_open_transaction_is_shown_and_read_by_isolation(orders: Cli) -> None:
    with txnstore.open(orders.url) as store, store.producer(transactional_id="job") as producer:
        producer.begin_transaction()
        producer.send("orders", b"open", partition=1)
        producer.flush()
        (listed,) = orders.ok("txn", "list", "--state", "ONGOING", "--json").lines
        assert (listed["transactional_id"], listed["state"], listed["partitions"]) == ("job", "ONGOING", ["orders-1"])
        (shown,) = orders.ok("txn", "show", "job", "--json").lines
        assert shown["open"] == [{"partition": "orders-1", "first_offset": 0, "last_stable": 0, "high_watermark": 1}]
        assert "ONGOING" in orders.ok("txn", "list").out
        table = orders.ok("txn", "show", "job").out
        assert "high watermark" in table
        assert table.splitlines()[-1].split() == ["orders-1", "0", "0", "1"]
        (row,) = orders.ok("txn", "producers", "orders", "1", "--json").lines
        assert (row["transactional_id"], row["first_offset"], row["last_sequence"]) == ("job", 0, 0)
        assert "job" in orders.ok("txn", "producers", "orders", "1").out
        assert orders("txn", "producers", "orders", "3").status == 1
        assert _values(orders) == []
        assert _values(orders, "--isolation", "read_uncommitted") == ["open"]
        count = ["sql", "SELECT count(*) AS n FROM orders", "--json"]
        assert orders.ok(*count).lines == [{"n": 0}]
        assert orders.ok(*count, "--isolation", "read_uncommitted").lines == [{"n": 1}]
        assert orders.ok("txn", "list", "--older-than", "1h", "--json").lines == []


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("'10:00:00+02'::TIMETZ", "10:00:00+02"),
        ("'0101'::BIT", "0101"),
        ("340282366920938463463374607431768211455::UHUGEINT", "340282366920938463463374607431768211455"),
        ("12345678901234567890123456789012345678901234567890::BIGNUM", "1234567890" * 5),
        ("['0101'::BIT]", "[0101]"),
        ("5::VARIANT", "5"),
        ("{'UHUGEINT': ['0101'::BIT]}", "{'UHUGEINT': [0101]}"),
        ("{'BIT': 1}", {"BIT": 1}),
        ("{'UHUGEINT': 1}", {"UHUGEINT": 1}),
    ],
)
def test_sql_shows_what_arrow_does_not_hold(cli: Cli, value: str, shown: object) -> None:
    """DuckDB gives these to Arrow without the offset, as -1, or as bytes of its own."""
    assert cli.ok("sql", f"SELECT {value} AS x, 1 AS x", "--json").lines == [{"x": shown, "x_1": 1}]


def test_sql_prints_a_table_or_all_rows_as_json(typed: Cli) -> None:
    typed.ok("produce", "typed", stdin="".join(f'{{"id":{n},"at":"2024-01-02T00:00:00Z"}}\n' for n in range(5)))
    query = 'SELECT id, "at", _offset FROM typed ORDER BY id'
    assert typed.ok("sql", query, "--json").lines[4] == {"id": 4, "at": "2024-01-02T00:00:00Z", "_offset": 4}
    table = typed("sql", query, "--max-rows", "2")
    assert "_offset" in table.out
    assert len(table.out.strip().splitlines()) == 4, "a title, a line, two rows"
    assert "only the first 2 rows" in table.err
    twice = "SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS A"
    assert typed.ok("sql", twice, "--json").lines == [{"a": 1, "a_2": 2, "a_1": 3, "A": 4}]
    assert typed.ok("sql", twice).out.split()[-4:] == ["1", "2", "3", "4"]
    several = "-- a comment\nselect 1 a; create table made as select 2 b; select * from made"
    assert typed.ok("sql", several, "--json").lines == [{"a": 1}, {"b": 2}]
    assert typed.ok("sql", several).out.split() == ["a", "─", "1", "b", "─", "2"]
    assert typed.ok("sql", "--json", stdin=query).lines == typed.ok("sql", query, "--json").lines
    assert "only the database of this call" in typed("sql", "SET threads = 1").err


@pytest.mark.usefixtures("own_objects")
def test_views_are_emitted_for_a_plain_duckdb(orders: Cli) -> None:
    import duckdb

    orders.ok("produce", "orders", stdin="a\nb\n")
    views = orders.ok("sql", "--emit-views").out
    with duckdb.connect() as connection:
        connection.execute(views)
        assert connection.execute('SELECT count(*) FROM "orders"').fetchone() == (2,)


def test_a_topic_without_a_view_is_warned_of(orders: Cli) -> None:
    """DuckDB executes the output, and ignores its comments."""
    orders.ok("produce", "orders", stdin="a\n")
    emitted = orders.ok("sql", "--emit-views", warns='"orders" is left out: DuckDB cannot read a part of chains/')
    assert '-- "orders" is left out' in emitted.out


def test_sql_at_an_earlier_moment(orders: Cli) -> None:
    """An entry, a time or a duration; of the store as it was, also for a DuckDB without txnstore."""
    orders.ok("produce", "orders", stdin="a\nb\n")
    with txnstore.open(orders.url) as store:
        before = store.snapshot()
    orders.ok("produce", "orders", stdin="c\n")
    count = "SELECT count(*) AS n FROM orders"
    moment = datetime.fromtimestamp(before.timestamp / 1000, UTC).isoformat()
    for at in (str(before.sequence), moment):
        assert orders.ok("sql", count, "--json", "--at", at).lines == [{"n": 2}]
    assert orders.ok("sql", count, "--json", "--snapshot", "-0ms").lines == [{"n": 3}]
    assert "CREATE" not in orders.ok("sql", "--emit-views", "--at", "0").out
    assert orders("sql", count, "--at", "999").err.startswith("error: entry of chain 0 must be an integer from 0 to ")
    wrong = orders("sql", count, "--at", "yesterday")
    assert wrong.status == 2
    assert "--at takes an entry (of several chains one each: 21,40,21), a time such as" in wrong.err
    early = orders("sql", count, "--at", "-9000d")
    assert (early.status, "the store had no entry yet at" in early.err) == (1, True)


@pytest.mark.usefixtures("own_objects")
def test_partitions_that_other_compactors_work_on_are_counted(orders: Cli) -> None:
    """Also with JSON, where nothing is compacted."""
    for value in "ab":
        orders.ok("produce", "orders", "--partition", "0", stdin=value)
    with txnstore.open(orders.url) as store:
        connection = connection_of(store)
        lease = LeaseDocument(owner="another", duration_ms=DURATION_MS, partitions=[TopicPartition("orders", 0)])
        connection.objects.put(connection.keys.lease(1), encode(lease))
    plain = orders("compact")
    assert (plain.status, plain.out) == (0, "")
    assert plain.err == "1 partition left to other compactors, which work on them\n"
    structured = orders("compact", "--json")
    assert (structured.status, structured.lines, structured.err) == (0, [{"held": 1}], "")


SHORT = "the grace period is 0 s, less than an hour: readers of pinned or earlier snapshots fail"


@pytest.mark.usefixtures("own_objects")
def test_small_segments_are_merged_and_the_old_ones_vacuumed(orders: Cli) -> None:
    for value in "abc":
        orders.ok("produce", "orders", "--partition", "0", stdin=value)
    (planned,) = orders("compact", "--dry-run", "--json").lines
    (done,) = orders("compact", "orders", "--json").lines
    assert (planned["partition"], planned["segments_before"], planned["segments_after"]) == ("orders-0", 3, 1)
    assert (done["segments_after"], done["records"], done["aborted"]) == (1, 3, 0)
    assert orders("compact").err == "Nothing to compact\n"
    (kept,) = orders.ok("vacuum", "--yes", "--json").lines
    assert (kept["deleted"], kept["kept_young"], kept["referenced"]) == ([], 3, 1)
    (would,) = orders.ok("vacuum", "--older-than", "0", "--dry-run", "--json", warns=SHORT).lines
    (deleted,) = orders.ok("vacuum", "--older-than", "0s", "--yes", "--json", warns=SHORT).lines
    assert would["deleted"] == deleted["deleted"]
    assert len(deleted["deleted"]) == 3
    assert _values(orders) == ["a", "b", "c"]


@pytest.mark.usefixtures("own_objects")
def test_verify_status_reports_violations(orders: Cli) -> None:
    orders.ok("produce", "orders", stdin="a")
    (fine,) = orders.ok("verify", "--deep", "--json").lines
    assert (fine["ok"], fine["violations"], fine["segments"]) == (True, [], 1)
    shown = orders.ok("verify").out.splitlines()
    assert shown[0] == "No violations found"
    assert {line.split()[0] for line in shown[3:]} == {rule["invariant"] for rule in fine["rules"]}
    assert all(line.split()[-1] == "0" for line in shown[3:])
    folder = Path(orders.url.removeprefix("file://")) / "topics"
    (segment,) = folder.rglob("*.parquet")
    segment.write_bytes(segment.read_bytes()[:-1] + b"x")
    damaged = orders("verify", "--deep", "--json")
    assert damaged.status == 1
    assert segment.name in damaged.lines[0]["violations"][0]["subject"]
    assert segment.name in orders("verify", "--deep").out


def test_the_chain_is_shown_entry_by_entry(orders: Cli) -> None:
    orders.ok("produce", "orders", "--transactional-id", "job", stdin="a")
    shown = orders.ok("log", "show", "--json").lines
    assert [entry["entry"] for entry in shown] == [1, 2, 3]
    assert shown[0]["events"] == "TopicCreated"
    assert "TxnCompleted" in shown[2]["events"]
    assert [entry["entry"] for entry in orders.ok("log", "show", "--max", "1", "--before", "3", "--json").lines] == [2]
    (entry,) = orders.ok("log", "entry", "3", "--json").lines
    assert entry["sequence"] == 3
    assert {event["type"] for event in entry["events"]} >= {"BatchesAppended", "TxnDecided", "MarkerWritten"}
    assert "BatchesAppended  {" in orders.ok("log", "entry", "3").out
    (saved,) = orders.ok("checkpoint", "--json").lines
    assert saved == {"sequence": 3}


@pytest.mark.parametrize("name", sorted(root.commands))
def test_every_command_has_a_help_screen(cli: Cli, name: str) -> None:
    screen = cli.ok(name, "--help").out
    assert f"Usage: txnstore {name}" in screen


@pytest.mark.parametrize("names", [(), *((name,) for name in sorted(root.commands))])
def test_no_sentence_of_a_list_of_commands_is_cut_off(cli: Cli, names: tuple[str, ...]) -> None:
    assert "..." not in cli.ok(*names, "--help").out.partition("\n")[2]
