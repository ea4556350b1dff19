"""Regenerate ``seeds.json``: the first seed that kills each mutant of the simulation, unless it is 0."""

from __future__ import annotations

import json
import logging

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import RECORDED

logging.getLogger("txnstore").setLevel(logging.CRITICAL)  # the library logs the injected faults
killers = {mutant.name: mutant.killing_seed() for mutant in MUTANTS if mutant.test is None}
seeds = {name: killer[0] for name, killer in killers.items() if killer is not None and killer[0] > 0}
RECORDED.write_text(json.dumps(seeds, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
