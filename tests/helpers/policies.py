"""A store behind its printed policies: a storage that enforces them, and what each team can do, and what not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import pytest

import txnstore
from tests.helpers.connections import connection_of
from txnstore.admin.policies import StoragePolicy
from txnstore.chain import keys
from txnstore.connection import open_to_read
from txnstore.core.authorization.model import CLUSTER, Acl, Operation, ResourceType
from txnstore.errors import CorruptionError, ObjectNotFoundError, StorageRefusedError
from txnstore.storage.base import ForwardingStore, ObjectInfo, ObjectStore
from txnstore.store import Store

ADMIN, BILLING, REPORTS, OPERATOR = "User:admin", "User:billing", "User:reports", "User:operator"


def allow(principal: str, operation: Operation, kind: ResourceType, name: str, *, prefixed: bool = False) -> Acl:
    return Acl(principal, "ALLOW", operation, kind, name, "PREFIXED" if prefixed else "LITERAL")


RULES = [
    allow(BILLING, "WRITE", "TOPIC", "billing.", prefixed=True),
    allow(BILLING, "WRITE", "TRANSACTIONAL_ID", "billing-", prefixed=True),
    allow(BILLING, "READ", "TOPIC", "orders"),
    allow(BILLING, "READ", "GROUP", "billing"),
    allow(REPORTS, "READ", "TOPIC", "billing.invoices"),
    allow(OPERATOR, "CLUSTER_ACTION", "CLUSTER", CLUSTER),
]


class PolicedStore(ForwardingStore):
    """An object store that a policy of AWS guards: it refuses what the policy does not allow, as S3 does.

    Without ``s3:ListBucket``, an object that does not exist is refused, too. The clock is that of a HEAD of the bucket.

    Args:
        inner: The objects.
        document: The policy.
        bucket: The bucket.
        prefix: The prefix of the store.
    """

    def __init__(self, inner: ObjectStore, document: Mapping[str, Any], bucket: str, prefix: str) -> None:
        super().__init__(inner)
        self._statements = document["Statement"]
        self._bucket = f"arn:aws:s3:::{bucket}"
        self._root = f"{self._bucket}/{prefix}/"

    def _allows(self, action: str, key: str | None = None, *, if_none_match: bool = False) -> bool:
        resource = self._bucket if key is None else self._root + key
        effects = set()
        for statement in self._statements:
            condition = statement.get("Condition")
            assert condition in (None, {"Null": {"s3:if-none-match": "false"}}), "another one has no meaning here"
            if (
                action in statement["Action"]
                and any(fnmatchcase(resource, pattern) for pattern in statement["Resource"])
                and (condition is None or if_none_match)
            ):
                effects.add(statement["Effect"])
        return effects == {"Allow"}

    def _check(self, action: str, key: str | None = None, *, if_none_match: bool = False) -> None:
        if not self._allows(action, key, if_none_match=if_none_match):
            raise StorageRefusedError(f"AccessDenied: {action} of {key}")

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        self._check("s3:GetObject", key)
        try:
            return self.inner.get(key, start, end)
        except ObjectNotFoundError:
            self._check("s3:ListBucket")
            raise

    def put(self, key: str, data: bytes) -> None:
        self._check("s3:PutObject", key)
        self.inner.put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._check("s3:PutObject", key, if_none_match=True)
        return self.inner.put_if_absent(key, data)

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        self._check("s3:ListBucket")
        return self.inner.list(prefix, start_after, limit)

    def delete(self, names: Sequence[str]) -> None:
        for key in names:
            self._check("s3:DeleteObject", key)
        self.inner.delete(names)

    def stat(self, key: str) -> ObjectInfo:
        self._check("s3:GetObject", key)
        return self.inner.stat(key)

    def now_ms(self) -> int:
        self._check("s3:ListBucket")
        return self.inner.now_ms()


class Teams:
    """A store with rules for three teams, and each of them behind the policy that is printed for it.

    Args:
        admin: A new store, opened by ``User:admin`` with all permissions.
        policy: Prints the policy of a principal.
        objects: Opens the objects of the store behind a policy.
        open_store: Opens the store behind a policy.
    """

    def __init__(
        self,
        admin: Store,
        policy: Callable[[str], StoragePolicy],
        objects: Callable[[StoragePolicy], ObjectStore],
        open_store: Callable[..., Store],
    ) -> None:
        self.admin, self.print, self._objects, self._open = admin, policy, objects, open_store
        self._policies: dict[str, StoragePolicy] = {}
        self.keys = connection_of(admin).keys
        for name in ("orders", "billing.invoices", "secret"):
            admin.create_topic(name, partitions=2, config={"inline.bytes": 0})
        admin.create_topic("billing.small")
        admin.acls.enable(ADMIN)
        admin.acls.create(RULES)
        for name in ("orders", "secret"):
            with admin.producer() as producer:
                producer.send(name, b"%s of the admin" % name.encode(), partition=0).result()

    def policy(self, principal: str) -> StoragePolicy:
        """The policy of a principal, as it was printed when it was needed first."""
        return self._policies.setdefault(principal, self.print(principal))

    def objects(self, principal: str) -> ObjectStore:
        """The objects of the store, as a program of this principal reaches them without the library's checks."""
        return self._objects(self.policy(principal))

    def open(self, principal: str, *, as_: str | None = None, read_only: bool = False) -> Store:
        """The store behind the policy of a principal, which names itself, or another principal."""
        return self._open(self.policy(principal), principal=as_ or principal, read_only=read_only)

    def segment(self, topic: str) -> str:
        """The key of the newest segment of a topic."""
        return max(item.key for item in connection_of(self.admin).objects.list(f"{keys.TOPICS}{topic}/"))


