"""Real S3 servers for tests, each a process of its own on 127.0.0.1, whose conditional PUT is atomic.

``ministack``: the ministack package, a single event loop. ``moto``: moto behind a lock; bare moto checks, then creates.
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

import txnstore.errors

START_TIMEOUT_S = 60.0


class S3Server:
    """A server process: ``with S3Server("ministack") as server: … server.storage_options …``.

    It ends with :meth:`stop`, and by itself when this process ends, however that happens: its standard input closes.
    """

    def __init__(self, kind: Literal["ministack", "moto"] = "ministack") -> None:
        self.kind = kind
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage_options(self) -> dict[str, Any]:
        """What to pass to open a store there; a copy each time."""
        return storage_options(self.url)

    def start(self) -> Self:
        """Start and wait until it answers; returns itself."""
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
        self.port = int(line)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                self.stop()
                raise RuntimeError(f"The S3 server {self.kind} does not answer at {self.url}.")
            time.sleep(0.05)
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
        if self._request("PUT", f"/{name}") != 200:
            raise RuntimeError(f"The S3 server {self.kind} did not create the bucket {name!r}.")
        return f"s3://{name}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _answers(self) -> bool:
        try:
            return self._request("GET", "/") < 500
        except (OSError, http.client.HTTPException):
            return False

    def _request(self, method: str, path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            # The servers do not check signatures, but they tell the service from the header.
            scope = (
                "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
            )
            connection.request(method, path, headers={"Authorization": scope, "Content-Length": "0"})
            response = connection.getresponse()
            response.read()
            return response.status
        finally:
            connection.close()


def storage_options(endpoint_url: str) -> dict[str, Any]:
    """Options for a test server (or a :class:`~txnstore.testing.wire.RequestLog`) at this endpoint."""
    return {
        "key": "test-access-key",
        "secret": "test-secret-key",
        "endpoint_url": endpoint_url,
        "client_kwargs": {"region_name": "us-east-1"},
    }
