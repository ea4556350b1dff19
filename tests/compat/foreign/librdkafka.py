"""librdkafka's own tests in C and C++ of what has to do with a broker: one process for each number."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.compat.foreign.parsing import short
from tests.compat.kafka_clients.outcomes import Case, Result

#: How the tests name a cluster that creates the topics that clients ask for, and one that does not.
CREATING, NOT_CREATING = "default", "noautocreate"
#: Before share groups, so that the tests of these leave themselves out.
_BROKER_VERSION = "4.1.0"
_SECONDS = 1800
#: Most of a test's time is waiting.
_AT_ONCE = 4
_CONF = """\
bootstrap.servers={addresses}
test.topic.random=true
test.timeout.multiplier=4
"""
#: A test that ends with its first failure is run part by part.
_PARTS = {
    "0081_admin": (
        "unclean_destroy", "CreateTopics", "DeleteTopics", "CreatePartitions", "CreateAcls", "DescribeAcls",
        "DeleteAcls", "AlterConfigs", "IncrementalAlterConfigs", "DescribeConfigs", "DeleteRecords", "DeleteGroups",
        "ListConsumerGroups", "DescribeConsumerGroups", "DescribeTopics", "DescribeCluster",
        "DeleteConsumerGroupOffsets", "AlterConsumerGroupOffsets", "ListConsumerGroupOffsets", "ListOffsets",
        "UserScramCredentials",
    )
}  # fmt: skip

_DECLARED = re.compile(r"^ +_TEST\((\w+),(.*?)\),\n(?= +_TEST|#|\n)", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r"TEST_F_(LOCAL|MANUAL)\b")
_SCENARIO = re.compile(r'\.scenario = "([\w,]+)"')
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
#: A line of the summary at the end of a process.
_SUMMARY = re.compile(r"^\| *(\w+) *\| *(PASSED|FAILED|SKIPPED|RUNNING) *\| *([\d.]+)s *\| *(.*)", re.MULTILINE)
#: The reason of the first failure.
_REASON = re.compile(r"^### Test .* failed at .*\n(.*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Job:
    """A process: the tests of a number, or a part of one, with a cluster of a scenario."""

    number: str
    scenario: str
    names: tuple[str, ...]
    part: str = ""

    @property
    def cases(self) -> dict[str, str]:
        """The name of each case, and the test whose outcome it has."""
        return {f"{name}.{self.part}" if self.part else name: name for name in self.names}


def jobs(source: str) -> list[Job]:
    """The processes for all tests in ``test.c`` that need a broker, in its order."""
    numbers: dict[tuple[str, str], list[str]] = {}
    for name, options in _DECLARED.findall(source):
        if not _NOT_RUN.search(options):
            scenarios = _SCENARIO.search(options)
            scenario = scenarios[1].partition(",")[0] if scenarios else CREATING
            numbers.setdefault((name.partition("_")[0], scenario), []).append(name)
    return [
        Job(number, scenario, tuple(names), part)
        for (number, scenario), names in numbers.items()
        for part in _PARTS.get(names[0], ("",))
    ]


def parse(of: str, cases: Mapping[str, str], output: str, end: str) -> dict[Case, Result]:
    """The results of the cases of a process.

    Args:
        of: The suite.
        cases: The cases, and the test of each.
        output: What the process has written.
        end: How it ended, for a case without a reason of its own.
    """
    output = _COLOUR.sub("", output)
    rows = {name: (state, seconds, why) for name, state, seconds, why in _SUMMARY.findall(output)}
    reason = next(iter(_REASON.findall(output)), "")
    results = {}
    for case, name in cases.items():
        state, seconds, why = rows.get(name, ("", "0", ""))
        match state:
            case "PASSED":
                result = Result("passed", "", float(seconds))
            case "SKIPPED":
                result = Result("left out", short(why))
            case _:
                result = Result("failed", short(why or reason) or end, float(seconds))
        results[Case(of, case)] = result
    return results


def run(
    of: str, clusters: Mapping[str, str], tests: Path, logs: Path, only: Sequence[str], without: Iterable[str]
) -> dict[Case, Result]:
    """Run the tests with the runner in ``tests``, some at a time.

    Args:
        of: The suite.
        clusters: The addresses for each scenario.
        tests: The folder where the runner was built.
        logs: A folder for their output.
        only: The cases to run; empty for all.
        without: The cases that need not run.
    """
    for scenario, addresses in clusters.items():
        (logs / f"{scenario}.conf").write_text(_CONF.format(addresses=addresses))
    chosen = [
        job
        for job in jobs((tests / "test.c").read_text())
        if (set(job.cases) & set(only) if only else set(job.cases) - set(without))
    ]
    libraries = os.pathsep.join(str(tests.absolute().parent / part) for part in ("src", "src-cpp"))

    def run_job(job: Job) -> dict[Case, Result]:
        environment = {
            "LD_LIBRARY_PATH": libraries,
            "RDKAFKA_TEST_CONF": str((logs / f"{job.scenario}.conf").absolute()),
            "TEST_KAFKA_VERSION": _BROKER_VERSION,
            "TESTS": job.number,
            **({"SUBTESTS": f"do_test_{job.part}"} if job.part else {}),
        }
        command = [str(tests.absolute() / "test-runner"), "-L", "-p1", "-s", job.scenario]
        log = logs / f"{'-'.join(part for part in (job.number, job.scenario, job.part) if part)}.log"
        with log.open("wb") as stream:
            try:
                ended = subprocess.run(
                    command, cwd=logs, env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, timeout=_SECONDS, check=False,
                )  # fmt: skip
                end = f"the process ended with {ended.returncode}"
            except subprocess.TimeoutExpired:
                end = f"no end in {_SECONDS} s"
        return parse(of, job.cases, log.read_text(errors="replace"), end)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        results = {case: result for part in pool.map(run_job, chosen) for case, result in part.items()}
    return {case: result for case, result in results.items() if not only or case.name in only}
