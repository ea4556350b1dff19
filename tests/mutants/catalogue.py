"""The mutants of the protocol's core, by subject; each has a name that describes its fault."""

from __future__ import annotations

from tests.mutants.authorization import AUTHORIZATION
from tests.mutants.chain import CHAIN
from tests.mutants.chains import CHAINS
from tests.mutants.committer import COMMITTER
from tests.mutants.fences import FENCES
from tests.mutants.gateways import GATEWAYS
from tests.mutants.groups import GROUPS
from tests.mutants.log import LOG
from tests.mutants.maintenance import MAINTENANCE
from tests.mutants.plans import PLANS
from tests.mutants.readers import READERS
from tests.mutants.transactions import TRANSACTIONS

MUTANTS = (
    *TRANSACTIONS,
    *LOG,
    *GROUPS,
    *CHAIN,
    *CHAINS,
    *COMMITTER,
    *FENCES,
    *AUTHORIZATION,
    *MAINTENANCE,
    *PLANS,
    *READERS,
    *GATEWAYS,
)
