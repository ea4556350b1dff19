"""The example for users in Java, as its first lines say."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.compat.kafka_programs.place import PATIENCE, Place, UnexpectedError

_EXAMPLE = Path(__file__).parents[3] / "examples" / "java"
_PRINTED = "first run: 1000 readings\nsecond run: 0 readings\n"


def alarms(place: Place) -> str:
    """Maven compiles and runs it; each alarm is there once."""
    folder = place.folder / "example"
    shutil.copytree(_EXAMPLE, folder, ignore=shutil.ignore_patterns("target"))
    server = place.bootstrap.split(",")[0]
    command = ["mvn", "-B", "-q", "compile", "exec:java", f"-Dexec.args={server}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE)
    count = place.count("alarms")
    if _PRINTED not in done.stdout or count != 99:
        msg = f"{count} alarms: {done.stdout}{done.stderr}"
        raise UnexpectedError(msg)
    return "99 alarms"
