"""``python -m tests.harness.authorization``: run histories on stores, and on brokers with ``StandardAuthorizer``."""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.compat.broker.running import RunningBroker
from tests.harness.authorization.comparison import Difference, Run, run_history
from tests.harness.authorization.history import USERS
from tests.harness.authorization.on_broker import OnBroker, broker_settings
from tests.harness.authorization.on_store import OnStore
from txnstore import BlockedReadWarning


def main() -> int:
    """Run the command line; the exit code is 1 if a history differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.authorization", description=__doc__)
    parser.add_argument("--kafka", type=Path, help="the folder with the jars of a Kafka release; without: stores only")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=100, help="the number of histories")
    parser.add_argument("--length", type=int, default=40, help="the steps of each")
    options = parser.parse_args()
    warnings.simplefilter("ignore", BlockedReadWarning)
    logging.getLogger("txnstore").setLevel(logging.CRITICAL)  # What a history refuses and forgets is its purpose.
    seeds = range(options.first, options.first + options.seeds)
    failures, totals, undone = 0, Run(), 0
    for allow in (False, True):
        with ExitStack() as stack:
            running = None
            if options.kafka is not None:
                running = stack.enter_context(
                    RunningBroker(options.kafka, broker_settings(allow_if_no_acl=allow), USERS)
                )
            for seed in seeds:
                if seed % 2 == allow:
                    try:
                        run, count = one(seed, options.length, running, allow_if_no_acl=allow)
                    except Difference as difference:
                        failures += 1
                        sys.stdout.write(f"{difference}\n")
                        sys.stdout.flush()
                        continue
                    totals.steps += run.steps
                    totals.refusals += run.refusals
                    totals.allowed += run.allowed
                    totals.named += run.named
                    undone += count
    sys.stdout.write(f"{len(seeds)} histories, {failures} differ; {totals.steps} steps, {_shown(totals.refusals)}\n")
    sys.stdout.write(f"refused resources named by: {_shown(totals.named)}\n")
    sys.stdout.write(f"allowed: {_shown(totals.allowed)}; partly done and undone by the comparison: {undone}\n")
    return 1 if failures else 0


def one(seed: int, length: int, running: RunningBroker | None, *, allow_if_no_acl: bool) -> tuple[Run, int]:
    """Run one history on stores of one chain and of three, and on a broker."""
    with ExitStack() as stack:
        stores = [OnStore(chains, allow_if_no_acl=allow_if_no_acl) for chains in (1, 3)]
        for store in stores:
            stack.callback(store.close)
        others: dict[str, OnStore | OnBroker] = {"a store of three chains": stores[1]}
        broker = None
        if running is not None:
            broker = OnBroker(running)
            stack.callback(broker.close)
            others["a broker"] = broker
        run = run_history(seed, stores[0], others, length)
        return run, broker.undone if broker is not None else 0


def _shown(counts: Counter[str] | Counter[tuple[str, str]]) -> str:
    return ", ".join(
        f"{key if isinstance(key, str) else ' '.join(key)}: {count}" for key, count in sorted(counts.items())
    )


if __name__ == "__main__":
    sys.exit(main())
