"""A real Kafka broker of one node, driven in the language of the traces (DIF-02, DIF-03, DIF-06).

It takes a folder with the jars of a Kafka release (its ``libs``) and Java 17. Nothing of the product needs it, and no
test either: it records the traces that the tests replay.
"""

from txnstore.testing.kafka.cluster import Cluster
from txnstore.testing.kafka.driver import BrokerDriver

__all__ = ["BrokerDriver", "Cluster"]
