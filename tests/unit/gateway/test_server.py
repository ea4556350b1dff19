"""The listener with handlers of the test: order, errors, cancellation, draining. A client in the same loop."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import struct
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from tests.helpers.gateway_process import decode_response, produce_fields, record_batch, request_frame
from txnstore.errors import UnknownOutcomeError
from txnstore.gateway import server as module
from txnstore.gateway.apis import VERSIONS, Api
from txnstore.gateway.frames import VALUE_SIZE
from txnstore.gateway.server import Client, Fields, Handler, ResponseBuilder, Server
from txnstore.gateway.wire import Request, write_response

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
PRODUCED = {"responses": ()}


def run(
    handlers: Mapping[Api, Handler], scenario: Callable[[Server, Callable[[], Awaitable[Streams]]], Awaitable[None]]
) -> None:
    async def with_server() -> None:
        server = Server(handlers, lambda: {"error_code": 35, "api_keys": ()}, authenticates=False, max_connections=3)
        bound = socket.create_server(("127.0.0.1", 0))
        await server.listen(bound)
        opened: list[asyncio.StreamWriter] = []

        async def connect() -> Streams:
            reader, writer = await asyncio.open_connection(*bound.getsockname())
            opened.append(writer)
            return reader, writer

        grace = 0
        try:
            await scenario(server, connect)
            grace = 30
        finally:
            for writer in opened:
                writer.close()
            await server.close(grace=grace)
        assert (server.traffic.connections, server.budget.used, server.room.used) == (0, 0, 0)

    asyncio.run(with_server())


async def receive(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


async def correlation(reader: asyncio.StreamReader) -> int:
    return int(struct.unpack_from(">i", await receive(reader))[0])


async def answer(request: Request, client: Client) -> Fields:
    return {}


def produce(number: int, acks: int = -1) -> bytes:
    return request_frame(Api.PRODUCE, 7, produce_fields("t", record_batch([b"v"]), acks=acks), number)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - The listener has no event for it.
        await asyncio.sleep(0.001)


def _has(items: Sequence[object], count: int) -> bool:
    return len(items) >= count


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0.001)


def test_produce_requests_overlap_and_their_responses_keep_the_order() -> None:
    commits: list[asyncio.Future[Fields | None]] = []

    async def stage(request: Request, client: Client) -> Awaitable[Fields | None]:
        commits.append(asyncio.get_running_loop().create_future())
        return commits[-1]

    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        reader, writer = await connect()
        writer.write(b"".join(produce(number) for number in range(1, 6)) + request_frame(Api.HEARTBEAT, 0, {}, 6))
        await until(lambda: len(commits) == 5)
        await settle()
        for commit in reversed(commits):
            assert not handled
            commit.set_result(PRODUCED)
        assert [await correlation(reader) for _ in range(6)] == [1, 2, 3, 4, 5, 6]

    handled: list[int] = []

    async def heartbeat(request: Request, client: Client) -> Fields:
        handled.append(request.correlation_id)
        return {}

    run({Api.PRODUCE: stage, Api.HEARTBEAT: heartbeat}, scenario)


def test_a_client_has_a_bounded_number_of_requests_without_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNANSWERED", 4)
    commits: list[asyncio.Future[Fields | None]] = []

    async def stage(request: Request, client: Client) -> Awaitable[Fields | None]:
        commits.append(asyncio.get_running_loop().create_future())
        return commits[-1]

    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        reader, writer = await connect()
        writer.write(b"".join(produce(number) for number in range(1, 11)))
        await settle()
        assert len(commits) == 4
        for number in range(10):
            await until(partial(_has, commits, number + 1))
            commits[number].set_result(PRODUCED)
            assert await correlation(reader) == number + 1

    run({Api.PRODUCE: stage}, scenario)


@pytest.mark.parametrize(
    ("error", "code"), [(RuntimeError("a defect"), -1), (UnknownOutcomeError("unknown"), 15)], ids=["defect", "outcome"]
)
def test_a_handler_that_raises_is_an_error_of_its_api(error: Exception, code: int) -> None:
    async def fail(request: Request, client: Client) -> Fields:
        raise error

    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        reader, writer = await connect()
        for version in range(5):
            writer.write(request_frame(Api.HEARTBEAT, version, {}, version))
            received, body = decode_response(Api.HEARTBEAT, version, await receive(reader))
            assert (received, int(body.error_code)) == (version, code)
        assert server.traffic.errors.total() == 5

    run({Api.HEARTBEAT: fail}, scenario)


def test_a_handler_that_raises_closes_the_connection_where_its_api_has_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(request: Request, client: Client) -> Fields:
        raise RuntimeError("a defect")

    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        for frame in (request_frame(Api.LIST_OFFSETS, 3, {}), produce(1)):
            reader, writer = await connect()
            writer.write(frame)
            assert await reader.read() == b""
        assert server.traffic.closed == {"failed": 2}

    run({Api.LIST_OFFSETS: fail, Api.PRODUCE: fail}, scenario)
    assert [record.exc_info is not None for record in caplog.records if record.levelno >= logging.ERROR] == [True] * 2


def test_a_commit_that_fails_without_an_answer_closes_the_connection_and_what_came_before_is_answered() -> None:
    async def stage(request: Request, client: Client) -> Awaitable[Fields | None]:
        async def later() -> Fields | None:
            if request.body.acks == 0:
                raise ConnectionAbortedError("a request with acks=0 failed")
            return PRODUCED

        return later()

    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        reader, writer = await connect()
        writer.write(produce(1) + produce(2, acks=0))
        assert await correlation(reader) == 1
        assert await reader.read() == b""
        assert server.traffic.closed == {"failed": 1}

    run({Api.PRODUCE: stage}, scenario)


def test_only_a_fetch_is_cancelled_when_its_client_leaves() -> None:
    begun, ended, cancelled = list[str](), list[str](), list[str]()
    release = asyncio.Event()

    async def wait(request: Request, client: Client) -> Fields:
        name = Api(request.api).name
        begun.append(name)
        try:
            await release.wait()
        except asyncio.CancelledError:
            cancelled.append(name)
            raise
        ended.append(name)
        return {}

    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        for api in (Api.FETCH, Api.LEAVE_GROUP):
            _, writer = await connect()
            writer.write(request_frame(api, 4, {}) + request_frame(Api.HEARTBEAT, 0, {}))
            await until(partial(begun.__contains__, api.name))
            writer.close()
        await until(lambda: bool(cancelled))
        release.set()
        await until(lambda: len(ended) == 3)  # The heartbeats behind them had arrived, too.
        assert (cancelled, sorted(ended)) == (["FETCH"], ["HEARTBEAT", "HEARTBEAT", "LEAVE_GROUP"])
        assert server.traffic.closed == {}, "the input had ended when the fetch was cancelled"

    run({Api.FETCH: wait, Api.LEAVE_GROUP: wait, Api.HEARTBEAT: wait}, scenario)


def test_the_bytes_of_requests_count_until_they_have_ended_though_their_client_has_disconnected() -> None:
    release = asyncio.Event()

    async def stage(request: Request, client: Client) -> Awaitable[Fields | None]:
        async def later() -> Fields | None:
            await release.wait()
            return PRODUCED

        return later()

    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        reader, writer = await connect()
        writer.write(produce(1) + produce(2))
        await until(lambda: server.traffic.requests.total() == 2)
        used = server.budget.used
        writer.write(struct.pack(">ihhi", 8, 999, 0, 3))  # Closes the connection.
        assert await reader.read() == b""
        await until(lambda: server.traffic.connections == 0)
        assert server.budget.used == used > 0
        release.set()
        await until(lambda: server.budget.used == 0)

    run({Api.PRODUCE: stage}, scenario)


def test_draining_answers_what_has_arrived_and_then_closes() -> None:
    release = asyncio.Event()

    async def stage(request: Request, client: Client) -> Awaitable[Fields | None]:
        async def later() -> Fields | None:
            await release.wait()
            return PRODUCED

        return later()

    async def fetch(request: Request, client: Client) -> Fields:
        await asyncio.Event().wait()
        return {}

    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        producing, writer = await connect()
        writer.write(b"".join(produce(number) for number in range(1, 4)))
        idle, _ = await connect()
        fetching, fetcher = await connect()
        fetcher.write(request_frame(Api.FETCH, 4, {}))
        await until(lambda: server.traffic.requests.total() == 4)
        closing = asyncio.create_task(server.close(grace=30))
        assert await idle.read() == b""
        assert await fetching.read() == b""
        assert not closing.done()
        writer.write(produce(4))  # Too late: it is not read.
        await settle()
        release.set()
        assert [await correlation(producing) for _ in range(3)] == [1, 2, 3]
        assert await closing

    run({Api.PRODUCE: stage, Api.FETCH: fetch}, scenario)


@pytest.mark.parametrize("api", [Api.PRODUCE, Api.TXN_OFFSET_COMMIT, Api.END_TXN, Api.INIT_PRODUCER_ID])
def test_a_request_of_a_transaction_is_not_begun_after_its_client_has_disconnected(api: Api) -> None:
    """With transactions v1 it would get into the next one: its client has the same epoch there."""
    begun = list[Api]()
    answered = asyncio.Event()

    async def note(request: Request, client: Client) -> Fields:
        begun.append(Api(request.api))
        if request.api == Api.HEARTBEAT:
            await answered.wait()
        return {}

    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        fields = {"transactional_id": "a"} if api is not Api.PRODUCE else _of_transaction()
        _, writer = await connect()
        writer.write(request_frame(Api.HEARTBEAT, 0, {}, 1) + request_frame(api, 3, fields, 2))
        await until(lambda: begun == [Api.HEARTBEAT])
        await settle()  # All has arrived.
        writer.close()
        await settle()  # The end, too.
        answered.set()
        await until(lambda: not server.traffic.connections)
        assert begun == [Api.HEARTBEAT]

    run({Api.HEARTBEAT: note, api: note}, scenario)


def _of_transaction() -> dict[str, Any]:
    return {**produce_fields("t", record_batch([b"v"])), "transactional_id": "a"}


def test_a_fetch_that_is_cancelled_while_its_client_is_connected_closes_the_connection() -> None:
    async def cancel(request: Request, client: Client) -> Fields:
        raise asyncio.CancelledError

    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        reader, writer = await connect()
        writer.write(request_frame(Api.FETCH, 4, {}))
        assert await reader.read() == b""
        assert server.traffic.closed == {"failed": 1}

    run({Api.FETCH: cancel}, scenario)


def test_nothing_is_sent_after_a_fetch_that_is_left_out() -> None:
    """Kafka's clients match responses by their order: Java's consumer dies of one with another correlation id."""
    begun = list[str]()

    async def note(request: Request, client: Client) -> Fields:
        begun.append(Api(request.api).name)
        if request.api == Api.FETCH:
            await asyncio.Event().wait()
        return {}

    async def stage(request: Request, client: Client) -> Awaitable[Fields | None]:
        async def later() -> Fields | None:
            return await note(request, client)

        return later()

    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        requests = [request_frame(api, 0, {}, number) for number, api in enumerate((Api.HEARTBEAT, Api.HEARTBEAT), 2)]
        reader, writer = await connect()
        writer.write(request_frame(Api.FETCH, 4, {}, 1) + b"".join(requests) + produce(4))
        writer.write_eof()  # All has arrived before the fetch is left out.
        assert await reader.read() == b""
        await until(lambda: len(begun) >= 3)
        assert begun == ["FETCH", "HEARTBEAT", "HEARTBEAT", "PRODUCE"][-len(begun) :]

    run({Api.FETCH: note, Api.HEARTBEAT: note, Api.PRODUCE: stage}, scenario)


def test_draining_gives_up_requests_that_do_not_end() -> None:
    async def wait(request: Request, client: Client) -> Fields:
        await asyncio.Event().wait()
        return {}

    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        reader, writer = await connect()
        writer.write(request_frame(Api.HEARTBEAT, 0, {}))
        await until(lambda: bool(server.traffic.requests))
        assert not await server.close(grace=0.01)
        assert await reader.read() == b""

    run({Api.HEARTBEAT: wait}, scenario)


def test_the_loop_runs_while_a_large_response_is_built_and_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, encoders = threading.Semaphore(0), list[str]()
    write = write_response

    def spin(loop: asyncio.AbstractEventLoop) -> None:
        turns.release()
        loop.call_soon(spin, loop)

    def take_long() -> bool:
        return all(turns.acquire(timeout=30) for _ in range(100))

    def build() -> Fields:
        built.append(take_long())
        return {"error_code": 15}

    def encode(*arguments: Any) -> bytes:
        encoders.append(threading.current_thread().name)
        return write(*arguments)

    async def handle(request: Request, client: Client) -> ResponseBuilder:
        return build

    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        spin(asyncio.get_running_loop())
        reader, writer = await connect()
        writer.write(request_frame(Api.HEARTBEAT, 0, {}, 7))
        assert await correlation(reader) == 7
        assert server.traffic.errors == {"coordinator_not_available": 1}

    built: list[bool] = []
    monkeypatch.setattr(module, "write_response", encode)
    run({Api.HEARTBEAT: handle}, scenario)
    assert (built, len(encoders)) == ([True], 1)
    assert encoders[0].startswith("gateway responses")


def stand_still(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None], *, interrupted: bool = False) -> None:
    """The loop stands still for ten seconds of its clock, while something happens outside.

    Args:
        monkeypatch: That of the test.
        meanwhile: What happens.
        interrupted: Whether the wait for bytes ends without a look at them, as by a signal that continues a process.
    """
    loop: Any = asyncio.get_running_loop()
    clock, select = loop.time, loop._selector.select

    def select_nothing(timeout: float | None) -> list[Any]:
        loop._selector.select = select
        return []

    def wake() -> None:
        meanwhile()
        monkeypatch.setattr(loop, "time", lambda: clock() + 10)
        if interrupted:
            loop._selector.select = select_nothing

    loop.call_soon(wake)


@pytest.mark.parametrize(("used", "state"), [(0.0, "was suspended"), (5.0, "stood still")])
def test_the_log_tells_a_loop_that_stood_still_from_a_process_that_was_suspended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, used: float, state: str
) -> None:
    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        processor = time.process_time
        monkeypatch.setattr(time, "process_time", lambda: processor() + used)
        stand_still(monkeypatch, lambda: None)
        await until(lambda: bool(caplog.records))

    run({}, scenario)
    (record,) = caplog.records
    assert state in record.getMessage()


def test_connections_without_a_change_outlast_a_suspension(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle ones, a fetch that waits, a heartbeat that came meanwhile; batches that are staged are committed."""
    release, commit = asyncio.Event(), asyncio.Event()

    async def fetch(request: Request, client: Client) -> Fields:
        await release.wait()
        return {}

    async def commits() -> Fields:
        await commit.wait()
        return PRODUCED

    async def stage(request: Request, client: Client) -> Awaitable[Fields | None]:
        return commits()

    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        (idle, idle_sender), (fetching, fetch_sender), (producing, produce_sender) = [await connect() for _ in range(3)]
        fetch_sender.write(request_frame(Api.FETCH, 4, {}, 1))
        produce_sender.write(produce(2))
        await until(lambda: server.traffic.requests.total() == 2)
        await settle()
        stand_still(monkeypatch, lambda: idle_sender.write(request_frame(Api.HEARTBEAT, 0, {}, 3)))
        assert await correlation(idle) == 3
        release.set()
        commit.set()
        assert [await correlation(fetching), await correlation(producing)] == [1, 2]
        idle_sender.write(request_frame(Api.END_TXN, 1, {}, 4))
        assert await correlation(idle) == 4, "a change that is asked for later is carried out"
        assert server.traffic.closed.total() == 0

    run({Api.FETCH: fetch, Api.PRODUCE: stage, Api.HEARTBEAT: answer, Api.END_TXN: answer}, scenario)


