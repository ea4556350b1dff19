"""Administrators who change the rules of a store while all other processes work, and one of whom is no super user.

They begin with rules that allow everything, deny and take away single rights, switch the checks on and off, and put all
rights back. Both do so at once, and both may die between the entry of chain 0 and those of the chains that follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.harness.simulation.actor import Actor
from tests.harness.simulation.rulebook import ROOT, TYPES, USERS, everything
from tests.harness.simulation.world import KEYED, PASSING, SIDE, SOURCE, TARGET, Process, World
from tests.helpers.connections import connection_of
from txnstore.core.authorization.model import ANY_NAME, CLUSTER, EVERYONE, OPERATIONS, Acl, Permission, ResourceType
from txnstore.errors import InvalidConfigError, TxnStoreError
from txnstore.store import Store

#: It has the right to change the rules by a rule, which the other one may take away.
DEPUTY = "User:deputy"
_MAY_ALTER = Acl(DEPUTY, "ALLOW", "ALTER", "CLUSTER", CLUSTER)
#: How often each of them changes something at least.
_ROUNDS = 10


class Administrator(Actor):
    """Changes the rules: each change is one call, which is repeated while its outcome is unknown."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.left = max(self.left, _ROUNDS)
        #: The rules that it has created to take something away.
        self._denied: list[Acl] = []
        #: Whether it asks for a change that must be refused.
        self._resigns = False

    def open_process(self) -> Process:
        principal = ROOT if self.label.endswith("/1") or self.rng.random() < 0.3 else DEPUTY
        return self.world.process(self.name, principal=principal)

    def live(self, process: Process) -> None:
        changes = (
            (self._prepare, 1),
            (self._enable, 3),
            (self._disable, 1),
            (self._deny, 4),
            (self._take_away, 4),
            (self._replace, 2),
            (self._restore, 6),
            (self._resign, 1),
        )
        while self.next_operation():
            [change] = self.rng.choices([each for each, _ in changes], [weight for _, weight in changes])
            change(process)
            self.breathe()
            if self.rng.random() < 0.3:
                self.pause(self.rng.choice((1_000, 60_000)))

    def _prepare(self, process: Process) -> None:
        self._change(process, lambda store: store.acls.create([*everything(), _MAY_ALTER]))

    def _enable(self, process: Process) -> None:
        users = [ROOT, *self.rng.sample([*USERS, DEPUTY], self.rng.choice((0, 0, 1)))]
        allow = self.rng.random() < 0.5
        if self.rng.random() < 0.7:
            self._prepare(process)
        self._change(process, lambda store: store.acls.enable(users, allow_if_no_acl=allow))

    def _disable(self, process: Process) -> None:
        self._change(process, lambda store: store.acls.disable())

    def _deny(self, process: Process) -> None:
        denied = [self._rule("DENY") for _ in range(self.rng.randint(1, 2))]
        self._denied += denied
        self._change(process, lambda store: store.acls.create(denied))

    def _take_away(self, process: Process) -> None:
        """Delete some rules, perhaps that of the deputy."""
        rules = self.rng.sample([*everything(), _MAY_ALTER], self.rng.randint(1, 3))
        self._change(process, lambda store: store.acls.delete(rules))

    def _replace(self, process: Process) -> None:
        """Allow one thing instead of everything of its type."""
        allowed = self._rule("ALLOW")
        general = [acl for acl in everything() if (acl.principal, acl.resource_type) == _of(allowed)]
        self._change(process, lambda store: store.acls.create(allowed))
        self._change(process, lambda store: store.acls.delete(general))

    def _restore(self, process: Process) -> None:
        """Put all rights back."""
        self._prepare(process)
        denied = [*self._denied]
        if denied and self._change(process, lambda store: store.acls.delete(denied)):
            self._denied = []

    def _resign(self, process: Process) -> None:
        """Give up the right to change the rules: refused, unless it has that in another way, too."""
        self._resigns = True
        if process.principal == ROOT:
            self._change(process, lambda store: store.acls.enable([DEPUTY]))
        else:
            self._change(process, lambda store: store.acls.delete(_MAY_ALTER))
        self._resigns = False

    def _rule(self, permission: Permission) -> Acl:
        [kind] = self.rng.choices(TYPES, (4, 2, 3, 1))
        used = sorted(OPERATIONS[kind] & {"READ", "WRITE", "CLUSTER_ACTION"})
        operation = self.rng.choice(["ALL", *used, self.rng.choice(sorted(OPERATIONS[kind]))])
        principal = self.rng.choice([*USERS, *USERS, EVERYONE])
        if kind == "CLUSTER":
            if permission == "ALLOW":
                principal = self.rng.choice(USERS)  # Else the super user could resign, and the deputy do anything.
            return Acl(principal, permission, operation, kind, CLUSTER)
        name = self.rng.choice([*_names(kind)])
        if name != ANY_NAME and self.rng.random() < 0.3:
            return Acl(principal, permission, operation, kind, name[: self.rng.randint(1, len(name))], "PREFIXED")
        return Acl(principal, permission, operation, kind, name)

    def _change(self, process: Process, change: Callable[[Store], object]) -> bool:
        """Make a change, and tell the rulebook when its answer is there. Whether it was made."""
        rulebook, catalog = self.world.rulebook, connection_of(process.store).chain
        assert rulebook is not None
        before = self.world.bucket.heads.get(catalog.number, 0)
        try:
            self.insist(lambda: change(process.store))
        except TxnStoreError as error:
            expected = (InvalidConfigError,) if process.principal == DEPUTY else ()
            if not (isinstance(error, InvalidConfigError) and self._resigns):
                self.check_expected(process, "change of rules", error, expected)
            return False
        rulebook.acknowledged(catalog._drafts._writer_id, before)
        return True


def _of(acl: Acl) -> tuple[str, ResourceType]:
    return acl.principal, acl.resource_type


def _names(kind: ResourceType) -> Iterator[str]:
    if kind == "TOPIC":
        yield from (SOURCE, SIDE, TARGET, PASSING, KEYED, ANY_NAME)
    elif kind == "GROUP":
        yield from ("copy", "members", "follow-3", ANY_NAME)
    else:
        yield from ("a", "b", "q", "c", "m", "y", "l", ANY_NAME)
