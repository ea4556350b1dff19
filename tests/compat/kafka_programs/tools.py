"""The command-line tools of a Kafka release, with right and with wrong input."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from tests.compat.kafka_programs.place import Place, UnexpectedError, serving

_CONFIG = "kafka.admin.ConfigCommand"
_GROUP = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
_CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
_TRANSACTIONS = "TransactionsCommand"
_RECORDS = 100_000


def cluster(place: Place) -> str:
    """What the tools show of gateways, and what they are refused."""
    shown = place.tool("BrokerApiVersionsCommand", contains="Produce(0): 0 to 13 [usable: 13]")
    _equal("brokers", len(re.findall(r"\(id: \d+ rack", shown)), place.brokers)
    place.run("ClusterTool", "cluster-id", "--bootstrap-server", place.bootstrap, contains="Cluster ID: ")
    place.tool("FeatureCommand", "describe", contains="transaction.version")
    refused = place.tool("FeatureCommand", "upgrade", "--feature", "transaction.version=1", status=1)
    _contains(refused, "does not support UPDATE_FEATURES")
    return f"{place.brokers} brokers"


def topics(place: Place) -> str:
    """Topics, their settings, and what concerns replicas, of which there is one."""
    tool, topic = place.tool, "TopicCommand"
    place.topic("t", 4, "--config", "min.insync.replicas=2", "--config", "cleanup.policy=compact")
    tool(topic, "--create", "--topic", "t", status=1, contains="Topic 't' already exists")
    tool(topic, "--create", "--topic", "t/t", status=1, contains="InvalidTopicException")
    tool(topic, "--create", "--topic", "u", "--config", "no.such=1", status=1, contains="InvalidConfigurationException")
    tool(topic, "--alter", "--topic", "t", "--partitions", "3", status=1, contains="InvalidPartitionsException")
    tool(topic, "--alter", "--topic", "t", "--partitions", "6")
    shown = tool(topic, "--describe", "--topic", "t", contains="PartitionCount: 6\tReplicationFactor: 1")
    leaders = {int(each) for each in re.findall(r"Leader: (\d+)", shown)}
    if not leaders <= set(range(place.brokers)):
        raise UnexpectedError(shown)
    settings = ("--entity-type", "topics", "--entity-name", "t")
    tool(_CONFIG, "--alter", *settings, "--add-config", "retention.ms=1000,segment.bytes=2000000")
    tool(_CONFIG, "--alter", *settings, "--delete-config", "retention.ms")
    tool(_CONFIG, "--alter", *settings, "--add-config", "retention.ms=x", status=1, contains="retention.ms must be")
    shown = tool(_CONFIG, "--describe", *settings, contains="segment.bytes=2000000")
    if "retention.ms" in shown:
        raise UnexpectedError(shown)
    number = str(place.brokers - 1)
    tool(_CONFIG, "--describe", "--all", "--entity-type", "brokers", "--entity-name", number, contains="broker.id")
    refusal = "cannot be altered"
    alter = ("--alter", "--entity-type", "brokers", "--entity-name", number, "--add-config", "log.cleaner.threads=2")
    tool(_CONFIG, *alter, status=1, contains=refusal)
    tool("LogDirsCommand", "--describe", "--topic-list", "t", contains='"partition":"t-5"')
    tool("LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
    _reassignment(place)
    tool(topic, "--delete", "--topic", "t")
    tool(topic, "--delete", "--topic", "t", status=1, contains="does not exist as expected")
    _equal("topics", place.query("select count(*) from txn.topics where topic = 't'"), [(0,)])
    return "created, altered, deleted"


def _reassignment(place: Place) -> None:
    """Partitions have one replica, which is nowhere else: only a move is refused."""
    moves = place.folder / "moves.json"
    partitions = [{"topic": "t", "partition": 0, "replicas": [0]}]
    moves.write_text(json.dumps({"version": 1, "partitions": partitions}))
    move = ("--reassignment-json-file", str(moves))
    place.tool(_REASSIGN, "--execute", *move, status=1, contains="does not support ALTER_PARTITION_REASSIGNMENTS")
    place.tool(_REASSIGN, "--list", contains="No partition reassignments found")
    place.tool(_REASSIGN, "--verify", *move, contains="t-0")


def verifiable(place: Place) -> str:
    """100,000 records by VerifiableProducer; one VerifiableConsumer, and groups of two in each protocol, read them."""
    place.topic("verifiable", 4)
    at = ("--bootstrap-server", place.bootstrap, "--topic", "verifiable", "--max-messages", str(_RECORDS))
    printed = place.run("VerifiableProducer", *at, "--acks", "-1")
    acknowledged = [each for each in _events(printed) if each["name"] == "producer_send_success"]
    _equal("acknowledged", len(acknowledged), _RECORDS)
    rows = place.query("select _partition, _offset, decode(value) from verifiable")
    stored = {(partition, offset): text for partition, offset, text in rows}
    _equal("records", stored, {(each["partition"], each["offset"]): each["value"] for each in acknowledged})
    consume = (*at, "--reset-policy", "earliest", "--group-id")
    _consumed(place, [place.run("VerifiableConsumer", *consume, "alone", "--group-protocol", "classic")])
    for protocol in ("classic", "consumer"):
        group = f"two-{protocol}"
        options = (*consume, group, "--group-protocol", protocol)
        with place.program("VerifiableConsumer", *options) as one, place.program("VerifiableConsumer", *options) as two:
            one.wait_until(partial(_has_committed, place, group, _RECORDS), f"{_RECORDS} committed")
            _consumed(place, [one.terminate(), two.terminate()])
    return f"{_RECORDS} records, read by one and by groups of two"


def _consumed(place: Place, outputs: list[str]) -> None:
    """The last offsets that were consumed are those of all records."""
    ends: dict[int, int] = {}
    for output in outputs:
        for event in _events(output):
            for each in event.get("partitions", []) if event["name"] == "records_consumed" else []:
                ends[each["partition"]] = max(ends.get(each["partition"], 0), each["maxOffset"] + 1)
    _equal("consumed", sum(ends.values()), _RECORDS)


def _has_committed(place: Place, group: str, total: int) -> bool:
    return place.committed(group) == total


def groups(place: Place) -> str:
    """Offsets of groups are listed, reset and deleted; records are deleted."""
    place.topic("g")
    place.run("VerifiableProducer", "--bootstrap-server", place.bootstrap, "--topic", "g", "--max-messages", "999")
    at = ("--bootstrap-server", place.bootstrap, "--topic", "g", "--reset-policy", "earliest")
    with place.program("VerifiableConsumer", *at, "--group-id", "readers") as reader:
        reader.wait_until(partial(_has_committed, place, "readers", 999), "commits")
        lines = place.tool(_GROUP, "--describe", "--group", "readers").splitlines()
        lags = [line.split()[5] for line in lines if line.startswith("readers")]
        _equal("lag", lags, ["0"])
        place.tool(_GROUP, "--describe", "--group", "readers", "--members", contains="readers")
        place.tool(_GROUP, "--delete", "--group", "readers", contains="GroupNotEmptyException")
        reset = ("--reset-offsets", "--group", "readers", "--topic", "g", "--to-earliest", "--execute")
        _contains(place.tool(_GROUP, *reset), "inactive")
        reader.terminate()
    place.tool(_GROUP, *reset)
    _equal("after a reset", place.committed("readers"), 0)
    place.tool(_GROUP, "--reset-offsets", "--group", "readers", "--topic", "g:0", "--shift-by", "7", "--execute")
    _equal("after a shift", place.committed("readers"), 7)
    place.tool(_GROUP, "--delete-offsets", "--group", "readers", "--topic", "g:0", contains="Successful")
    place.tool(_GROUP, "--delete", "--group", "readers", contains="successful")
    place.tool(_GROUP, "--describe", "--group", "readers", contains="GroupIdNotFoundException")
    place.tool("GroupsCommand", "--list")
    _delete_records(place)
    return "listed, reset, deleted"


def _delete_records(place: Place) -> None:
    asked = place.folder / "deletions.json"
    for offset, answer in [(5, "partition: g-0\tlow_watermark: 5"), (10**6, "OffsetOutOfRangeException")]:
        partitions = [{"topic": "g", "partition": 0, "offset": offset}]
        asked.write_text(json.dumps({"version": 1, "partitions": partitions}))
        place.tool("DeleteRecordsCommand", "--offset-json-file", str(asked), contains=answer)
    place.tool("GetOffsetShell", "--topic", "g", "--time", "earliest", contains="g:0:5\n")
    place.tool("GetOffsetShell", "--topic", "g", "--time", "latest", contains="g:0:999\n")
    _equal("records", place.count("g"), 994)


def console(place: Place) -> str:
    """Keys, headers and nulls by the console; an aborted and an open transaction by both levels of isolation."""
    place.topic("console")
    properties = [
        f"--reader-property={each}"
        for each in (
            "parse.key=true",
            "parse.headers=true",
            "key.separator=;",
            "headers.delimiter=;",
            "null.marker=NULL",
        )
    ]
    lines = "h:1,i:2;k1;a\nNULL;k2;b\nh:3;k3;NULL\n"
    place.tool("ConsoleProducer", "--topic", "console", *properties, text=lines)
    rows = place.query("select decode(key), decode(value), len(headers) from console order by _offset")
    _equal("rows", rows, [("k1", "a", 2), ("k2", "b", None), ("k3", None, 1)])
    with _open_transaction(place):
        show = ("--topic", "console", "--from-beginning", "--timeout-ms", "60000", "--isolation-level")
        committed = place.tool(_CONSOLE, *show, "read_committed", "--max-messages", "4", contains="\ncommitted\n")
        if "aborted" in committed:
            raise UnexpectedError(committed)
        every = place.tool(_CONSOLE, *show, "read_uncommitted", "--max-messages", "6", contains="\nopen\n")
        _contains(every, "\ncommitted\n")
    refused = place.tool("ConsoleProducer", "--topic", "nowhere", "--max-block-ms", "2000", text="x\n")
    _contains(refused, "not present in metadata")
    return "4 committed records"


@contextmanager
def _open_transaction(place: Place) -> Iterator[None]:
    """An aborted record, a committed one, and one of an open transaction, which ends with the block."""
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": place.bootstrap, "transactional.id": "console"})
    producer.init_transactions(60)
    for number, text in enumerate(("aborted", "committed", "open")):
        producer.begin_transaction()
        producer.produce("console", text)
        producer.flush(60)
        if number < 2:
            (producer.abort_transaction, producer.commit_transaction)[number](60)
    yield
    producer.abort_transaction(60)


def transactions(place: Place) -> str:
    """An open transaction is described and aborted; none hangs."""
    import confluent_kafka

    place.topic("txn", 2)
    tool, at = place.tool, ("--topic", "txn", "--partition", "1")
    producer = confluent_kafka.Producer({"bootstrap.servers": place.bootstrap, "transactional.id": "hanging"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("txn", "x", partition=1)
    producer.flush(60)
    tool(_TRANSACTIONS, "list", contains="hanging")
    shown = tool(_TRANSACTIONS, "describe", "--transactional-id", "hanging", contains="txn-1")
    _contains(shown, "Ongoing")
    tool(_TRANSACTIONS, "describe", "--transactional-id", "nobody", status=1, contains="ID could not be found")
    shown = tool(_TRANSACTIONS, "describe-producers", *at)
    (row,) = [line.split() for line in shown.splitlines()[1:]]
    # ProducerId, ProducerEpoch, LatestCoordinatorEpoch, LastSequence, LastTimestamp, CurrentTransactionStartOffset
    _equal("start of the transaction", row[5], "0")
    for broker in range(place.brokers):
        hanging = tool(_TRANSACTIONS, "find-hanging", "--broker-id", str(broker), "--max-transaction-timeout", "0")
        _equal("hanging", [line for line in hanging.splitlines() if "txn" in line], [])
    tool(_TRANSACTIONS, "abort", *at, "--start-offset", "99", status=1, contains="Could not find any open transactions")
    tool(_TRANSACTIONS, "abort", *at, "--start-offset", "0")
    states = place.query("select state from txn.transactions where transactional_id = 'hanging'")
    _equal("states", states, [("COMPLETE_ABORT",)])
    tool(_TRANSACTIONS, "forceTerminateTransaction", "--transactionalId", "hanging")
    try:
        producer.commit_transaction(60)
    except confluent_kafka.KafkaException as error:
        refusal = error.args[0].name()
    else:
        raise UnexpectedError("an aborted transaction was committed")
    _equal("records", place.count("txn"), 0)
    return f"the aborted one was refused with {refusal}"


def copier(place: Place) -> str:
    """Kafka's copier, which aborts at random, copies each record once; its second instance continues after a kill."""
    place.topic("originals", 2)
    place.topic("copies", 2)
    count = 20_000
    place.run(
        "VerifiableProducer",
        "--bootstrap-server",
        place.bootstrap,
        "--topic",
        "originals",
        "--max-messages",
        str(count),
    )
    options = (
        "--broker-list", place.bootstrap, "--input-topic", "originals", "--output-topic", "copies", "--group-mode",
        "--consumer-group", "copier", "--transactional-id", "copier", "--transaction-size", "1000",
        "--input-partition", "-1", "--enable-random-aborts", "--use-group-metadata",
    )  # fmt: skip
    with place.program("TransactionalMessageCopier", *options) as running:
        running.wait_until(lambda: place.count("copies") > 0, "copies")
        running.kill()
    before = place.count("copies")
    with place.program("TransactionalMessageCopier", *options) as running:
        running.end()
    same = "select count(*), count(distinct value) from {}"
    _equal("copies", place.query(same.format("copies")), [(count, count)])
    return f"{count} records, {before} of them before the kill"


