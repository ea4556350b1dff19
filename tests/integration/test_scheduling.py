"""The files of docs/howto/scheduling.md: each can be parsed, and what they start is there and works."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import txnstore
from txnstore.cli.commands.maintain import maintain

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "scheduling.md").read_text(encoding="utf-8")
SCRIPT, RUNS = "txnstore-check", ("daily", "weekly")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def unit(text: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return parser


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / SCRIPT
    [text] = [text for text in blocks("sh") if text.startswith("#!/bin/sh")]
    path.write_text(text)
    path.chmod(0o755)
    return path


def run(script: Path, *arguments: str, store: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "TXNSTORE_STORE": store}
    return subprocess.run([script, *arguments], env=env, capture_output=True, text=True, check=False)


def test_the_script_checks_a_store(script: Path, local_store_url: str) -> None:
    with txnstore.create(local_store_url) as store:
        store.create_topic("t")
        with store.producer() as producer:
            producer.send("t", b"1").result()
            producer.send("t", b"2").result()
    started = []
    for name in RUNS:
        done = run(script, name, store=local_store_url)
        assert done.returncode == 0, done.stdout + done.stderr
        started += re.findall(r"^txnstore (.*)$", done.stdout, re.MULTILINE)
    assert started == ["verify", "doctor", "verify --deep"]


def test_the_script_runs_everything_and_reports_a_failure(script: Path, local_store_url: str) -> None:
    done = run(script, "daily", store=local_store_url)
    assert done.returncode == 1
    assert re.findall(r"^txnstore (.*)$", done.stdout, re.MULTILINE) == ["verify", "doctor"]
    for wrong in ((), ("yearly",)):
        assert run(script, *wrong, store=local_store_url).returncode == 2


def maintained(command: list[str]) -> dict[str, Any]:
    """The options of a command that a page starts, which the command line takes."""
    assert Path(command[0]).name == "txnstore"
    assert command[1] == "maintain"
    return maintain.make_context("maintain", command[2:]).params


def test_cron_starts_each_command_once_at_a_time() -> None:
    [crontab] = blocks("crontab")
    jobs = [line.split(None, 6) for line in crontab.splitlines() if re.match(r"[\d*]", line)]
    field = re.compile(r"\*(/\d+)?|\d+")
    assert all(field.fullmatch(text) for job in jobs for text in job[:5])
    assert {job[5] for job in jobs} == {"txnstore"}
    commands = [re.match(r"flock -n -E 0 (\S+) +(.*?) +> (\S+) +2>&1", job[6]) for job in jobs]
    runs = [command.groups() for command in commands if command]
    first, *others = [command for _, command, _ in runs]
    assert maintained(first.split())["once"]
    assert others == [f"{SCRIPT} {name}" for name in RUNS]
    assert len({lock for lock, _, _ in runs}) == len({log for _, _, log in runs}) == 1 + len(RUNS)
    settings = dict(line.split("=", 1) for line in crontab.splitlines() if re.match(r"[A-Z_]+=", line))
    assert {"PATH", "TXNSTORE_STORE", "MAILTO"} <= set(settings)


def test_the_units_of_systemd() -> None:
    """As ``systemd-analyze verify`` and ``systemd-analyze calendar`` find them sound."""
    service, check, timer = map(unit, blocks("ini"))
    assert maintained(service["Service"]["ExecStart"].split())["metrics"] == ("127.0.0.1", 9193)
    assert service["Service"]["Restart"] == "always"
    assert service["Install"]["WantedBy"] == "multi-user.target"
    assert check["Service"]["Type"] == "oneshot"
    assert check["Service"]["ExecStart"] == f"/usr/local/bin/{SCRIPT} %i"
    assert service["Service"]["EnvironmentFile"] == check["Service"]["EnvironmentFile"]
    assert timer["Timer"]["OnCalendar"] == "*-*-* 04:23:00"
    assert timer["Install"]["WantedBy"] == "timers.target"
    names = re.findall(r"^# /etc/systemd/system/(\S+)$", PAGE, re.MULTILINE)
    assert names == ["txnstore-maintain.service", f"{SCRIPT}@.service", f"{SCRIPT}@daily.timer"]


def test_the_deployment_of_kubernetes() -> None:
    [text] = blocks("yaml")
    deployment: dict[str, Any] = yaml.safe_load(text)
    assert (deployment["apiVersion"], deployment["kind"]) == ("apps/v1", "Deployment")
    spec = deployment["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    assert maintained(container["command"])["metrics"] == ("0.0.0.0", container["ports"][0]["containerPort"])  # noqa: S104
    assert container["livenessProbe"]["httpGet"] == {"path": "/health", "port": container["ports"][0]["name"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert container["env"][0]["name"] == "TXNSTORE_STORE"


def test_the_statuses_are_those_of_the_command_line() -> None:
    statuses = re.findall(r"^\| ([\d, ]+) \|", PAGE.split("## Statuses")[1], re.MULTILINE)
    page = (Path(__file__).parents[2] / "docs" / "howto" / "command-line.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| status (\d+) \|", page, re.MULTILINE))
    assert documented == {text.strip() for each in statuses for text in each.split(",")}