@pytest.mark.parametrize("interrupted", [False, True], ids=["", "interrupted"])
@pytest.mark.parametrize("api", [Api.END_TXN, Api.OFFSET_COMMIT, Api.PRODUCE, Api.CREATE_TOPICS, Api.LEAVE_GROUP])
def test_no_change_is_begun_that_arrived_before_the_process_woke(
    monkeypatch: pytest.MonkeyPatch, api: Api, *, interrupted: bool
) -> None:
    """Alone, behind more heartbeats than the buffer holds, and of which a part follows later."""
    begun: list[int] = []

    async def begin(request: Request, client: Client) -> Fields:
        begun.append(request.correlation_id)
        return {}

    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        opened = [await connect() for _ in range(3)]
        change = request_frame(api, VERSIONS[api].first, {}, 7)
        await until(lambda: server.traffic.connections == 3)
        await settle()

        def arrive() -> None:
            for (_, writer), data in zip(
                opened, (change, request_frame(Api.HEARTBEAT, 0, {}, 1) * 1000 + change, change[:6]), strict=True
            ):
                writer.get_extra_info("socket")._sock.sendall(data)

        stand_still(monkeypatch, arrive, interrupted=interrupted)
        await until(lambda: bool(begun) or server.traffic.closed["suspended"] == 2)
        opened[2][1].write(change[6:])
        await until(lambda: bool(begun) or server.traffic.closed["suspended"] == 3)
        assert begun == []

    run({api: begin, Api.HEARTBEAT: answer}, scenario)


