"""Compares txnstore with the model: both run the same operations, and every observation must be equal.

A trace is a list of operations with the observations after each. ``python -m tests.harness.differential``
replays traces and records them.
"""

from tests.harness.differential.compare import WHITELIST, Comparison
from tests.harness.differential.difference import Difference
from tests.harness.differential.model_driver import ModelDriver
from tests.harness.differential.names import ProducerIds
from tests.harness.differential.replay import Driver, MismatchError, record, replay
from tests.harness.differential.store_driver import StoreDriver
from tests.harness.differential.trace import Trace

__all__ = [
    "WHITELIST",
    "Comparison",
    "Difference",
    "Driver",
    "MismatchError",
    "ModelDriver",
    "ProducerIds",
    "StoreDriver",
    "Trace",
    "record",
    "replay",
]
