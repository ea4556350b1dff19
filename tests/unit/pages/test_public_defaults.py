"""The defaults of the public API: programs rely on them, so a change is one of the contract."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest

import txnstore
from txnstore import Store
from txnstore.consumer import Consumer

DAY, MIB = 86_400.0, 1024 * 1024
#: All defaults that are not None.
DEFAULTS: dict[str, dict[str, Any]] = {
    "open": {"read_only": False},
    "create": {"exist_ok": False},
    "restore": {"new_identity": False, "verify": False},
    "Store.backup": {"verify": False},
    "Store.backup_rounds": {"interval": 5.0},
    "Store.compact": {
        "min_segments": 2,
        "dry_run": False,
        "expire": True,
        "force": False,
        "past_hw": False,
        "engine": "duckdb",
    },
    "Store.consumer": {
        "isolation": "read_committed",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "auto_commit_interval": 5.0,
        "max_poll_records": 500,
        "poll_interval": 0.5,
        "assignor": "cooperative-sticky",
        "session_timeout": 45.0,
        "max_poll_interval": 300.0,
        "consumer_timeout": math.inf,
    },
    "Store.create_topic": {"partitions": 1, "exist_ok": False},
    "Store.doctor": {"probe": False},
    "Store.duckdb": {"isolation": "read_committed", "sandbox": False, "checksums": True},
    "Store.erase": {"grace": 0.0, "dry_run": False, "prove": False},
    "Store.expire": {
        "producer_ids": DAY,
        "transactional_ids": 7 * DAY,
        "offsets": 7 * DAY,
        "dry_run": False,
    },
    "Store.find_hanging": {"late": 300.0},
    "Store.instrument": {"status": False},
    "Store.maintain": {"past_hw": False},
    "Store.metrics": {"status": False},
    "Store.producer": {
        "transaction_timeout": 60.0,
        "batch_bytes": 16 * MIB,
        "buffer_bytes": 32 * MIB,
        "linger": "default",
        "delivery_timeout": 120.0,
        "keep_prepared": False,
        "two_phase_commit": False,
    },
    "Store.dump_log": {"entries": 10_000},
    "Store.prometheus": {"process": True, "status": True},
    "Store.reset_offsets": {"dry_run": False},
    "Store.retain": {"dry_run": False},
    "Store.scan": {"isolation": "read_committed"},
    "Store.sql": {"isolation": "read_committed", "sandbox": False, "checksums": True},
    "Store.transaction_history": {"limit": 10_000},
    "Store.vacuum": {"dry_run": False, "expire": True, "force": False, "foreign": (), "tables": True},
    "Store.verify": {"deep": False, "engine": "duckdb"},
    "Consumer.committed": {"metadata": False, "require_stable": True, "strict": False, "timeout": 60.0},
    "Consumer.poll": {"timeout": 0.0},
    "Consumer.poll_table": {"timeout": 0.0},
    "Consumer.position": {"timeout": 60.0},
}
PUBLIC: dict[str, Any] = {
    "open": txnstore.open,
    "create": txnstore.create,
    "restore": txnstore.restore,
    **{
        f"{owner.__name__}.{name}": function
        for owner in (Store, Consumer)
        for name, function in inspect.getmembers(owner, inspect.isfunction)
        if not name.startswith("_")
    },
}


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_defaults(name: str) -> None:
    parameters = inspect.signature(PUBLIC[name]).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.default not in (each.empty, None)}
    assert defaults == DEFAULTS.get(name, {})
