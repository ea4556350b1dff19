"""Fetch sessions (KIP-227): which requests refer to one, what they change in it, and which sessions make room."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from txnstore.core.log.model import Partition
from txnstore.core.model import Isolation
from txnstore.gateway import fetch_sessions as module
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import RefusedError
from txnstore.gateway.fetch_sessions import UNUSED, FetchSession, FetchSessions, SessionPartition
from txnstore.gateway.wire import Request, build

ID = UUID("00000000-0000-4000-8000-000000000001")


class Time:
    """Seconds, set by a test."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def sessions(time: Time) -> FetchSessions:
    numbers = itertools.count(1)
    return FetchSessions(time, lambda: next(numbers))


def request(
    session: int = 0,
    epoch: int = 0,
    partitions: Sequence[tuple[str, int, int]] = (),
    forgotten: Sequence[tuple[str, int]] = (),
    version: int = 12,
) -> Request:
    """A Fetch: the partitions with their topics and offsets."""
    topics = [
        {"topic": topic, "topic_id": ID, "partitions": [{"partition": number, "fetch_offset": offset}]}
        for topic, number, offset in partitions
    ]
    gone = [{"topic": topic, "topic_id": ID, "partitions": [number]} for topic, number in forgotten]
    fields: dict[str, Any] = {"session_id": session, "session_epoch": epoch}
    fields |= {"topics": topics, "forgotten_topics_data": gone, "max_wait": 0, "min_bytes": 0}
    return Request(Api.FETCH, version, 1, None, build(load_request_schema(Api.FETCH, version), fields))


def begun(sessions: FetchSessions, *partitions: tuple[str, int, int]) -> FetchSession:
    session = sessions.of(request(partitions=partitions))
    assert session is not None
    assert session.is_full
    return session


def offsets(session: FetchSession) -> list[tuple[object, int, int]]:
    return [(*key, partition.requested.fetch_offset) for key, partition in session.partitions.items()]


def test_a_session_has_the_partitions_that_requests_have_added_changed_and_forgotten(sessions: FetchSessions) -> None:
    session = begun(sessions, ("t", 0, 5), ("u", 1, 6))
    assert offsets(session) == [("t", 0, 5), ("u", 1, 6)]
    assert sessions.of(request(1, 1)) is session
    assert not session.is_full
    sessions.of(request(1, 2, [("t", 0, 7), ("v", 2, 0)], [("u", 1)]))
    assert offsets(session) == [("t", 0, 7), ("v", 2, 0)]
    session.read_last(("t", 0))
    assert offsets(session) == [("v", 2, 0), ("t", 0, 7)]
    session.read_last(("w", 0))  # Forgotten meanwhile.
    assert len(session.partitions) == 2


def test_a_changed_partition_is_read_again_and_what_its_client_knows_stays(sessions: FetchSessions) -> None:
    session = begun(sessions, ("t", 0, 5))
    session.partitions["t", 0].known_offsets = (9, 9, 0)
    sessions.of(request(1, 1, [("t", 0, 7)]))
    assert session.partitions["t", 0].known_offsets == (9, 9, 0)


def test_topics_are_named_by_ids_in_later_versions(sessions: FetchSessions) -> None:
    session = sessions.of(request(partitions=[("", 3, 1)], version=17))
    assert session is not None
    assert offsets(session) == [(ID, 3, 1)]
    sessions.of(request(1, 1, [("", 4, 1)], [("", 3)], version=17))
    assert offsets(session) == [(ID, 4, 1)]
    with pytest.raises(RefusedError) as refused:
        sessions.of(request(1, 2, version=12))
    assert refused.value.code is ErrorCode.fetch_session_topic_id_error
    assert sessions.of(request(1, 2, version=17)) is session


def test_a_request_without_a_session_ends_the_one_that_it_names(sessions: FetchSessions) -> None:
    begun(sessions, ("t", 0, 0))
    assert sessions.of(request(1, -1, [("t", 0, 0)])) is None
    assert len(sessions) == 0
    assert sessions.of(request(0, -1, [("t", 0, 0)])) is None
    assert sessions.of(request(7, -1)) is None


def test_a_new_session_replaces_the_one_that_it_names(sessions: FetchSessions) -> None:
    begun(sessions, ("t", 0, 0))
    session = sessions.of(request(1, 0, [("t", 1, 0)]))
    assert session is not None
    assert (session.number, len(sessions)) == (2, 1)


def test_versions_before_sessions_have_none(sessions: FetchSessions) -> None:
    assert sessions.of(request(partitions=[("t", 0, 0)], version=6)) is None
    assert len(sessions) == 0


