"""Kafka's numbers of operations, and which of them a client may do to a resource (KIP-430)."""

from __future__ import annotations

from txnstore.core.authorization.model import OPERATIONS, Operation, ResourceType
from txnstore.core.authorization.rights import Right
from txnstore.gateway.server import Client
from txnstore.gateway.services import Services

#: The numbers of Kafka's operations (``AclOperation``).
OPERATION_CODES: dict[Operation, int] = {
    "ALL": 2, "READ": 3, "WRITE": 4, "CREATE": 5, "DELETE": 6, "ALTER": 7, "DESCRIBE": 8, "CLUSTER_ACTION": 9,
    "DESCRIBE_CONFIGS": 10, "ALTER_CONFIGS": 11, "IDEMPOTENT_WRITE": 12, "TWO_PHASE_COMMIT": 15,
}  # fmt: skip
#: Stands for operations that the client did not ask for.
NO_OPERATIONS = -(2**31)


def operations_of(services: Services, client: Client, resource_type: ResourceType, name: str) -> int:
    """The operations that the client may do on a resource: a bit for each."""
    allowed_operations = [
        operation
        for operation in OPERATIONS[resource_type]
        if services.may(client, Right(operation, resource_type, (name,)))
    ]
    return sum(1 << OPERATION_CODES[operation] for operation in allowed_operations)