def test_a_change_under_way_is_given_up_when_the_process_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    async def end(request: Request, client: Client) -> Fields:
        begun.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            begun.append("given up")
        return {}

    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        (_, writer), (_, slow) = await connect(), await connect()
        writer.write(request_frame(Api.END_TXN, 1, {}, 1))
        slow.write(request_frame(Api.END_TXN, 1, {}, 1)[:-1])
        await until(lambda: begun == ["begun"])
        await settle()
        stand_still(monkeypatch, lambda: None)
        await until(lambda: server.traffic.closed["suspended"] == 2)
        await settle()
        assert begun == ["begun", "given up"]
        assert server.traffic.closed == {"suspended": 2}

    run({Api.END_TXN: end}, scenario)


def test_the_values_of_a_request_count_in_the_budget() -> None:
    """Decoded, a request of 40 kB takes 2 MB, until it has ended; a small one is not counted."""
    used: list[int] = []

    async def note(request: Request, client: Client) -> Fields:
        used.append(servers[0].budget.used)
        return {}

    servers: list[Server] = []

    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        servers.append(server)
        reader, writer = await connect()
        for count in (1_000, 40_000):
            writer.write(request_frame(Api.LIST_CONFIG_RESOURCES, 1, {"resource_types": (2,) * count}))
            await receive(reader)
        assert used[0] == 0
        assert used[1] >= 40_000 * VALUE_SIZE

    run({Api.LIST_CONFIG_RESOURCES: note}, scenario)


