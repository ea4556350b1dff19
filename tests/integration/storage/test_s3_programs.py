"""S3 servers that are programs: on the PATH, on 127.0.0.1 only, killed and restarted, ended with their starter."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.harness.s3.programs import PROGRAMS
from tests.harness.s3.servers import S3Server

KINDS = sorted(PROGRAMS)

#: In place of a program that the tests cannot expect: serves how often it was started with its folder, and notes how.
STAND_IN = """#!{python}
import http.server, json, os, sys
folder = sys.argv[-1]
with open(folder + "/starts", "a") as file:
    file.write("x")
with open(folder + "/started", "w") as file:
    json.dump({{"command": sys.argv[1:], "settings": dict(os.environ)}}, file)
if os.path.exists({fifo!r}):
    alive = os.open({fifo!r}, os.O_WRONLY)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with open(folder + "/starts", "rb") as file:
            body = file.read()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
host, port = next(arg for arg in sys.argv if ":" in arg).split(":")
http.server.ThreadingHTTPServer((host, int(port)), Handler).serve_forever()
"""

#: Starts a server, prints its URL, and waits to be killed.
OWNER = """
import signal, sys
from tests.harness.s3.servers import S3Server
server = S3Server(sys.argv[1]).start()
print(server.url, flush=True)
signal.pause()
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder at the front of the PATH with a stand-in for each program, which holds the pipe ``alive`` open."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for kind in KINDS:
        (folder / kind).write_text(STAND_IN.format(python=sys.executable, fifo=str(tmp_path / "alive")))
        (folder / kind).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def _starts(server: S3Server) -> bytes:
    with urllib.request.urlopen(server.url) as response:  # noqa: S310 - http://127.0.0.1
        body: bytes = response.read()
    return body


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("programs")
def test_program_listens_on_this_machine_only_with_keys_of_the_tests(kind: str, tmp_path: Path) -> None:
    with S3Server(kind, folder=tmp_path) as server:  # type: ignore[arg-type]
        started = json.loads((tmp_path / "started").read_text())
        addresses = [word for word in started["command"] if ":" in word]
        assert addresses == [server.url.removeprefix("http://")]
        assert re.fullmatch(r"127\.0\.0\.1:\d+", addresses[0])
        assert {server.storage_options["key"], server.storage_options["secret"]} <= set(started["settings"].values())


@pytest.mark.usefixtures("programs")
def test_killed_server_starts_again_at_its_url_with_its_objects(tmp_path: Path) -> None:
    with S3Server("minio", folder=tmp_path) as server:
        url = server.url
        assert _starts(server) == b"x"
        server.kill()
        with pytest.raises(OSError, match="refused"):
            _starts(server)
        server.start()
        assert server.url == url
        assert _starts(server) == b"xx"
    assert (tmp_path / "starts").exists()


@pytest.mark.usefixtures("programs")
def test_server_ends_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    os.mkfifo(alive)
    owner = subprocess.Popen([sys.executable, "-c", OWNER, "versitygw"], stdout=subprocess.PIPE, text=True)
    with alive.open("rb") as pipe:
        assert owner.stdout is not None
        assert owner.stdout.readline().startswith("http://127.0.0.1:")
        owner.send_signal(signal.SIGKILL)
        owner.communicate()
        assert pipe.read() == b""  # every process that holds it has ended


def test_missing_program_is_named_with_what_builds_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"'minio' is not on the PATH.*`python -m tests.harness minio` builds it"):
        S3Server("minio").start()


def test_environment_names_the_default_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind or an endpoint; keys of the environment go to a server that was named by its endpoint."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "real")
    monkeypatch.setenv("TXNSTORE_TEST_S3", "moto")
    server = S3Server()
    assert (server.kind, server.url) == ("moto", "")
    assert server.storage_options["key"] == "test-access-key"
    monkeypatch.setenv("TXNSTORE_TEST_S3", "localhost:9000")
    with pytest.raises(ValueError, match=r"'localhost:9000'. Set it to an endpoint \(http://…\), or to one of minist"):
        S3Server()
    assert S3Server("moto").kind == "moto"
    monkeypatch.delenv("TXNSTORE_TEST_S3")
    with pytest.raises(ValueError, match="Put the endpoint of the given server into TXNSTORE_TEST_S3"):
        S3Server("given")
