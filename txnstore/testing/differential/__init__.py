"""One language, two stores: the same operations run against the model and against txnstore, and are compared.

A trace is a list of operations with what was observed after each one. ``python -m txnstore.testing.differential``
replays traces and records them.
"""

from txnstore.testing.differential.compare import WHITELIST, Comparison, Difference
from txnstore.testing.differential.model_driver import ModelDriver
from txnstore.testing.differential.names import ProducerIds
from txnstore.testing.differential.replay import Driver, MismatchError, record, replay
from txnstore.testing.differential.store_driver import StoreDriver
from txnstore.testing.differential.trace import Trace

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
