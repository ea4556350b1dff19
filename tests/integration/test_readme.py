"""The README and the tutorial are sessions: their blocks run in order, and print what the pages show."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.s3.servers import S3Server
from tests.helpers.s3_servers import fresh_bucket
from tests.pages.session import README, ROOT, TUTORIAL, Page, Session, blocks, normalized, rewritten

BOTH = pytest.mark.parametrize("page", [README, TUTORIAL], ids=["readme", "tutorial"])


def _play(session: Session, page: Page) -> Iterator[tuple[str, str]]:
    """What each block prints, and what the page shows after it."""
    for block in blocks(page.text):
        yield f"{block.code}{normalized(session.run(block))}", f"{block.code}{normalized(block.output)}"


@pytest.mark.slow
@pytest.mark.spark
@BOTH
def test_the_session_on_a_folder(page: Page, tmp_path: Path) -> None:
    with Session(page, tmp_path, str(tmp_path / "events"), {}) as session:
        for printed, shown in _play(session, page):
            assert printed == shown, "`python -m tests.pages.session` writes what the blocks print into the pages"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.s3
def test_the_session_on_s3(tmp_path: Path, s3_server: S3Server) -> None:
    """The tutorial's, which does all that the README's does."""
    options = s3_server.storage_options
    env = {
        "AWS_ACCESS_KEY_ID": options["key"],
        "AWS_SECRET_ACCESS_KEY": options["secret"],
        "AWS_ENDPOINT_URL": options["endpoint_url"],
        "AWS_DEFAULT_REGION": options["client_kwargs"]["region_name"],
    }
    with Session(TUTORIAL, tmp_path, f"{fresh_bucket(s3_server)}/events", env) as session:
        for printed, shown in _play(session, TUTORIAL):
            assert printed == shown


@pytest.mark.slow
@BOTH
def test_the_python_of_the_session_passes_a_type_checker(page: Page, tmp_path: Path) -> None:
    """Strictly, as this project is checked."""
    program = tmp_path / "session.py"
    program.write_text("\n".join(block.code for block in blocks(page.text) if block.language == "python"))
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout.startswith("Success"), done.stdout


def test_nothing_of_the_readme_is_outside_of_the_session_but_make_and_pip() -> None:
    """What a block outside would show, no test would run: ``test_wheel.py`` and ``cli/test_demo.py`` run these."""
    fences = [line for line in README.text.splitlines() if line.startswith("```") and line != "```"]
    assert fences.count("```python") == len(blocks(README.text)) == 3
    outside = [part.split("```")[0] for part in README.text.split("```bash\n")[1:]]
    assert {line.split()[0] for part in outside for line in part.splitlines()} == {"make", "pip"}
    assert set(fences) == {"```python", "```text", "```bash"}


def test_everything_of_the_tutorial_is_in_its_session() -> None:
    fences = [line for line in TUTORIAL.text.splitlines() if line.startswith("```") and line != "```"]
    assert set(fences) == {"```python", "```sh", "```text"}
    assert len(fences) - fences.count("```text") == len(blocks(TUTORIAL.text))


@BOTH
def test_outputs_are_written_after_their_blocks(page: Page) -> None:
    outputs = [block.output for block in blocks(page.text)]
    changed = rewritten(page.text, [f"{output} changed" if output else "" for output in outputs])
    assert changed != page.text
    assert rewritten(changed, outputs) == page.text
