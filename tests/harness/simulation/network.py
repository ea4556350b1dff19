"""The network between simulated machines: connections that are refused, cut, half-open or slow."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from tests.harness.simulation.meeting import Machine, Meeting
from txnstore.chain.committer.channel import Channel
from txnstore.chain.committer.network import CommitterDocument, NetworkMeeting
from txnstore.chain.committer.rendezvous import Listener, Network, Rendezvous
from txnstore.chain.committer.sharing import Address
from txnstore.chain.keys import Keys
from txnstore.connection import Connection
from txnstore.runtime import Runtime
from txnstore.storage.base import ObjectStore


class SimulatedNetwork:
    """The connections of one process to those of other machines; what it announces, and reads, is in the store.

    Args:
        wires: What all machines are connected by.
    """

    address = Address("simulated", 1)

    def __init__(self, wires: Machine, meeting: Meeting, objects: ObjectStore, keys: Keys, runtime: Runtime) -> None:
        self.objects, self.keys, self.runtime = objects, keys, runtime
        self._wires, self._meeting = wires, meeting
        self._listeners: dict[int, Listener] = {}

    def at(self, chain: int, machine: Rendezvous) -> Rendezvous:
        """Return where the processes of a chain meet."""
        return NetworkMeeting(self, chain, machine)

    def check(self) -> None:
        """Check that this process can listen, which it can."""

    def listen(self, chain: int, serve: Callable[[Channel], None]) -> CommitterDocument:
        """Begin to listen for a chain; see :class:`txnstore.chain.committer.network.Links`."""
        if self._wires.happens():
            raise OSError("simulated: the address cannot be used")
        fingerprint = hashlib.sha256(self.runtime.new_id().encode()).hexdigest()
        self._listeners[chain] = self._meeting.listen(self._wires, fingerprint, serve)
        return CommitterDocument(host=self.address.host, port=self.address.port, fingerprint=fingerprint)

    def call(self, chain: int, document: CommitterDocument) -> Channel:
        """Connect to a process that is announced, and show it an object."""
        found = self._wires.listeners.get(document.fingerprint)
        if found is None or self._wires.happens():
            raise ConnectionRefusedError("simulated: the process cannot be reached")
        proof = self.keys.caller(chain, self.runtime.new_id())
        self.objects.put(proof, b"")
        self.objects.delete([proof])
        return self._meeting.connect(self._wires, found)

    def close(self, chain: int) -> None:
        """Listen no more for a chain."""
        listener = self._listeners.pop(chain, None)
        if listener is not None:
            listener.close()


class NetworkedConnection(Connection):
    """The connection of a process that meets those of other machines by simulated wires."""

    wires: Machine
    meeting: Meeting

    def _network(self, store_id: str) -> Network:
        return SimulatedNetwork(self.wires, self.meeting, self.objects, Keys(store_id), self.runtime)
