"""A real Kafka broker of one node, driven in the language of the traces (DIF-02, DIF-03, DIF-06).

It takes a folder with the jars of a Kafka release (its ``libs``) and Java 17. Neither the package nor a
test needs it: it records the traces that the tests replay.
"""

from tests.compat.broker.cluster import Cluster
from tests.compat.broker.driver import BrokerDriver
from tests.compat.broker.running import RunningBroker

__all__ = ["BrokerDriver", "Cluster", "RunningBroker"]
