"""The results of each case, from what ``go test`` and pytest write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.compat.kafka_clients.outcomes import Case, Result

#: What differs from run to run: ports, times, and random names of topics and groups.
_CHANGING = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27,}|[0-9a-f]{32,}|0x[0-9a-f]{4,}|(?<=[_-])[A-Za-z]{10}\b|\d{4,}")
_LINE_OF_TEST = re.compile(r"^\s+\w+_test\.go:\d+: ")
_LENGTH = 200


def short(text: str) -> str:
    """A reason on one line, without what differs from run to run."""
    return _CHANGING.sub("…", " ".join(text.split()))[:_LENGTH].strip()


def parse_go(of: str, lines: Iterable[str], end: str, *, parts: bool = False) -> dict[Case, Result]:
    """The results of the tests of a package; a test has the reasons of its subtests.

    Args:
        of: The suite.
        lines: What ``go test -json`` has written.
        end: How it ended, for a test that has begun and not ended, or if there is none.
        parts: The subtests of a test are cases in its place.
    """
    results: dict[Case, Result] = {}
    begun: dict[Case, list[str]] = {}
    for line in lines:
        event = json.loads(line) if line.startswith("{") else {}
        if "Test" not in event:
            continue
        name = "/".join(event["Test"].split("/")[: 2 if parts else 1])
        whole = name == event["Test"]
        reasons = begun.setdefault(case := Case(of, name), [])
        match event["Action"]:
            case "output" if _LINE_OF_TEST.match(event["Output"]):
                reasons.append(_LINE_OF_TEST.sub("", event["Output"]))
            case "pass" if whole:
                results[case] = Result("passed", "", event.get("Elapsed", 0.0))
            case "fail" if whole:
                results[case] = Result("failed", short(reasons[0] if reasons else end), event.get("Elapsed", 0.0))
            case "skip" if whole:
                results[case] = Result("left out", short(reasons[-1] if reasons else "skipped"))
    results |= {case: Result("failed", end) for case in begun if case not in results}
    divided = {Case(of, case.name.partition("/")[0]) for case in results if "/" in case.name}
    return {case: result for case, result in results.items() if case not in divided} or {
        Case(of, "*"): Result("failed", end)
    }


def parse_junit(of: str, path: Path, end: str) -> dict[Case, Result]:
    """The results of the cases in a file of pytest's option ``--junitxml``; without the file, no case has passed."""
    if not path.exists():
        return {Case(of, "*"): Result("failed", end)}
    results: dict[Case, Result] = {}
    for each in ET.parse(path).getroot().iter("testcase"):  # noqa: S314 - The file is our own.
        module = each.get("classname", "").rpartition(".")[2]
        bad = next((part for kind in ("failure", "error") for part in each.findall(kind)), None)
        skipped = each.find("skipped")
        if bad is not None:
            result = Result("failed", short(bad.get("message", "")), float(each.get("time", 0)))
        elif skipped is not None:
            result = Result("left out", short(skipped.get("message", "")))
        else:
            result = Result("passed", "", float(each.get("time", 0)))
        results[Case(of, f"{module}.{each.get('name')}")] = result
    return results
