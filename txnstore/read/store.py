"""What a consumer needs of a store."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import Executor
from typing import Any, Protocol

from txnstore.core.commands import Command
from txnstore.core.view import View
from txnstore.ids import Runtime
from txnstore.storage.base import ObjectStore


class Reads(Protocol):
    """The part of a store that reading uses."""

    @property
    def objects(self) -> ObjectStore: ...

    @property
    def read_only(self) -> bool: ...

    @property
    def pool(self) -> Executor: ...

    def state(self, *, refresh: bool | Collection[int] = True) -> View: ...

    def unblock(self, producer_ids: Iterable[int]) -> bool: ...

    def submit(self, command: Command) -> Any: ...

    @property
    def runtime(self) -> Runtime: ...
