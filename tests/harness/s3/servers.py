"""S3 servers for tests, with an atomic conditional PUT.

``ministack`` (the ministack package, one event loop) and ``moto`` (with a lock: plain moto checks and then creates) run
as separate processes on 127.0.0.1, and so do ``minio`` and ``versitygw`` if the program of that name is on the PATH.
``given`` is a running server, with the keys in ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY``. The environment
variable ``TXNSTORE_TEST_S3`` chooses the default: one of these names, or the endpoint of a running server.
"""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, cast, get_args
from urllib.parse import urlsplit

from tests.harness.s3.programs import ACCESS_KEY, PROGRAMS, SECRET_KEY

Kind = Literal["ministack", "moto", "minio", "versitygw", "given"]

START_TIMEOUT_S = 180.0
GIVEN = "TXNSTORE_TEST_S3"
"""The environment variable with the default server: a kind, or the endpoint of a running server; empty: moto."""
_REGION = "us-east-1"
#: A guard against hangs: a busy machine is no fault of the server.
_LIMIT_S = 120


def _default() -> tuple[Kind, str]:
    """The kind of the default server, and the endpoint of a given one."""
    value = os.environ.get(GIVEN) or "moto"
    if "://" in value:
        return "given", value.rstrip("/")
    kinds = [kind for kind in get_args(Kind) if kind != "given"]
    if value not in kinds:
        raise ValueError(f"{GIVEN} is {value!r}. Set it to an endpoint (http://…), or to one of {', '.join(kinds)}.")
    return cast("Kind", value), ""


class S3Server:
    """An S3 server: ``with S3Server() as server: … server.storage_options …``.

    The server process ends with :meth:`stop`, or when this process ends in any way, because that closes its standard
    input. A given server is not stopped, and its objects are not deleted.

    Args:
        kind: ``"ministack"``, ``"moto"``, ``"minio"``, ``"versitygw"`` or ``"given"``; by default as the environment
            variable ``TXNSTORE_TEST_S3`` says, else ``"moto"``.
        folder: Where ``"minio"`` and ``"versitygw"`` keep their objects; by default a temporary folder, which is
            deleted with the server. With a folder, :meth:`start` after :meth:`kill` or :meth:`stop` continues with the
            same objects at the same URL.

    Raises:
        ValueError: ``TXNSTORE_TEST_S3`` is neither an endpoint nor a kind, or no endpoint of a ``"given"`` server.
    """

    def __init__(self, kind: Kind | None = None, *, folder: Path | None = None) -> None:
        chosen = (kind, "") if kind is not None and kind != "given" else _default()
        if kind == "given" != chosen[0]:
            raise ValueError(f"Put the endpoint of the given server into {GIVEN}.")
        self.kind: Kind = chosen[0]
        self.url = chosen[1]
        """The endpoint URL."""
        self.folder = folder
        self._process: subprocess.Popen[str] | None = None

    @property
    def storage_options(self) -> dict[str, Any]:
        """The storage options for a store on this server; a new dictionary each time."""
        return storage_options(self.url)

    def start(self) -> Self:
        """Start the server and wait until it answers; returns itself."""
        if self.kind == "given":
            self._wait()
            return self
        if self.kind in PROGRAMS and shutil.which(self.kind) is None:
            raise RuntimeError(
                f"The program {self.kind!r} is not on the PATH. Install it, and add its folder to the PATH;"
                f" in a checkout of txnstore, `python -m tests.harness {self.kind}` builds it and runs the S3 tests."
            )
        package_root = str(Path(__file__).resolve().parents[3])
        paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.harness.s3.server_process", self.kind),
                *(str((self.folder and urlsplit(self.url).port) or 0), str(self.folder or "")),
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.strip().isdigit():
            self.stop()
            raise RuntimeError(f"The S3 server {self.kind} did not start. Are the extras of `make install` installed?")
        self.url = f"http://127.0.0.1:{int(line)}"
        self._wait()
        return self

    def kill(self) -> None:
        """End the process as a crash would (SIGKILL). A given server is not ended."""
        self._end(subprocess.Popen.kill)

    def stop(self) -> None:
        """Stop the process. A given server is not stopped."""
        self._end(subprocess.Popen.terminate)

    def _end(self, how: Callable[[subprocess.Popen[str]], None]) -> None:
        process, self._process = self._process, None
        if process is not None:
            how(process)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def create_bucket(self, name: str) -> str:
        """Create an empty bucket; returns its ``s3://`` URL."""
        status = self._request("PUT", f"/{name}")
        if status != 200:
            raise RuntimeError(f"The S3 server {self.kind} did not create the bucket {name!r}: it answered {status}.")
        return f"s3://{name}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            ended = self._process is not None and self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"The S3 server {self.kind} does not answer at {self.url}.")
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            return self._request("GET", "/") < 500
        except (OSError, http.client.HTTPException):
            return False

    def _request(self, method: str, path: str) -> int:
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        request = AWSRequest(method, self.url + path)
        options = self.storage_options
        S3SigV4Auth(Credentials(options["key"], options["secret"]), "s3", _REGION).add_auth(request)
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.netloc, timeout=30)
        try:
            connection.request(method, path, headers={**request.headers, "Content-Length": "0"})
            response = connection.getresponse()
            response.read()
            return response.status
        finally:
            connection.close()


def storage_options(endpoint_url: str) -> dict[str, Any]:
    """The storage options for a test server, or a :class:`~tests.harness.s3.wire.RequestLog`, at this endpoint."""
    environment = os.environ if _default()[0] == "given" else {}  # Never send real keys to other servers.
    return {
        "key": environment.get("AWS_ACCESS_KEY_ID", ACCESS_KEY),
        "secret": environment.get("AWS_SECRET_ACCESS_KEY", SECRET_KEY),
        "endpoint_url": endpoint_url,
        "client_kwargs": {"region_name": _REGION},
        "config_kwargs": {"connect_timeout": _LIMIT_S, "read_timeout": _LIMIT_S},
    }