@pytest.mark.parametrize(
    ("session", "epoch", "code"),
    [
        (2, 1, ErrorCode.fetch_session_id_not_found),
        (0, 1, ErrorCode.fetch_session_id_not_found),
        (1, 2, ErrorCode.invalid_fetch_session_epoch),
        (1, -2, ErrorCode.invalid_fetch_session_epoch),
    ],
)
def test_a_state_that_does_not_exist_is_refused(
    sessions: FetchSessions, session: int, epoch: int, code: ErrorCode
) -> None:
    begun(sessions, ("t", 0, 0))
    with pytest.raises(RefusedError) as refused:
        sessions.of(request(session, epoch))
    assert refused.value.code is code
    assert sessions.of(request(1, 1)) is not None, "the session goes on"


def test_a_repeated_request_is_refused(sessions: FetchSessions) -> None:
    """Its client has lost the response, and with it what has changed: it has to begin again."""
    begun(sessions, ("t", 0, 0))
    sessions.of(request(1, 1))
    with pytest.raises(RefusedError):
        sessions.of(request(1, 1))


def test_epochs_begin_again_after_the_largest(sessions: FetchSessions) -> None:
    session = begun(sessions, ("t", 0, 0))
    session.epoch = 2**31 - 1
    sessions.of(request(1, 2**31 - 1))
    assert sessions.of(request(1, 1)) is session


def test_a_session_without_partitions_ends(sessions: FetchSessions) -> None:
    begun(sessions, ("t", 0, 0))
    assert sessions.of(request(1, 1, forgotten=[("t", 0)])) is None
    assert len(sessions) == 0
    assert sessions.of(request(0, 0)) is None
    assert len(sessions) == 0


@pytest.mark.parametrize("limit", ["MAX_SESSIONS", "MAX_PARTITIONS"])
def test_sessions_are_bounded_and_those_that_are_not_used_make_room(
    sessions: FetchSessions, time: Time, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(module, limit, 2)
    first = begun(sessions, ("t", 0, 0))
    begun(sessions, ("t", 1, 0))
    time.now = UNUSED
    assert sessions.of(request(partitions=[("t", 2, 0)])) is None
    assert sessions.of(request(first.number, 1)) is first
    time.now += 1
    third = begun(sessions, ("t", 2, 0))  # In the place of the second one.
    with pytest.raises(RefusedError):
        sessions.of(request(2, 1))
    sessions.of(request(first.number, 2, [("t", 3, 0)], [("t", 0)]))
    sessions.of(request(third.number, -1))
    assert begun(sessions, ("t", 4, 0)).number == 4


def test_a_session_that_grows_too_large_ends(sessions: FetchSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PARTITIONS", 2)
    session = begun(sessions, ("t", 0, 0))
    assert sessions.of(request(1, 1, [("t", 1, 0)])) is session
    with pytest.raises(RefusedError) as refused:
        sessions.of(request(1, 2, [("t", 2, 0)]))
    assert refused.value.code is ErrorCode.fetch_session_id_not_found
    assert len(sessions) == 0
    assert sessions.of(request(0, 0, [("t", 0, 0), ("t", 1, 0), ("t", 2, 0)])) is None
    assert begun(sessions, ("t", 0, 0), ("t", 1, 0)).number == 2


def test_names_that_no_topic_has_are_not_kept(sessions: FetchSessions) -> None:
    """A client could fill the memory of a gateway with some thousand requests."""
    longest = "t" * 249
    assert sessions.of(request(partitions=[(longest + "t", 0, 0)])) is None
    session = begun(sessions, (longest, 0, 0))
    with pytest.raises(RefusedError) as refused:
        sessions.of(request(session.number, 1, [(longest + "t", 0, 0)]))
    assert refused.value.code is ErrorCode.fetch_session_id_not_found
    assert len(sessions) == 0


def test_a_request_for_which_there_is_never_room_removes_no_session(
    sessions: FetchSessions, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PARTITIONS", 1)
    session = begun(sessions, ("t", 0, 0))
    time.now = 2 * UNUSED
    assert sessions.of(request(partitions=[("t", 0, 0), ("t", 1, 0)])) is None
    assert sessions.of(request(session.number, 1)) is session


def test_an_id_is_given_once(time: Time) -> None:
    numbers = iter((5, 5, 5, 6))
    sessions = FetchSessions(time, lambda: next(numbers))
    assert [begun(sessions, ("t", 0, 0)).number for _ in range(2)] == [5, 6]


def test_a_partition_has_nothing_new_for_a_client_that_knows_its_offsets() -> None:
    log, longer = Partition(), replace(Partition(), high_watermark=1)
    partition = SessionPartition(SimpleNamespace(fetch_offset=0))
    assert not partition.has_nothing_new(log, Isolation.READ_COMMITTED)
    partition.known_offsets = (0, 0, 0)
    assert partition.has_nothing_new(log, Isolation.READ_COMMITTED)
    assert not partition.has_nothing_new(longer, Isolation.READ_COMMITTED)
    partition.known_offsets = None
    assert not partition.has_nothing_new(log, Isolation.READ_COMMITTED)
