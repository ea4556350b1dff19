"""The log: what is said at which level, with which fields; each field is documented; no handler is configured."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import txnstore
from tests.helpers.cli import Cli
from tests.helpers.shell import runtime
from txnstore import Store
from txnstore.errors import ProducerFencedError
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on, open_on
from txnstore.testing import Fault, FaultStore, ManualClock, on

ROOT = Path(__file__).parents[3]
LEVELS = {"debug", "info", "warning", "error", "log", "exception"}
#: Attributes that every record has, which a field must not replace.
RESERVED = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


@pytest.fixture
def store() -> Store:
    return create_on(MemoryStore(), runtime=runtime(ManualClock()))


def messages_of(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[tuple[str, str]]:
    """The records of a level: logger below ``txnstore``, and message."""
    records = (record for record in caplog.records if record.levelno == level)
    return [(record.name.removeprefix("txnstore."), record.getMessage()) for record in records]


def field(caplog: pytest.LogCaptureFixture, message: str, name: str) -> object:
    """A field of the last record with this message."""
    return next(record for record in reversed(caplog.records) if record.getMessage() == message).__dict__[name]


def test_open_says_where_how_much_and_how_long(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "txnstore")
    objects = MemoryStore()
    create_on(objects, 2, runtime=runtime(ManualClock())).create_topic("t")
    caplog.clear()
    store = open_on(objects, read_only=True)
    assert messages_of(caplog) == [("connection", "store opened")]
    assert field(caplog, "store opened", "chains") == 2
    assert field(caplog, "store opened", "sequence") == store.snapshot().sequence > 0
    assert field(caplog, "store opened", "store_id") == store.store_id
    assert field(caplog, "store opened", "read_only") is True


def test_fencing_and_aborting_are_said(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "txnstore")
    store.create_topic("t")
    old = store.producer("p")
    old.begin_transaction()
    old.send("t", b"v")
    old.flush()
    new = store.producer("p")
    with pytest.raises(ProducerFencedError) as fenced:
        old.commit_transaction()
    new.begin_transaction()
    new.abort_transaction()
    store.fence_producers(["p"])
    assert messages_of(caplog) == [
        ("catalog.topics", "topic created"),
        ("producer.producer", "producer initialized; earlier instances are fenced"),
        ("producer.producer", "producer initialized; earlier instances are fenced"),
        ("producer.producer", "transaction aborted"),
        ("admin.transactions", "producers fenced by an administrator"),
    ]
    message = f"producer fenced by a newer instance, or expired: {fenced.value}"
    assert messages_of(caplog, logging.WARNING) == [("producer.sender", message)]
    assert field(caplog, message, "transactional_id") == "p"


def test_recovery_and_maintenance_are_said(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    store = create_on(MemoryStore(clock=clock), runtime=runtime(clock))
    store.create_topic("t")
    crashed = store.producer("p", transaction_timeout=1.0)
    crashed.begin_transaction()
    crashed.send("t", b"v")
    crashed.flush()
    clock.advance(5_000)
    caplog.set_level(logging.INFO, "txnstore")
    store.recover()
    store.compact()
    clock.advance(8 * 86_400_000)
    store.vacuum(0)
    messages = [message for _, message in messages_of(caplog)]
    assert messages == ["abandoned transaction ended", "recovered", "compacted", "expired", "vacuumed"]
    assert field(caplog, "recovered", "aborted") == 1
    assert field(caplog, "compacted", "aborted") == 1


def test_a_group_says_who_joins_and_leaves(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "txnstore.consumer")
    store.create_topic("t", partitions=2)
    first, second = store.consumer(["t"], group="g"), store.consumer(["t"], group="g")
    first.poll()
    member = field(caplog, "group rebalanced", "member_id")
    assert field(caplog, "group rebalanced", "joined") == [member]
    second.poll()
    other = field(caplog, "group rebalanced", "member_id")
    first.poll()
    assert field(caplog, "group rebalanced", "joined") == [other]
    second.close()
    first.poll()
    assert field(caplog, "group rebalanced", "left") == [other]
    assert ("consumer", "group left") in messages_of(caplog)
    caplog.clear()
    first.poll()
    assert messages_of(caplog) == []


def test_commits_races_and_retries_are_said_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    faults = FaultStore(MemoryStore())
    store = create_on(faults, runtime=runtime(ManualClock()))
    other = open_on(faults.inner, runtime=runtime(ManualClock()))
    other.create_topic("t")
    caplog.set_level(logging.DEBUG, "txnstore.chain")
    faults.plan = on(Fault.ERROR_BEFORE, "put_if_absent")
    store.create_topic("u")
    assert [message for _, message in messages_of(caplog, logging.DEBUG)] == [
        "lost a race for an entry, deciding again",
        "committed",
    ]
    assert field(caplog, "committed", "commands") == 1
    assert field(caplog, "committed", "sequence") == 2


def test_nothing_below_the_level_is_built(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit asks for the level and does nothing more."""
    made: list[str] = []
    monkeypatch.setattr(logging.Logger, "makeRecord", lambda *args, **_: made.append(str(args)))
    monkeypatch.setattr(logging.getLogger("txnstore"), "level", logging.WARNING)
    store.create_topic("t")
    with store.producer("p") as producer, producer.transaction() as txn:
        txn.send("t", b"v")
    assert made == []