def test_connections_above_the_limit_are_refused() -> None:
    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        kept = [await connect() for _ in range(3)]
        for _, writer in kept:
            writer.write(request_frame(Api.HEARTBEAT, 0, {}))
        for reader, _ in kept:
            await receive(reader)
        reader, _ = await connect()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        assert server.traffic.closed == {"full": 1}

    run({Api.HEARTBEAT: answer}, scenario)


def test_a_request_that_stalls_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP", 0.01)
    monkeypatch.setattr(module, "READ_TIMEOUT", 0.02)

    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        reader, writer = await connect()
        writer.write(produce(1)[:-1])
        assert await reader.read() == b""
        assert server.traffic.closed == {"slow": 1}

    run({Api.PRODUCE: answer}, scenario)


def test_a_client_that_takes_no_response_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP", 0.01)
    monkeypatch.setattr(module, "WRITE_TIMEOUT", 0.05)

    async def much(request: Request, client: Client) -> Fields:
        part = {"partition_index": 0, "error_code": 0, "high_watermark": 1, "records": b"x" * (32 << 20)}
        return {"responses": [{"topic": "t", "partitions": [part]}]}

    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        _, writer = await connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(request_frame(Api.FETCH, 4, {}))
        await until(lambda: bool(server.traffic.closed))
        assert server.traffic.closed == {"slow": 1}

    run({Api.FETCH: much}, scenario)


