"""The options of ``format("txnstore")``, without Spark."""

from __future__ import annotations

import pytest

from txnstore.core.model import Isolation, TopicPartition
from txnstore.errors import InvalidConfigError
from txnstore.snapshot import Moment
from txnstore.spark.options import NewTopic, column_options, read_options, sink_options, stream_options, write_options

BASE = {"path": "s3://bucket/store", "topic": "t"}


def test_option_names_are_case_insensitive() -> None:
    """Spark hands over keys in lower case."""
    options = read_options(
        {**BASE, "startingoffsets": "LATEST", "ISOLATION": "read_uncommitted", "partitions": "2, 0", "columns": "a, b"},
    )
    assert options.start == "latest"
    assert options.isolation is Isolation.READ_UNCOMMITTED
    assert options.partitions == (2, 0)
    assert options.columns == ("a", "b")


def test_offsets_as_in_the_kafka_source() -> None:
    options = read_options({**BASE, "startingOffsets": '{"0":23,"1":-2}', "endingOffsets": '{"t":{"1":-1}}'})
    assert options.start == {TopicPartition("t", 0): 23, TopicPartition("t", 1): -2}
    assert options.end == {TopicPartition("t", 1): -1}
    several = read_options({**BASE, "topic": "t,u", "startingOffsets": '{"u":{"0":1}}'})
    assert several.topics == ("t", "u")
    assert several.start == {TopicPartition("u", 0): 1}


def test_storage_options_keep_their_types_and_their_secrets() -> None:
    """JSON where it can be nothing else: a key of digits stays a text. No secret is in a repr."""
    options = read_options(
        {
            **BASE,
            "storage.key": "12345",
            "storage.secret": "hush",
            "storage.anon": "false",
            "storage.client_kwargs": '{"region_name": "eu-central-1"}',
        },
    )
    assert options.location.storage_options == {
        "key": "12345",
        "secret": "hush",
        "anon": False,
        "client_kwargs": {"region_name": "eu-central-1"},
    }
    assert "hush" not in repr(options)


def test_a_snapshot_is_an_entry_or_a_time_of_a_batch_read() -> None:
    assert read_options({**BASE, "snapshot": "21,40"}).snapshot == Moment(entry=(21, 40))
    assert read_options({**BASE, "snapshot": "1970-01-01T00:00:01Z"}).snapshot == Moment(timestamp=1_000)
    with pytest.raises(InvalidConfigError, match="the option snapshot must be an entry such as 42"):
        read_options({**BASE, "snapshot": "yesterday"})
    with pytest.raises(InvalidConfigError, match="snapshot is for batch reads"):
        stream_options({**BASE, "snapshot": "42"})


def test_options_of_a_read_are_checked_when_spark_asks_for_its_columns() -> None:
    """Spark asks the same of a batch and of a stream; an option of streams alone makes it one."""
    assert column_options({**BASE, "columns": "a", "endingTimestamp": "5"}).columns == ("a",)
    assert column_options({**BASE, "group": "g", "failonDATAloss": "false"}).topics == ("t",)
    assert column_options({**BASE, "checkpointLocation": "s3://bucket/checkpoints"}).topics == ("t",)
    for wrong in ({"maxoffsetspertrigger": "0"}, {"group": "g", "endingTimestamp": "5"}, {"pollIntervalMs": "-1"}):
        with pytest.raises(InvalidConfigError):
            column_options({**BASE, **wrong})


def test_a_missing_topic_may_be_created() -> None:
    assert write_options({**BASE, "createTopic": "false"}).create is None
    assert write_options({**BASE, "createtopic": "TRUE"}).create == NewTopic()
    settings = {"createTopic": "true", "createTopic.partitions": "4", "createTopic.key": "id"}
    assert sink_options({**BASE, **settings, "createTopic.timestamp": "at"}).create == NewTopic(4, "id", "at")
    assert read_options({**BASE, **settings}).topics == ("t",)  # The options of a view that is read and written.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({**BASE, "createTopic": "yes"}, "createTopic must be 'true' or 'false', not 'yes'"),
        ({**BASE, "createTopic.partitions": "4"}, "createTopic.partitions needs the option createTopic"),
        ({**BASE, "createTopic": "true", "createTopic.partitions": "0"}, "createTopic.partitions must be .* 1 or more"),
        ({"path": "p", "createTopic": "true"}, "createTopic needs the option topic"),
    ],
)
def test_wrong_options_of_a_new_topic_are_refused(options: dict[str, str], message: str) -> None:
    for parse in (write_options, sink_options):
        with pytest.raises(InvalidConfigError, match=message):
            parse(options)