def performance(place: Place) -> str:
    """The tools that measure, for the number of records that they write and read."""
    place.topic("perf", 3)
    send = ("--bootstrap-server", place.bootstrap, "--topic", "perf", "--record-size", "100", "--throughput", "-1")
    printed = place.run("ProducerPerformance", *send, "--num-records", "50000")
    place.run(
        "ProducerPerformance",
        *send,
        "--num-records",
        "10000",
        "--transactional-id",
        "perf",
        "--transaction-duration-ms",
        "300",
    )
    _equal("records", place.count("perf"), 60_000)
    read = place.tool("ConsumerPerformance", "--topic", "perf", "--num-records", "60000", "--group", "perf")
    _equal("read", read.splitlines()[-1].split(", ")[4], "60000")
    return printed.splitlines()[-1]


def acls(place: Place) -> str:
    """Rules are refused where no rights are checked; where they are, they are added, listed and removed."""
    add = ("--add", "--allow-principal", "User:bob", "--producer", "--topic", "t")
    place.tool("AclCommand", "--list", status=1, contains="txnstore acl enable")
    place.tool("AclCommand", *add, status=1, contains="txnstore acl enable")
    folder = place.folder / "acls"
    folder.mkdir()
    with serving(folder, place.jars, 1, ["--principal", "User:admin"]) as own:
        admin = ("--principal", "User:admin")
        enable = ("acl", "enable", "--store", own.url, "--super-user", "User:admin", "--yes")
        subprocess.run([sys.executable, "-m", "txnstore.cli", *admin, *enable], check=True, capture_output=True)
        own.tool("AclCommand", *add)
        own.tool("AclCommand", "--list", "--topic", "t", contains="principal=User:bob, host=*, operation=WRITE")
        rows = own.query("select principal, operation from txn.acls order by operation")
        _equal("rules", rows, [("User:bob", each) for each in ("CREATE", "DESCRIBE", "WRITE")])
        own.tool("AclCommand", "--remove", "--topic", "t", "--force")
        _equal("rules that are left", own.query("select * from txn.acls"), [])
    return "refused, then added, listed and removed"


# Outputs --------------------------------------------------------------------------------------------------------------


def _events(printed: str) -> Iterator[dict[str, Any]]:
    """The JSON objects that a program has printed, one in a line."""
    for line in printed.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def _equal(what: str, seen: object, expected: object) -> None:
    if seen != expected:
        msg = f"{what}: {str(seen)[:2000]}, not {str(expected)[:2000]}"
        raise UnexpectedError(msg)


def _contains(printed: str, text: str) -> None:
    if text not in printed:
        msg = f"{text!r} is not in {printed}"
        raise UnexpectedError(msg)
