"""The operations of consumers, the same for the model, a store and a broker."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from tests.harness.traces import Op


class AnyConsumer(Protocol):
    """A consumer in the language of the traces: partitions are names, rows are lists."""

    def assign(self, partitions: list[str]) -> None: ...

    def subscribe(self, topics: list[str]) -> None: ...

    def poll(self) -> dict[str, Any]: ...

    def position(self, partition: str) -> int: ...

    def seek(self, partition: str, offset: int) -> None: ...

    def seek_to(self, partition: str, end: str) -> None: ...

    def pauses(self, partition: str, *, paused: bool) -> None: ...

    def commit(self, offsets: dict[str, int] | None = None) -> None: ...

    def offsets_for_times(self, times: dict[str, int]) -> dict[str, Any]: ...

    def close(self) -> None: ...


C = TypeVar("C", bound=AnyConsumer)


class ConsumerOperations(Generic[C]):
    """The operations; ``consumers`` are those that are open, by name. A driver adds ``consumer``, which creates one."""

    consumers: dict[str, C]

    def op_assign(self, op: Op) -> None:
        self.consumers[op["consumer"]].assign(op["partitions"])

    def op_subscribe(self, op: Op) -> None:
        self.consumers[op["consumer"]].subscribe(op["topics"])

    def op_poll(self, op: Op) -> dict[str, Any]:
        return self.consumers[op["consumer"]].poll()

    def op_position(self, op: Op) -> int:
        return self.consumers[op["consumer"]].position(op["partition"])

    def op_seek(self, op: Op) -> None:
        self.consumers[op["consumer"]].seek(op["partition"], op["offset"])

    def op_seek_to(self, op: Op) -> None:
        self.consumers[op["consumer"]].seek_to(op["partition"], op["end"])

    def op_pause(self, op: Op) -> None:
        self.consumers[op["consumer"]].pauses(op["partition"], paused=True)

    def op_resume(self, op: Op) -> None:
        self.consumers[op["consumer"]].pauses(op["partition"], paused=False)

    def op_commit_positions(self, op: Op) -> None:
        self.consumers[op["consumer"]].commit(op.get("offsets"))

    def op_offsets_for_times(self, op: Op) -> dict[str, Any]:
        return self.consumers[op["consumer"]].offsets_for_times(op["times"])

    def op_close_consumer(self, op: Op) -> None:
        self.consumers.pop(op["consumer"]).close()
