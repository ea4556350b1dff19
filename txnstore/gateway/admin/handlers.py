"""The handlers of all requests of administrators."""

from __future__ import annotations

from txnstore.gateway.admin.acls import AclRules
from txnstore.gateway.admin.configs import Configs
from txnstore.gateway.admin.groups import Groups
from txnstore.gateway.admin.partitions import Partitions
from txnstore.gateway.admin.topics import Topics
from txnstore.gateway.admin.transactions import AdminTransactions
from txnstore.gateway.apis import Api
from txnstore.gateway.groups.classic.coordinator import ClassicCoordinator
from txnstore.gateway.groups.consumer.coordinator import ConsumerCoordinator
from txnstore.gateway.server import Handler
from txnstore.gateway.services import Services


def admin_handlers(
    services: Services, classic: ClassicCoordinator, consumers: ConsumerCoordinator
) -> dict[Api, Handler]:
    """Return the handlers of the administrative APIs."""
    return {
        **Topics(services).handlers(),
        **Partitions(services).handlers(),
        **Configs(services).handlers(),
        **AdminTransactions(services).handlers(),
        **Groups(services, classic, consumers).handlers(),
        **AclRules(services).handlers(),
    }