def is_refused(request: Callable[..., object], *arguments: object) -> bool:
    """Whether the storage refuses a request, and not for another reason."""
    try:
        request(*arguments)
    except StorageRefusedError as error:
        return "denied" in str(error).lower()
    return False


class PolicyCases:
    """What the printed policies let teams do, and what not. A subclass has a fixture ``teams``.

    Attributes:
        only_creates: Whether the storage has a condition under which entries can only be created.
    """

    only_creates = True

    def test_a_producer_works_without_a_warning(self, teams: Teams, caplog: pytest.LogCaptureFixture) -> None:
        """More commits than two checkpoints are apart, of which it may write none, and another process after it."""
        caplog.set_level(logging.INFO)
        with teams.open(BILLING) as store:
            with store.producer() as plain:
                for number in range(3):
                    plain.send("billing.invoices", b"%d" % number).result()
            with store.producer(transactional_id="billing-1") as producer:
                for number in range(150):
                    with producer.transaction() as txn:
                        txn.send("billing.small", b"%d" % number)
                        txn.send("billing.invoices" if number % 50 == 0 else "billing.small", b"x")
                        txn.send_offsets({txnstore.TopicPartition("orders", 0): number % 2}, "billing")
                producer.begin_transaction()
                producer.send("billing.invoices", b"never")
                producer.abort_transaction()
            with store.consumer(topics=["orders"], group="billing") as consumer:
                assert len(consumer.poll(timeout=0)) == 0, "its offset is committed"
                consumer.seek(txnstore.TopicPartition("orders", 0), 0)
                assert [record.value for record in consumer.poll(timeout=0)] == [b"orders of the admin"]
                consumer.commit()
        with teams.open(BILLING) as store, store.producer(transactional_id="billing-1") as producer:
            producer.begin_transaction()
            producer.send("billing.small", b"again")
            producer.commit_transaction()
        assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []
        with teams.open(OPERATOR, as_=ADMIN) as store:
            assert store.scan("billing.small").to_table().num_rows == 150 + 147 + 1
        listed = connection_of(teams.admin).objects.list(teams.keys.chains)
        assert [item.key for item in listed if keys.checkpoint_sequence(item.key)] == [], "the producer wrote none"

    def test_a_producer_reaches_nothing_else(self, teams: Teams) -> None:
        """Whatever a program with its permissions says about itself, and whatever it requests."""
        with teams.open(BILLING) as store, store.producer() as producer:
            producer.send("billing.invoices", b"x").result()
        objects, names = teams.objects(BILLING), teams.keys
        own, others = teams.segment("billing.invoices"), teams.segment("secret")
        readable = [keys.STORE, names.entry(0, 1), teams.segment("orders")]
        assert [key for key in readable if is_refused(objects.get, key)] == []
        assert is_refused(objects.get, others)
        assert is_refused(objects.get, own), "it writes the topic, and does not read it"
        with teams.open(BILLING, as_=ADMIN, read_only=True) as liar, pytest.raises(StorageRefusedError):
            liar.scan("secret").to_table()
        unwritable = [
            *(keys.STORE, keys.latest(0), names.checkpoint_state(0, 64), names.index_file(0, 0, 64)),
            *(names.boundary(0, 1), names.lease(1), others, teams.segment("orders")),
            keys.segment("secret", 0, "new", "parquet"),
            keys.Keys("0" * 36).entry(0, 1),
        ]
        for put in (objects.put, objects.put_if_absent):
            assert [key for key in unwritable if not is_refused(put, key, b"x")] == []
        undeletable = [*unwritable, own, names.entry(0, 1)]
        assert [key for key in undeletable if not is_refused(objects.delete, [key])] == []
        before = objects.get(names.entry(0, 1))
        assert objects.put_if_absent(names.entry(0, 1), b"other") is False
        assert is_refused(objects.put, names.entry(0, 1), before) == self.only_creates

    def test_a_reader_reads_its_topic_and_no_other(self, teams: Teams) -> None:
        with teams.open(BILLING) as store, store.producer() as producer:
            producer.send("billing.invoices", b"invoice", partition=1).result()
        with teams.open(REPORTS, read_only=True) as store:
            assert store.scan("billing.invoices").to_table()["value"].to_pylist() == [b"invoice"]
            with store.consumer(topics=["billing.invoices"]) as consumer:
                assert [record.value for record in consumer.poll(timeout=0)] == [b"invoice"]
            with pytest.raises(txnstore.errors.TopicAuthorizationError):
                store.scan("secret").to_table()
        with Store(open_to_read(teams.objects(REPORTS), REPORTS)) as store:  # as commands and Spark do
            assert store.scan("billing.invoices").to_table().num_rows == 1
        with teams.open(REPORTS, as_=ADMIN, read_only=True) as liar:
            for topic in ("secret", "orders"):
                with pytest.raises(StorageRefusedError):
                    liar.scan(topic).to_table()
        objects, names = teams.objects(REPORTS), teams.keys
        unwritable = [names.entry(0, 10**6), "_probe/x", teams.segment("billing.invoices"), keys.latest(0)]
        for put in (objects.put, objects.put_if_absent):
            assert [key for key in unwritable if not is_refused(put, key, b"x")] == []
        assert is_refused(objects.delete, ["_probe/x"])
        with pytest.raises(StorageRefusedError):
            teams.open(REPORTS, as_=ADMIN).create_topic("new")

    def test_what_a_producer_can_do_that_lies(self, teams: Teams) -> None:
        """It writes rules and offsets in the name of another one, and stops the store; other segments stay hidden."""
        orders = txnstore.TopicPartition("orders", 0)
        with teams.open(BILLING, as_=ADMIN) as liar:
            liar.acls.create(allow(BILLING, "READ", "TOPIC", "secret"))
            with liar.producer(transactional_id="foreign") as producer:
                producer.begin_transaction()
                producer.send_offsets({orders: 1}, "foreign")
                producer.commit_transaction()
        assert teams.admin.acls.explain(BILLING, "READ", "TOPIC", "secret").allowed, "forged"
        assert [position.offset for position in teams.admin.group("foreign").positions] == [1]
        with teams.open(BILLING, read_only=True) as store, pytest.raises(StorageRefusedError):
            store.scan("secret").to_table()
        assert "topics/secret/*" in str(teams.print(BILLING).document), "a new print follows the forged rule"
        head = connection_of(teams.admin).chain.refresh().sequence
        junk = teams.keys.entry(0, head + 1)
        assert teams.objects(BILLING).put_if_absent(junk, b"junk")
        with pytest.raises(CorruptionError, match=junk):
            teams.admin.topics()
        connection_of(teams.admin).objects.delete([junk])
        with teams.open(ADMIN) as store:
            assert store.create_topic("stopped").name == "stopped"

    def test_small_commits_are_not_hidden_and_the_policy_says_so(self, teams: Teams) -> None:
        """The reader of one topic finds the records of another one in an entry."""
        with teams.open(BILLING) as store, store.producer() as producer:
            metadata = producer.send("billing.small", b"a small secret").result()
            assert metadata.offset == 0
        with teams.open(REPORTS, as_=ADMIN, read_only=True) as liar:
            assert liar.scan("billing.small").to_table()["value"].to_pylist() == [b"a small secret"]
        (note,) = [note for note in teams.policy(REPORTS).notes if "inline.bytes=0" in note]
        assert "(billing.small)" in note

    def test_the_operator_maintains_the_store(self, teams: Teams, caplog: pytest.LogCaptureFixture) -> None:
        with teams.open(BILLING) as store, store.producer() as producer:
            for number in range(20):
                producer.send("billing.invoices", b"%d" % number, partition=0).result()
                producer.send("billing.small", b"%d" % number, partition=0).result()
        caplog.set_level(logging.WARNING)
        with teams.open(OPERATOR) as store:
            assert store.compact().merges > 0
            store.checkpoint()
            assert store.vacuum(older_than=0).objects > 0
            store.expire()
            assert store.verify(deep=True).violations == ()
        assert [record.getMessage() for record in caplog.records] == []
        objects = connection_of(teams.admin).objects
        assert any(keys.checkpoint_sequence(item.key) for item in objects.list(teams.keys.checkpoints(0)))
        with teams.open(REPORTS, read_only=True) as store:
            values = store.scan("billing.invoices").to_table()["value"].to_pylist()
            assert values == [b"%d" % number for number in range(20)]
        mine = teams.objects(OPERATOR)
        assert is_refused(mine.put, keys.STORE, b"x")
        assert is_refused(mine.delete, [keys.STORE])

    def test_a_super_user_has_the_whole_store(self, teams: Teams) -> None:
        objects = teams.objects(ADMIN)
        before = objects.get(keys.STORE)
        objects.put(keys.STORE, before)
        with teams.open(ADMIN) as store:
            store.acls.create(allow(REPORTS, "READ", "TOPIC", "secret"))
            store.create_topic("new")
        with teams.open(REPORTS, read_only=True) as store:
            assert store.scan("secret").to_table()["value"].to_pylist() == [b"secret of the admin"]
