"""A store with authorization that several principals use, each in a process of its own."""

from __future__ import annotations

from contextlib import ExitStack

from tests.helpers import keys
from tests.helpers.compaction import runtime
from tests.helpers.connections import connection_of
from txnstore.chain.codec import Entry
from txnstore.chain.payload import decode_entry
from txnstore.core.authorization.model import Acl, Operation, ResourceType
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import FaultStore, ManualClock

ADMIN, ALICE, BOB = "User:admin", "User:alice", "User:bob"


def allow(principal: str, operation: Operation, kind: ResourceType, name: str, *, prefixed: bool = False) -> Acl:
    return Acl(principal, "ALLOW", operation, kind, name, "PREFIXED" if prefixed else "LITERAL")


#: What a producer of transactions with offsets needs.
ALICES = [
    allow(ALICE, "WRITE", "TRANSACTIONAL_ID", "a", prefixed=True),
    allow(ALICE, "WRITE", "TOPIC", "out"),
    allow(ALICE, "READ", "TOPIC", "in"),
    allow(ALICE, "READ", "GROUP", "g"),
]


class Shop:
    """A store with authorization, which several principals use."""

    def __init__(self, chains: int = 1) -> None:
        self.clock = ManualClock(1_700_000_000_000)
        self.objects = MemoryStore(clock=self.clock)
        self.faults = FaultStore(self.objects, sleep=self.clock.sleep)
        self.stack = ExitStack()
        self.admin = self.stack.enter_context(
            create_on(self.faults, chains, principal=ADMIN, runtime=runtime(self.clock))
        )
        for name in ("out", "in", "secret"):
            self.admin.create_topic(name, partitions=4)
        self.admin.acls.enable(ADMIN)

    def as_(self, principal: str) -> Store:
        return self.stack.enter_context(open_on(self.objects, principal=principal, runtime=runtime(self.clock)))

    def heads(self) -> list[int]:
        return [chain.refresh().sequence for chain in connection_of(self.admin).chains]

    def lines(self, chain: int = 0) -> list[Entry]:
        head = connection_of(self.admin).chains[chain].refresh().sequence
        named = [keys.entry(chain, number) for number in range(1, head + 1)]
        return [decode_entry(key, self.objects.get(key)) for key in named]
