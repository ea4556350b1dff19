"""Runs Kafka's tests against gateways: ``python -m tests.compat.kafka_clients JARS CLASSES [options]``.

Exit status 1 if a case that should pass does not, or if the list does not name a case.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.compat.kafka_clients.machines import Place, kill_all, run_class, write_users
from tests.compat.kafka_clients.outcomes import (
    EVERY,
    Case,
    Result,
    accepted,
    differences,
    left_out_of,
    read_expected,
    write_expected,
)

#: What passes in less than five minutes and waits for little, so that a slow machine changes nothing: transactions of
#: all versions, rights, groups of both protocols, fetches.
SHORT = (
    "AdminFenceProducersTest",
    "ConcurrentListOffsetsRequestTest",
    "ConsumerTopicCreationTest",
    "DescribeAuthorizedOperationsTest",
    "PlaintextConsumerCallbackTest",
    "PlaintextConsumerFetchTest.testAsyncConsumerFetchInvalidOffset",
    "PlaintextConsumerFetchTest.testClassicConsumerFetchHonoursFetchSizeIfLargeRecordNotFirst",
    "PlaintextConsumerFetchTest.testClassicConsumerFetchOutOfRangeOffsetResetConfigEarliest",
    "ProducerIntegrationTest",
    "TransactionsWithMaxInFlightOneTest",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen classes, and compare; returns the exit status."""
    options = _options(arguments)
    shutil.rmtree(options.logs, ignore_errors=True)
    options.logs.mkdir(parents=True)
    write_users(options.logs)
    place = Place(options.jars, options.classes, options.logs, 0 if options.brokers else options.gateways)
    expected = read_expected()
    chosen = _choice(place, options, expected)

    def run(of: str) -> dict[Case, Result]:
        methods = chosen[of]
        without = () if methods or options.all else left_out_of(expected, of, failing=options.short) or ()
        results = run_class(place, place.test_classes()[of], methods, without)
        passed = sum(result.outcome == "passed" for result in results.values())
        _say(f"{of}: {passed} of {len(results)} cases passed in {sum(r.seconds for r in results.values()):.0f} s")
        return results

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            results = {case: result for of_class in pool.map(run, chosen) for case, result in of_class.items()}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            kill_all()
            raise
    _report(results, options.logs / "results.tsv")
    if options.brokers:
        return 0  # The list is that of gateways.
    if options.accept:
        write_expected(accepted(expected, results))
        return 0
    lines = differences(expected, results, [case for case in expected if _is_chosen(case, chosen)])
    run_methods = {f"{case.of}.{case.method}" for case in results}
    wanted = [f"{of}.{method}" for of, methods in chosen.items() for method in methods]
    lines += [f"{name} did not run: is there such a case?" for name in wanted if name not in run_methods]
    mended = [case for case, result in results.items() if result.outcome == "passed" and _fails(expected, case)]
    for case in sorted(mended, key=str):
        _say(f"{case.of}.{case.name} passes now: --accept writes it into the list")
    for line in lines:
        _say(line)
    return 1 if lines else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.compat.kafka_clients")
    parser.add_argument("jars", type=Path, help="what pom.xml names")
    parser.add_argument("classes", type=Path, help="the classes in java/, compiled")
    parser.add_argument("--only", nargs="+", metavar="CLASS[.METHOD]", help="these tests")
    parser.add_argument("--short", action="store_true", help="cases that pass, in less than five minutes")
    parser.add_argument("--all", action="store_true", help="also the cases that the list leaves out")
    parser.add_argument("--brokers", action="store_true", help="Kafka's own brokers instead of gateways")
    parser.add_argument(
        "--gateways", type=int, default=1, help="gateways of a test that has as many brokers, and could do with one"
    )
    parser.add_argument("--accept", action="store_true", help="write the outcomes into the list")
    parser.add_argument("--jobs", type=int, default=1, help="Java virtual machines at a time")
    parser.add_argument("--logs", type=Path, default=Path("build/kafka/tests-logs"), help="a folder that is emptied")
    return parser.parse_args(arguments)


def _choice(place: Place, options: argparse.Namespace, expected: dict[Case, Result]) -> dict[str, list[str]]:
    """The classes that are run, with the methods; none means all."""
    chosen: dict[str, list[str]] = {}
    for name in options.only or (SHORT if options.short else place.test_classes()):
        of, _, method = name.partition(".")
        if of not in place.test_classes():
            sys.exit(f"there is no class {of}")
        if not options.only and not options.all and left_out_of(expected, of.partition("$")[0]) is None:
            continue
        chosen.setdefault(of, []).extend([method] if method else [])
    return chosen


def _is_chosen(case: Case, chosen: dict[str, list[str]]) -> bool:
    return case.of in chosen and (not chosen[case.of] or case.method in chosen[case.of])


def _report(results: dict[Case, Result], table: Path) -> None:
    """Write the table of all cases, and say how many there are of each outcome, and why most fail."""
    rows = [
        (case.of, case.name, result.outcome, f"{result.seconds:.1f}", result.why)
        for case, result in sorted(results.items(), key=lambda item: str(item[0]))
    ]
    table.write_text("".join("\t".join(row) + "\n" for row in [("class", "case", "outcome", "seconds", "why"), *rows]))
    counts = Counter(result.outcome for case, result in results.items() if case.name != EVERY)
    _say(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) + f"; all cases: {table}")
    reasons = Counter(result.why.partition(" (line ")[0] for result in results.values() if result.outcome == "failed")
    for reason, count in reasons.most_common(10):
        _say(f"{count:5} × {reason}")


def _fails(expected: dict[Case, Result], case: Case) -> bool:
    return case in expected and expected[case].outcome != "passed"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
