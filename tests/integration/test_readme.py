"""The README is one session: its blocks run in order, on a folder and on S3, and print what it shows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.s3_servers import fresh_bucket
from tests.pages.session import README, Session, blocks, normalized, rewritten, session_of
from txnstore.testing import S3Server

TEXT = README.read_text(encoding="utf-8")


def _play(session: Session) -> Iterator[tuple[str, str]]:
    """What each block prints, and what the README shows after it."""
    for block in blocks(session_of(TEXT)):
        yield f"{block.code}{normalized(session.run(block))}", f"{block.code}{normalized(block.output)}"


@pytest.mark.slow
@pytest.mark.spark
def test_the_session_on_a_folder(tmp_path: Path) -> None:
    with Session(tmp_path, str(tmp_path / "events"), {}) as session:
        for printed, shown in _play(session):
            assert printed == shown, "`python -m tests.pages.session` writes what the blocks print into the README"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.s3
def test_the_session_on_s3(tmp_path: Path, s3_server: S3Server) -> None:
    options = s3_server.storage_options
    env = {
        "AWS_ACCESS_KEY_ID": options["key"],
        "AWS_SECRET_ACCESS_KEY": options["secret"],
        "AWS_ENDPOINT_URL": options["endpoint_url"],
        "AWS_DEFAULT_REGION": options["client_kwargs"]["region_name"],
    }
    with Session(tmp_path, f"{fresh_bucket(s3_server)}/events", env) as session:
        for printed, shown in _play(session):
            assert printed == shown


@pytest.mark.slow
def test_the_python_of_the_session_passes_a_type_checker(tmp_path: Path) -> None:
    """Strictly, as this project is checked."""
    program = tmp_path / "session.py"
    program.write_text("\n".join(block.code for block in blocks(session_of(TEXT)) if block.language == "python"))
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=README.parent)
    assert done.stdout.startswith("Success"), done.stdout


def test_nothing_of_the_readme_is_outside_of_the_session_but_make_and_pip() -> None:
    """What a block outside would show, no test would run: ``test_wheel.py`` and ``test_cli_demo.py`` run these."""
    session = session_of(TEXT)
    assert [block.language for block in blocks(session)].count("python") > 3
    commands = [
        line.split()[0] for block in blocks(TEXT.replace(session, "")) for line in block.code.splitlines() if line
    ]
    assert set(commands) == {"make", "pip"}


def test_outputs_are_written_after_their_blocks() -> None:
    readme = TEXT.replace("2 orders billed", "3 orders billed")
    assert readme != TEXT
    assert rewritten(readme, [block.output for block in blocks(session_of(TEXT))]) == TEXT
