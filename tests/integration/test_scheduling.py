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

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "scheduling.md").read_text(encoding="utf-8")
SCRIPT, RUNS = "txnstore-maintenance", ("hourly", "daily", "weekly")


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


def test_the_script_maintains_a_store(script: Path, local_store_url: str) -> None:
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
    assert started == ["compact", "recover", "vacuum --yes", "verify", "doctor", "verify --deep"]


def test_the_script_runs_everything_and_reports_a_failure(script: Path, local_store_url: str) -> None:
    done = run(script, "daily", store=local_store_url)
    assert done.returncode == 1
    assert re.findall(r"^txnstore (.*)$", done.stdout, re.MULTILINE) == ["vacuum --yes", "verify", "doctor"]
    for wrong in ((), ("yearly",)):
        assert run(script, *wrong, store=local_store_url).returncode == 2


def test_cron_starts_the_script_once_at_a_time() -> None:
    [crontab] = blocks("crontab")
    jobs = [line.split(None, 6) for line in crontab.splitlines() if re.match(r"[\d*]", line)]
    field = re.compile(r"\*|\d+")
    assert all(field.fullmatch(text) for job in jobs for text in job[:5])
    assert {job[5] for job in jobs} == {"txnstore"}
    commands = [re.match(r"flock -n -E 0 (\S+) +txnstore-maintenance (\w+) +> (\S+) 2>&1", job[6]) for job in jobs]
    runs = [command.groups() for command in commands if command]
    assert [name for _, name, _ in runs] == [*RUNS]
    assert len({lock for lock, _, _ in runs}) == len({log for _, _, log in runs}) == len(RUNS)
    settings = dict(line.split("=", 1) for line in crontab.splitlines() if re.match(r"[A-Z_]+=", line))
    assert {"PATH", "TXNSTORE_STORE", "MAILTO"} <= set(settings)


def test_the_units_of_systemd() -> None:
    """As ``systemd-analyze verify`` and ``systemd-analyze calendar`` find them sound."""
    service, timer = map(unit, blocks("ini"))
    assert service["Service"]["Type"] == "oneshot"
    assert service["Service"]["ExecStart"] == f"/usr/local/bin/{SCRIPT} %i"
    assert "TXNSTORE_STORE=" in PAGE
    assert service["Service"]["EnvironmentFile"] in PAGE.split("```ini")[-1]
    assert timer["Timer"]["OnCalendar"] == "*-*-* *:17:00"
    assert timer["Install"]["WantedBy"] == "timers.target"
    names = re.findall(r"^# /etc/systemd/system/(\S+)$", PAGE, re.MULTILINE)
    assert names == [f"{SCRIPT}@.service", f"{SCRIPT}@hourly.timer"]


def test_the_cron_jobs_of_kubernetes() -> None:
    """The hourly one as it stands, the others as sed makes them."""
    [hourly] = blocks("yaml")
    others = [
        subprocess.run(["sed", text], input=hourly, capture_output=True, text=True, check=True).stdout
        for text in re.findall(r"^sed '(.*)' hourly.yaml \| kubectl apply -f -$", PAGE, re.MULTILINE)
    ]
    jobs: list[dict[str, Any]] = [yaml.safe_load(text) for text in (hourly, *others)]
    assert [job["metadata"]["name"] for job in jobs] == [f"txnstore-{name}" for name in RUNS]
    assert len({job["spec"]["schedule"] for job in jobs}) == len(RUNS)
    for job, name in zip(jobs, RUNS, strict=True):
        assert (job["apiVersion"], job["kind"]) == ("batch/v1", "CronJob")
        assert job["spec"]["concurrencyPolicy"] == "Forbid"
        pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        assert pod["restartPolicy"] == "Never"
        [container] = pod["containers"]
        assert container["command"] == [SCRIPT, name]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
        assert container["env"][0]["name"] == "TXNSTORE_STORE"


def test_the_statuses_are_those_of_the_command_line() -> None:
    statuses = re.findall(r"^\| ([\d, ]+) \|", PAGE.split("## Statuses")[1], re.MULTILINE)
    page = (Path(__file__).parents[2] / "docs" / "howto" / "command-line.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| status (\d+) \|", page, re.MULTILINE))
    assert documented == {text.strip() for each in statuses for text in each.split(",")}