def test_versions_of_a_job() -> None:
    assert write_options(BASE).versions == ()
    options = write_options({**BASE, "transactionalid": "loader", "txnversion": "7"})
    assert (options.transactional_id, options.versions) == ("loader", (("", 7),))
    assert write_options({**BASE, "transactionalId": "l", "txnVersion": "0", "txnScope": "s"}).versions == (("s", 0),)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "t"}, "where is the store"),
        ({"path": "memory://x", "topic": "t"}, "memory of one process"),
        ({"path": "x"}, "which topic is to be read"),
        ({**BASE, "topic": "a,,b"}, "topic contains an empty name"),
        ({**BASE, "columns": "a,a"}, "columns contains a duplicate name"),
        ({**BASE, "columns": " "}, "columns names no column"),
        ({**BASE, "startingOffset": "x"}, "no option 'startingOffset'; did you mean startingOffsets"),
        ({**BASE, "zzz": "x"}, "no option 'zzz'; The options are checkpointLocation, columns"),
        ({**BASE, "maxOffsetsPerTrigger": "5"}, "is for streaming queries"),
        ({**BASE, "isolation": "serializable"}, "isolation must be"),
        ({**BASE, "partitions": "0,x"}, "partitions must be an integer, or several separated by commas, not 'x'"),
        ({**BASE, "minPartitions": "0"}, "minPartitions must be an integer, 1 or more, not 0"),
        ({**BASE, "startingOffsets": "0"}, "must be earliest, latest or JSON"),
        ({**BASE, "startingOffsets": "{"}, "must be earliest, latest or JSON"),
        ({**BASE, "startingOffsets": '{"0":-3}'}, "of t-0 must be an offset"),
        ({**BASE, "startingOffsets": '{"0":true}'}, "of t-0 must be an offset"),
        ({**BASE, "startingOffsets": '{"x":1}'}, "must be an integer, not 'x'"),
        ({**BASE, "minPartitions": "x"}, "minPartitions must be an integer, not 'x'"),
        ({**BASE, "endingOffsets": '{"u":{"0":1}}'}, "names the topic 'u', which is not read"),
        ({**BASE, "endingOffsets": '{"t":{"0":1},"u":5}'}, "names the topic 'u'|must give offsets by partition"),
        ({**BASE, "topic": "t,u", "startingOffsets": '{"0":1}'}, "must name the topic"),
        ({**BASE, "startingOffsets": "earliest", "startingTimestamp": "1"}, "not both"),
        ({"path": "p", "topicPattern": "("}, "is not a regular expression"),
        (
            {**BASE, "startingTimestamp": "soon"},
            "startingTimestamp must be an integer of milliseconds",
        ),
        (
            {**BASE, "storage.client_kwargs": '{"secret": '},
            r"storage.client_kwargs is not valid JSON \(Expecting value",
        ),
        ({**BASE, "storage.x": '{"a":1,"a":2}'}, r"storage.x is not valid JSON \(the name 'a' occurs twice"),
    ],
)
def test_invalid_read_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        read_options(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "t"}, "where is the store"),
        ({**BASE, "txnVersion": "1"}, "needs a transactionalId"),
        ({**BASE, "transactionalId": "x", "txnVersion": "-1"}, "at least 0"),
        ({**BASE, "transactionalId": "x", "txnVersion": "one"}, "must be an integer"),
        ({**BASE, "transactionalId": "x", "txnScope": "s"}, "needs a txnVersion"),
        ({**BASE, "transactionalId": ""}, "must not be empty"),
        ({**BASE, "transactionId": "x"}, "did you mean transactionalId"),
        ({**BASE, "checkpointlocation": "x"}, "is for streaming queries"),
    ],
)
def test_invalid_write_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        write_options(options)


def test_options_of_a_stream() -> None:
    options = stream_options({**BASE, "maxoffsetspertrigger": "7", "failondataloss": "False", "group": "etl"})
    assert (options.max_offsets, options.fail_on_data_loss, options.group) == (7, False, "etl")
    assert options.poll_interval_ms == 1_000
    assert stream_options({**BASE, "pollIntervalMs": "0"}).poll_interval_ms == 0
    assert read_options({"path": "p", "topicPattern": "a.*"}).pattern == "a.*"


def test_options_of_a_sink() -> None:
    """Spark adds ``queryName`` and ``checkpointLocation``."""
    options = sink_options({**BASE, "queryname": "q", "checkpointlocation": "/c", "group": "etl"})
    assert (options.topic, options.group, options.checkpoint) == ("t", "etl", "/c")
    assert sink_options({"path": "p"}).topic is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be an integer, 1 or more"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss must be 'true' or 'false'"),
        ({"pollIntervalMs": "-1"}, "pollIntervalMs must be"),
        ({"endingTimestamp": "5"}, "endingTimestamp is for batch reads"),
        ({"endingOffsets": "earliest"}, "endingOffsets of a stream must be latest"),
        ({"endingOffsets": '{"0":-2}'}, "endingOffsets of a stream must be latest"),
        ({"group": ""}, "group must not be empty"),
        ({"topicPattern": "t"}, "give topic or topicPattern, not both"),
    ],
)
def test_invalid_stream_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        stream_options({**BASE, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"txnVersion": "5", "transactionalId": "x"}, "txnVersion is for batch writes"),
        ({"group": "etl"}, "group needs the checkpointLocation"),
        ({"transactionalId": ""}, "must not be empty"),
    ],
)
def test_invalid_sink_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        sink_options({**BASE, **options})


def test_error_of_invalid_json_does_not_contain_it() -> None:
    with pytest.raises(InvalidConfigError) as caught:
        read_options({**BASE, "storage.client_kwargs": '{"aws_secret": "hush'})
    assert "hush" not in str(caught.value)


def test_columns_as_json_may_contain_commas() -> None:
    given = {"path": "/store", "topic": "t"}
    assert read_options({**given, "columns": '["a,b", "c]", " d"]'}).columns == ("a,b", "c]", " d")
    for wrong in ("[", "[]", '["a", 1]', '["a", "a"]', '["a", ""]', "[" * 100_000):
        with pytest.raises(InvalidConfigError, match="the option columns"):
            read_options({**given, "columns": wrong})