def _many_partitions(count: int) -> Fields:
    part = {"index": 0, "error_code": 0, "base_offset": 0, "error_message": "x" * 1000}
    return {"responses": [{"name": "t", "partition_responses": [part] * count}]}


@pytest.mark.parametrize("partitions", [200, 1_000], ids=["a slice", "several slices"])
def test_responses_of_staged_requests_wait_for_a_client_that_takes_them_slowly(partitions: int) -> None:
    """Each is encoded when the client has taken those before it, but for the last 256 KB."""
    encoded: list[object] = []

    class Counted(dict[str, Any]):
        def __contains__(self, name: object) -> bool:
            if name == "responses":
                encoded.append(self)
            return super().__contains__(name)

    async def stage(request: Request, client: Client) -> Awaitable[Fields | None]:
        fields: asyncio.Future[Fields | None] = asyncio.get_running_loop().create_future()
        fields.set_result(Counted(_many_partitions(partitions)))
        return fields

    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        reader, writer = await connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        frames = [
            request_frame(Api.PRODUCE, 8, produce_fields("t", record_batch([b"v"])), each) for each in range(1, 61)
        ]
        writer.write(b"".join(frames) + request_frame(Api.HEARTBEAT, 0, {}, 61))
        await settle()
        assert 0 < len(encoded) < 60
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert [await correlation(reader) for _ in range(61)] == [*range(1, 62)]
        assert len(encoded) == 60

    run({Api.PRODUCE: stage, Api.HEARTBEAT: answer}, scenario)


