"""Write ``seeds.json`` anew: for each mutant that the simulation kills, the first seed that does, unless it is 0."""

from __future__ import annotations

import json
import logging

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import RECORDED

logging.getLogger("txnstore").setLevel(logging.CRITICAL)  # what the library says of its troubles is no news here
found = {mutant.name: mutant.killing_seed() for mutant in MUTANTS if mutant.test is None}
seeds = {name: killer[0] for name, killer in found.items() if killer is not None and killer[0] > 0}
RECORDED.write_text(json.dumps(seeds, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
