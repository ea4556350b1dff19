"""DIF-06, DIF-07, DIF-12: recorded traces of a broker, over the wire, with a gateway in its place.

Kafka's own clients run, so Java and the jars of a Kafka release are needed: ``python -m tests.harness kafka`` fetches
them. ``python -m tests.harness kafka-traces`` replays all traces; here are some of each kind.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.broker.gateway import ServedHistories
from tests.compat.broker.traces import replay_at
from tests.harness.traces import traces

LIBS = Path(__file__).parents[3] / "build" / "kafka" / "libs"
NAMES = (
    "02_undecided_blocks",
    "07_time_out_abort",
    "08_late_commit",
    "09_duplicates",
    "18_delayed_produce",
    "20_offset_fencing",
    "21_restart",
    "25_members_in_transactions",
    "28_members_of_the_newer_protocol",
    "30_consumers",
    "32_deleted_topics",
    "34_clean_outcomes",
    "53_refused_offsets",
)


@pytest.fixture(scope="module")
def running() -> Iterator[ServedHistories]:
    if shutil.which("java") is None or not LIBS.is_dir():
        pytest.skip("needs Java, and the jars that `python -m tests.harness kafka` fetches")
    with ServedHistories(LIBS, chains=3) as served:
        yield served


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_dif_07_clients_see_at_a_gateway_what_they_saw_at_a_broker(running: ServedHistories, name: str) -> None:
    (trace,) = traces("kafka", name).values()
    replay_at(running, trace)