def test_the_library_configures_no_handler(store: Store) -> None:
    store.create_topic("t")
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "txnstore"]
    handlers = [handler for name in names for handler in logging.getLogger(name).handlers]
    assert [handler for handler in handlers if not isinstance(handler, logging.NullHandler)] == []


def test_debug_shows_records_with_their_fields_and_restores_the_logger(
    local_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    txnstore.create(local_store_url).close()
    cli = Cli(local_store_url, monkeypatch)
    logger = logging.getLogger("txnstore")
    before = (logger.level, list(logger.handlers), logger.propagate)
    result = cli("--debug", "topic", "create", "t", "--debug")
    lines = result.err.splitlines()
    assert result.status == 0
    assert any(
        re.fullmatch(r"INFO txnstore\.connection: store opened url=file://\S+ .*\bms=\d+.*", line) for line in lines
    )
    assert sum("committed chain=0 sequence=1 commands=1" in line for line in lines) == 1
    assert (logger.level, list(logger.handlers), logger.propagate) == before
    assert "store opened" not in cli("info").err


def test_no_secret_of_a_url_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Elsewhere(MemoryStore):
        @property
        def url(self) -> str:
            return "s3://key:hunter2@bucket/prefix?token=hunter2"

    caplog.set_level(logging.DEBUG, "txnstore")
    create_on(CountingStore(Elsewhere()), runtime=runtime(ManualClock())).create_topic("t")
    assert "store opened" in caplog.text
    assert "hunter2" not in " ".join(str(record.__dict__) for record in caplog.records)


# --- the fields -------------------------------------------------------------------------------------------------------


def _calls() -> Iterator[tuple[str, ast.Call, ast.Module]]:
    """Every call of a logger in the library, with the file."""
    folders = [ROOT / name for name in ("txnstore", "catalog", "compactor", "cli")]
    for file in sorted(file for folder in folders for file in folder.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                logs = isinstance(node.func.value, ast.Name) and node.func.value.id == "_LOG"
                if (logs and node.func.attr in LEVELS) or (node.func.attr == "_log_step" and "chain" in file.parts):
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", node, tree


def _keys(value: ast.expr, tree: ast.Module) -> Iterator[str]:
    """The names of fields in an expression: a dict, or a variable or function that is one."""
    if isinstance(value, ast.Dict):
        for key, item in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant):
                yield str(key.value)
            else:
                yield from _keys(item, tree)
        return
    called = value.func if isinstance(value, ast.Call) else value
    name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict | ast.Call):
            if any(isinstance(target, ast.Name) and target.id == name for target in node.targets):
                yield from _keys(node.value, tree)
        elif isinstance(node, ast.FunctionDef) and node.name == name:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Return) and isinstance(inner.value, ast.Dict):
                    yield from _keys(inner.value, tree)


def _fields() -> dict[str, set[str]]:
    """The fields of every call."""
    fields: dict[str, set[str]] = {}
    for where, call, tree in _calls():
        options = {option.arg: option.value for option in call.keywords}
        own = set(_keys(options["extra"], tree)) if "extra" in options else set()
        if isinstance(call.func, ast.Attribute) and call.func.attr == "_log_step":
            own = {name for name in options if name is not None}
        fields[where] = own
    return fields


@pytest.mark.slow
def test_every_record_has_fields_and_a_constant_message() -> None:
    without = [where for where, own in _fields().items() if not own]
    assert [where for where in without if not re.search(r"(futures|linger|threads)\.py", where)] == []
    formatted = [where for where, call, _ in _calls() if any(isinstance(arg, ast.JoinedStr) for arg in call.args)]
    assert formatted == []


@pytest.mark.slow
def test_fields_are_those_of_the_page_on_monitoring() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    table = page.split("### Fields")[1].split("\n## ")[0]
    documented = {
        name for row in re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    used = {name for own in _fields().values() for name in own}
    assert used & RESERVED == set()
    assert used == documented
