"""The messages between a process and the committer of a chain: each is read as it was sent, or refused."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.protocol.authorization.test_rights import ID, PLAIN, TABLE, TOPIC, batch
from txnstore.chain.committer.messages import (
    Commands,
    Declined,
    Hello,
    Message,
    Stored,
    UnreadableMessageError,
    Welcome,
    decode_message,
    encode_message,
)
from txnstore.core.authorization.model import FollowAuthorization
from txnstore.core.catalog.model import CopyTopic, CreateTopic
from txnstore.core.commands import COMMANDS
from txnstore.core.groups.commands import StoreGeneration
from txnstore.core.groups.model import ClassicMember
from txnstore.core.log.commands import Append
from txnstore.core.model import Command, Outcome, TopicPartition
from txnstore.core.transactions.commands import (
    CompleteTxn,
    DecidedTransaction,
    EndTxn,
    FenceProducer,
    InitProducer,
    WriteMarkers,
)

DECIDED = DecidedTransaction("id", 1, 2, Outcome.ABORT, (TopicPartition("t", 0),), ("g",), (("t", "topic-id"),), 3)
MEMBER = ClassicMember("m", None, "client", "127.0.0.1", 10_000, 20_000, b"\x00\xff", b"")
#: Each class of commands at least once; some with values that the table of rights does not need.
ALL: list[Command] = [
    *(command for command, _ in TABLE),
    CompleteTxn(DECIDED, ((1, 2), (3, 4))),
    CopyTopic("t", TOPIC, 5),
    CopyTopic("t", None, 6),
    FenceProducer(ID, (TopicPartition("t", 0),), ("g",), (0, 7)),
    FollowAuthorization(8),
    WriteMarkers(DECIDED, (0, 9), copies_current=True),
    CreateTopic(replace(TOPIC, config={"retention.ms": "1"})),
    StoreGeneration("g", 1, 2, "consumer", "range", "m", (MEMBER,)),
    Append(ID, (replace(batch(), data=b"\x00\xff" * 9, topic_id="topic-id", rows=1), batch("u"))),
    EndTxn(ID, Outcome.COMMIT, (replace(batch(), data=b""),), versions=(("job", 1),), session=True),
]
OTHERS: list[Message] = [
    Hello("memory:// chains/0", "writer"),
    Welcome(2**40, "0" * 64, 2**40, 0.5),
    Declined(()),
    Declined((1, 2**40)),
    Stored(7, True, False, b""),
    Stored(8, False, True, bytes(range(256))),
]


def commands(*handed: Command) -> Commands:
    return Commands(3, 2**41, 1, tuple((number, f"User:{number}", each) for number, each in enumerate(handed, 4)))


def round_trip(command: Command) -> Any:
    ((number, principal, read),) = decode_message(encode_message(commands(command))).handed  # type: ignore[union-attr]
    assert (number, principal) == (4, "User:4")
    assert type(read) is type(command)
    return read


@pytest.mark.parametrize("command", ALL, ids=lambda command: type(command).__name__)
def test_each_command_is_read_as_it_was_sent(command: Command) -> None:
    assert round_trip(command) == command


def test_all_commands_are_read_as_they_were_sent_in_one_message() -> None:
    message = commands(*ALL)
    assert decode_message(encode_message(message)) == message
    assert {type(command) for command in ALL} == set(COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
def test_any_values_of_a_command_are_read_as_they_were_sent(kind: type[Command]) -> None:
    @settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.from_type(kind))
    def check(command: Command) -> None:
        assert round_trip(command) == command

    check()


@pytest.mark.parametrize("message", OTHERS, ids=repr)
def test_other_messages_are_read_as_they_were_sent(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


def test_batches_share_their_bytes_as_before() -> None:
    """A segment is inlined once for all its batches, which the committer recognizes by the identity of the bytes."""
    shared, own = b"shared" * 1000, b"own"
    first = Append(PLAIN, (replace(batch(), data=shared), batch(), replace(batch("u"), data=shared)))
    second = EndTxn(ID, Outcome.COMMIT, (replace(batch(), data=own), replace(batch("u"), data=shared)))
    message = commands(first, second)
    frame = encode_message(message)
    assert frame.count(b"shared") == 1000
    assert frame.endswith(shared + own)
    read: Any = decode_message(frame)
    assert read == message
    data = [each.data for _, _, command in read.handed for each in command.batches]
    assert data == [shared, None, shared, own, shared]
    assert data[0] is data[2] is data[4]


def test_equal_bytes_of_two_segments_stay_two_objects() -> None:
    one, other = bytes([1, 2, 3] * 9), bytes([1, 2, 3] * 9)
    assert one is not other
    read = round_trip(Append(PLAIN, (replace(batch(), data=one), replace(batch("u"), data=other))))
    assert read.batches[0].data is not read.batches[1].data


# What is refused ------------------------------------------------------------------------------------------------------


def frame_of(header: Any, data: bytes = b"") -> bytes:
    written = json.dumps(header).encode()
    return len(written).to_bytes(4, "big") + written + data


def header_of(message: Message) -> list[Any]:
    frame = encode_message(message)
    header: list[Any] = json.loads(frame[4 : 4 + int.from_bytes(frame[:4], "big")])
    return header


HEADERS = [header_of(message) for message in (*OTHERS[:2], OTHERS[3], OTHERS[4], commands(InitProducer("id")))]
WRONG: dict[type, list[Any]] = {
    str: [1, None, ["a"]],
    int: ["1", 1.5, None, True],
    float: ["0.5", None],
    bool: [1, "true", None],
    list: [1, "[]", None],
}


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: header[0])
def test_values_of_another_type_are_refused(header: list[Any]) -> None:
    assert isinstance(decode_message(frame_of(header)), Message)
    for place in range(1, len(header)):
        for wrong in WRONG[type(header[place])]:
            with pytest.raises(UnreadableMessageError):
                decode_message(frame_of([*header[:place], wrong, *header[place + 1 :]]))
    for other in ([*header, 1], header[:-1], ["unknown", *header[1:]], [], {"name": header[0]}, header[0]):
        with pytest.raises(UnreadableMessageError):
            decode_message(frame_of(other))


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("InitProducer", {"transactional_id": 7}),
        ("InitProducer", {"transactional_id": "id", "timeout_ms": "7"}),
        ("InitProducer", {"transactional_id": "id", "two_phase": 1}),
        ("AbortTxn", {}),
        ("FollowAuthorization", {"sequence": "7"}),
        ("FollowAuthorization", {"sequence": 7.5}),
        ("EndTxn", {"producer": {"producer_id": 0, "epoch": 0}, "outcome": "perhaps"}),
        ("Command", {}),
        ("DecidedTransaction", {}),
    ],
)
def test_commands_with_values_of_a_wrong_type_are_refused(kind: str, written: Any) -> None:
    row = [1, "User:x", kind, [], json.dumps([written])]
    with pytest.raises(UnreadableMessageError):
        decode_message(frame_of(["commands", 1, 2, 3, [row], []]))


@pytest.mark.parametrize("place", [0, 1, 2, 3, 4])
def test_rows_with_values_of_a_wrong_type_are_refused(place: int) -> None:
    name, after, not_before, catalog, rows, sizes = HEADERS[-1]
    for wrong in WRONG[type(rows[0][place])]:
        row = [*rows[0][:place], wrong, *rows[0][place + 1 :]]
        with pytest.raises(UnreadableMessageError):
            decode_message(frame_of([name, after, not_before, catalog, [row], sizes]))


@pytest.mark.parametrize(
    ("places", "sizes"),
    [([0], [4]), ([1], [3]), ([-1], [3]), ([0], [-1, 4]), ([0, 0], [3]), ([], [3]), ([0], [2]), (["0"], [3])],
)
def test_bytes_of_batches_that_are_not_those_of_the_header_are_refused(places: list[Any], sizes: list[int]) -> None:
    header = header_of(commands(Append(PLAIN, (replace(batch(), data=b"abc"),))))
    assert (header[4][0][3], header[5]) == ([0], [3])
    decode_message(frame_of(header, b"abc"))
    header[4][0][3], header[5] = places, sizes
    with pytest.raises(UnreadableMessageError):
        decode_message(frame_of(header, b"abc"))


@pytest.mark.parametrize("message", [*OTHERS[:4], commands(*ALL), commands(ALL[-2])], ids=lambda each: repr(each)[:20])
def test_parts_of_a_frame_are_refused(message: Message) -> None:
    frame = encode_message(message)
    ends = range(len(frame)) if len(frame) < 500 else random.Random(1).sample(range(len(frame)), 200)
    for end in [*ends, len(frame) - 1]:
        with pytest.raises(UnreadableMessageError):
            decode_message(frame[:end])
    with pytest.raises(UnreadableMessageError):
        decode_message(frame + b"x")


@pytest.mark.parametrize("message", [*OTHERS, commands(*ALL)], ids=lambda each: repr(each)[:20])
def test_frames_with_flipped_bits_are_messages_or_refused(message: Message) -> None:
    frame, rng = encode_message(message), random.Random(2)
    for _ in range(300):
        garbled = bytearray(frame)
        for _ in range(rng.randrange(1, 4)):
            garbled[rng.randrange(len(garbled))] ^= 1 << rng.randrange(8)
        try:
            read = decode_message(bytes(garbled))
        except UnreadableMessageError:
            continue
        assert isinstance(read, Message)


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_other_bytes_are_refused(frame: bytes) -> None:
    with pytest.raises(UnreadableMessageError):
        decode_message(frame)
