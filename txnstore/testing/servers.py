"""Real S3 servers for tests, whose conditional PUT is atomic.

``ministack``: the ministack package, a single event loop. ``moto``: moto behind a lock; bare moto checks, then creates.
Both are processes of their own on 127.0.0.1. ``given``: a server that runs already, at the endpoint in
``TXNSTORE_TEST_S3``, with the keys in ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY``.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import txnstore.errors

START_TIMEOUT_S = 60.0
GIVEN = "TXNSTORE_TEST_S3"
"""The environment variable with the endpoint of a server to test with; empty is none."""
_REGION = "us-east-1"


class S3Server:
    """A server: ``with S3Server() as server: … server.storage_options …``; by default the given one, else ministack.

    A process ends with :meth:`stop`, and by itself when this process ends, however that happens: its standard input
    closes. A given server stays, with all that was stored there.
    """

    def __init__(self, kind: Literal["ministack", "moto", "given"] | None = None) -> None:
        self.kind = kind or ("given" if os.environ.get(GIVEN) else "ministack")
        self.url = os.environ[GIVEN].rstrip("/") if self.kind == "given" else ""
        """The endpoint."""
        self._process: subprocess.Popen[str] | None = None

    @property
    def storage_options(self) -> dict[str, Any]:
        """What to pass to open a store there; a copy each time."""
        return storage_options(self.url)

    def start(self) -> Self:
        """Start and wait until it answers; returns itself."""
        if self.kind == "given":
            self._wait()
            return self
        package_root = str(Path(txnstore.errors.__file__).resolve().parent.parent)
        paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "txnstore.testing.server_process", self.kind],
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
            raise RuntimeError(f"The S3 server {self.kind} did not start. Is the package installed?")
        self.url = f"http://127.0.0.1:{int(line)}"
        self._wait()
        return self

    def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def create_bucket(self, name: str) -> str:
        """Make an empty bucket; returns its ``s3://`` URL."""
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
    """Options for a test server (or a :class:`~txnstore.testing.wire.RequestLog` before it) at this endpoint."""
    given = os.environ if os.environ.get(GIVEN) else {}  # else nobody's real keys
    return {
        "key": given.get("AWS_ACCESS_KEY_ID", "test-access-key"),
        "secret": given.get("AWS_SECRET_ACCESS_KEY", "test-secret-key"),
        "endpoint_url": endpoint_url,
        "client_kwargs": {"region_name": _REGION},
    }
