"""Lengths and counts of requests are compared with the bytes that follow them, before anything decodes them."""

from __future__ import annotations

import random
import struct
import tracemalloc
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.serial import entity_reader

from tests.harness.gateway_fuzz import Messages, changed
from tests.helpers.gateway_process import request_frame
from tests.helpers.kafka_frames import SERVED, FrameWriter, hostile, varint
from txnstore.gateway import frames
from txnstore.gateway.apis import VERSIONS, Api
from txnstore.gateway.frames import VALUE_SIZE, MalformedRequestError, check_frame
from txnstore.gateway.wire import read_request


@pytest.fixture(scope="module", autouse=True)
def _new_walks() -> None:
    """Those that are kept were made before a mutant."""
    frames._entity_type.cache_clear()
    frames._request_step.cache_clear()


def _names(pairs: list[tuple[Api, int]]) -> list[str]:
    return [f"{api.name} {version}" for api, version in pairs]


def _is_taken(data: bytes) -> bool:
    try:
        check_frame(data)
    except MalformedRequestError:
        return False
    return True


def _ends(data: bytes, api: int, version: int) -> tuple[int | None, int | None]:
    """Where the walk and kio end, None if either refuses the frame; kio is not asked if the walk does."""
    try:
        walked = frames._request_step(api, version)(frames._Walk(data, frames.MOST_VALUES), 0)
        check_frame(data)
    except (MalformedRequestError, struct.error, IndexError):
        return None, None
    schema: Any = load_request_schema(api, version)
    try:
        _, start = entity_reader(schema.__header_schema__)(data, 0)
        return walked, start + entity_reader(schema)(data, start)[1]
    except Exception:  # noqa: BLE001 - It has many ways to say that it cannot read it.
        return walked, None


@pytest.mark.parametrize(("api", "version"), SERVED, ids=_names(SERVED))
def test_no_length_or_count_is_taken_that_the_frame_does_not_hold(api: Api, version: int) -> None:
    """Each place of each request, also those within fields with tags: kio would reserve 34 GB for an array of 2³²-2."""
    for is_full in (True, False):
        written = FrameWriter(has_tags=is_full, has_entities=is_full).write(api, version)
        for place, number in hostile(written):
            assert not _is_taken(written.replaced(place, number)), f"{place} takes {number}"


@pytest.mark.parametrize(("api", "version"), SERVED, ids=_names(SERVED))
def test_the_walk_ends_where_kio_does(api: Api, version: int) -> None:
    for counts in ((lambda _: 0), (lambda _: 1), (lambda _: 3)):
        for is_full in (True, False):
            writer = FrameWriter(counts, has_tags=is_full, has_entities=is_full)
            data = writer.write(api, version).data
            assert _ends(data, api, version) == (len(data), len(data))
            assert _ends(data + b"more", api, version) == (len(data), len(data))
            for size in range(frames.START_SIZE, len(data)):
                with pytest.raises(MalformedRequestError):
                    check_frame(data[:size])


@pytest.mark.slow
def test_the_walk_ends_where_kio_does_in_frames_with_faults() -> None:
    """Where it passed other bytes than kio does, a count could hide."""
    rng = random.Random(11)
    messages, both = Messages(rng, uuid.UUID(int=1)), 0
    for number in range(6000):
        api, version = rng.choice(SERVED)
        frame = messages.frame(api, version, number)
        data = changed(rng, frame, messages.frame(api, version, 0))[4:]
        if data[:4] != struct.pack(">hh", api, version):
            continue
        walked, read = _ends(data, api, version)
        if read is not None:
            assert walked == read, (api, version, data)
            both += 1
    assert both > 500


def _many_at(target: str, many: int) -> Callable[[str], int]:
    """So many items of one array, in arrays of one."""
    return lambda path: many if path == target else int(target.startswith(path))


@pytest.mark.parametrize("api", VERSIONS, ids=[api.name for api in VERSIONS])
def test_decoded_values_take_no_more_memory_than_is_counted(api: Api) -> None:
    """Of items as small as they can be; at a count at which fixed costs do not matter."""
    version, many = VERSIONS[api].last, 500
    for target in {place.name for place in FrameWriter().write(api, version).places if place.is_array}:
        writer = FrameWriter(_many_at(target, many), lambda _: b"", lambda _: 1000)
        frame = check_frame(writer.write(api, version).data)
        read_request(frame)
        tracemalloc.start()
        try:
            request = read_request(frame)
            taken = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert taken <= frame.decoded_size + len(frame.data) + 4096, target
        del request


def _topics(count: int) -> dict[str, Any]:
    parts = [{"index": number, "records": b"r"} for number in range(2)]
    return {"acks": 1, "topic_data": [{"name": f"t{number}", "partition_data": parts} for number in range(count)]}


@pytest.mark.slow
@pytest.mark.parametrize("version", [3, 9, 13])
def test_a_produce_request_has_a_bounded_number_of_partitions(version: int) -> None:
    check_frame(request_frame(Api.PRODUCE, version, _topics(10_000))[4:])
    with pytest.raises(MalformedRequestError, match="it has more than 100000 values"):
        check_frame(request_frame(Api.PRODUCE, version, _topics(12_000))[4:])


def test_a_request_has_a_bounded_number_of_values() -> None:
    """An array of 2 MB has an item in each byte, which is an object of 32 bytes when it is decoded."""

    def frame(count: int) -> bytes:
        none = FrameWriter(count=lambda _: 0).write(Api.LIST_CONFIG_RESOURCES, 1).data
        return none[:-2] + varint(count + 1) + b"\2" * count + b"\0"

    assert check_frame(frame(1_000_000)).decoded_size == 1_000_000 * VALUE_SIZE
    with pytest.raises(MalformedRequestError, match="it has more than 1000000 values"):
        check_frame(frame(1_000_001))


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (b"\x80\x80\x80\x80\x80\0", "a length has more than five bytes"),
        (b"\xff\xff\xff\xff\x0f", "a length is 4294967295"),
        (b"\xff\xff\xff\xff\x07", "topics claims 2147483646 items, and 0 bytes follow"),
        (b"\2\x7f\0\0\0\0", "name claims 126 bytes, and 4 bytes follow"),
        (b"\3\1\0\1", "topics claims 2 items, and 3 bytes follow"),
        (b"\1\0\0", "it ends in the middle of a field"),
        (b"\1\0\0\0\1\7\0", "a field has the tag 7"),
    ],
)
def test_it_is_said_what_is_wrong_with_a_frame(tail: bytes, message: str) -> None:
    data = struct.pack(">hhih", Api.METADATA, 9, 1, -1) + b"\0" + tail
    with pytest.raises(MalformedRequestError, match=f"is no request of API 3, version 9: {message}"):
        check_frame(data)


@pytest.mark.parametrize(
    ("tagged", "message"),
    [
        (b"\1\0\2\3ab", "the field of tag 0 does not take its 2 bytes"),
        (b"\1\0\4\3ab", "the field of tag 0 does not take its 4 bytes"),
        (b"\2\0\3\3ab\0\3\3ab", "a field has the tag 0"),
    ],
    ids=["short", "long", "twice"],
)
def test_fields_with_tags_take_their_lengths(tagged: bytes, message: str) -> None:
    written = FrameWriter(count=lambda _: 0, has_tags=False).write(Api.FETCH, 12).data
    with pytest.raises(MalformedRequestError, match=message):
        check_frame(written[:-1] + tagged + bytes(4))