def test_a_client_that_takes_no_response_of_a_staged_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP", 0.01)
    monkeypatch.setattr(module, "WRITE_TIMEOUT", 0.05)

    async def stage(request: Request, client: Client) -> Awaitable[Fields | None]:
        fields: asyncio.Future[Fields | None] = asyncio.get_running_loop().create_future()
        fields.set_result(_many_partitions(200))
        return fields

    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        _, writer = await connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        for number in range(60):
            writer.write(request_frame(Api.PRODUCE, 8, produce_fields("t", record_batch([b"v"])), number))
        await until(lambda: bool(server.traffic.closed))
        assert server.traffic.closed == {"slow": 1}

    run({Api.PRODUCE: stage}, scenario)


@pytest.mark.parametrize("authenticates", [False, True])
def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch, authenticates: bool) -> None:
    """Sooner one whose client has not authenticated; it is looked at once in a while, and at the time."""
    monkeypatch.setattr(module, "AUTHENTICATION_TIME", 0.02)
    monkeypatch.setattr(module, "MAX_IDLE", 600.0 if authenticates else 0.1)

    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        server.authenticates = authenticates
        reader, writer = await connect()
        writer.write(request_frame(Api.API_VERSIONS, 0, {}, 1))
        assert await correlation(reader) == 1
        assert await reader.read() == b""

    run({Api.API_VERSIONS: answer}, scenario)


def test_a_closed_connection_leaves_no_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector runs rarely in a gateway: what a connection held is free when it ends."""
    connections: list[weakref.ref[object]] = []
    end = module._Connection.end

    async def noted_end(connection: module._Connection, *, at_once: bool) -> None:
        connections.append(weakref.ref(connection))
        await end(connection, at_once=at_once)

    async def stage(request: Request, client: Client) -> Awaitable[Fields | None]:
        fields: asyncio.Future[Fields | None] = asyncio.get_running_loop().create_future()
        fields.set_result(PRODUCED)
        return fields

    async def scenario(server: Server, connect: Callable[[], Awaitable[Streams]]) -> None:
        reader, writer = await connect()
        writer.write(produce(1) + request_frame(Api.HEARTBEAT, 0, {}, 2))
        assert [await correlation(reader) for _ in range(2)] == [1, 2]
        writer.close()
        await until(lambda: not server.traffic.connections)
        await settle()
        assert [connection() for connection in connections] == [None]

    monkeypatch.setattr(module._Connection, "end", noted_end)
    gc.disable()
    try:
        run({Api.PRODUCE: stage, Api.HEARTBEAT: answer}, scenario)
    finally:
        gc.enable()
