"""S3 servers for tests, with an atomic conditional PUT.

``ministack`` (the ministack package, one event loop) and ``moto`` (with a lock: plain moto checks and then creates) run
as separate processes on 127.0.0.1. ``given`` is a running server, with the endpoint in ``TXNSTORE_TEST_S3`` and the
keys in ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY``.
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
"""The environment variable with the endpoint of a running server; empty for none."""
_REGION = "us-east-1"


class S3Server:
    """An S3 server: ``with S3Server() as server: … server.storage_options …``.

    The server process ends with :meth:`stop`, or when this process ends in any way, because that closes its standard
    input. A given server is not stopped, and its objects are not deleted.

    Args:
        kind: ``"ministack"``, ``"moto"`` or ``"given"``; by default ``"given"`` if ``TXNSTORE_TEST_S3`` is set, else
            ``"ministack"``.
    """

    def __init__(self, kind: Literal["ministack", "moto", "given"] | None = None) -> None:
        self.kind = kind or ("given" if os.environ.get(GIVEN) else "ministack")
        self.url = os.environ[GIVEN].rstrip("/") if self.kind == "given" else ""
        """The endpoint URL."""
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
        """Stop the process."""
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
    """The storage options for a test server, or a :class:`~txnstore.testing.wire.RequestLog`, at this endpoint."""
    given = os.environ if os.environ.get(GIVEN) else {}  # Never send real keys to other servers.
    return {
        "key": given.get("AWS_ACCESS_KEY_ID", "test-access-key"),
        "secret": given.get("AWS_SECRET_ACCESS_KEY", "test-secret-key"),
        "endpoint_url": endpoint_url,
        "client_kwargs": {"region_name": _REGION},
    }
