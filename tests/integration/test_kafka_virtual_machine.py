"""The Java virtual machine in which the clients of Kafka run, for comparisons with a broker."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tests.compat.broker.cluster import VirtualMachine


def test_java_objects_that_outlive_their_machine_are_not_released(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Releasing one would connect to a process that has ended, in whatever code a garbage collection interrupts."""
    machine = VirtualMachine(tmp_path)
    outliving = [machine.properties({"key": "value"})]
    outliving.append(outliving)  # A cycle, which only a garbage collection frees.
    machine.close()
    del outliving
    with caplog.at_level("DEBUG", logger="py4j"):
        gc.collect()
    assert caplog.records == []
