"""The process behind :class:`~tests.harness.s3.servers.S3Server`.

``python -m tests.harness.s3.server_process KIND [PORT] [FOLDER]`` prints its port on the first line, serves on
127.0.0.1, and ends when its standard input closes. PORT 0 is a free one; FOLDER is where a program keeps its objects.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from tests.harness.s3.programs import PROGRAMS


def main(kind: str, wanted_port: str = "0", folder: str = "") -> None:
    """Run the server until standard input closes."""
    port = int(wanted_port) or _free_port()
    if kind in PROGRAMS:
        _become(kind, port, folder)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _SERVED[kind](port)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _become(kind: str, port: int, folder: str) -> NoReturn:
    """Replace this process with the program, so that signals reach it; a child process ends it with its starter."""
    data = folder or tempfile.mkdtemp(prefix=f"{kind}-")
    command, settings = PROGRAMS[kind](port, data)
    server = os.getpid()
    if os.fork() == 0:
        _watch(server, "" if folder else data)
    _announce(port)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.execvpe(command[0], command, {**os.environ, **settings})  # noqa: S606 - a program of PROGRAMS


def _watch(server: int, leftover: str) -> NoReturn:
    """End the server once standard input closes, then remove its data. The server is the parent of this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stdin.buffer.read()
    while os.getppid() == server:
        os.kill(server, signal.SIGKILL)
        time.sleep(0.01)
    if leftover:
        shutil.rmtree(leftover, ignore_errors=True)
    os._exit(0)


def _announce(port: int) -> None:
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    # No process reads the server's further output, and a full pipe would block it.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def _serve_ministack(port: int) -> None:
    os.environ.update(
        BIND_HOST="127.0.0.1",
        GATEWAY_PORT=str(port),
        SERVICES="s3",
        LOG_LEVEL="ERROR",
        DOCKER_HOST="unix:///nonexistent",
        TMPDIR=tempfile.mkdtemp(prefix="ministack-"),
    )
    tempfile.tempdir = None  # Makes tempfile read TMPDIR again: ministack writes files there.
    from ministack.app import main as ministack_main

    _announce(port)
    sys.argv = ["ministack"]
    ministack_main()


def _serve_moto(port: int) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    app = LockedApp(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", port, app, threaded=True, request_handler=MotoRequestHandler)
    _announce(port)
    server.serve_forever()


_SERVED = {"ministack": _serve_ministack, "moto": _serve_moto}


class LockedApp:
    """A WSGI application that handles one request at a time, so that moto's check-then-create is atomic.

    It reads the body before it takes the lock, so that a slow client does not block others.
    """

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        length = environ.get("CONTENT_LENGTH")
        if length:
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(length)))
        with self._lock:
            answer = self._app(environ, start_response)
            try:
                return list(answer)
            finally:
                getattr(answer, "close", lambda: None)()


def _arguments() -> tuple[str, str, str]:
    """KIND, PORT and FOLDER of the command line; others end the process with a sentence."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.harness.s3.server_process",
        description="Serve S3 on 127.0.0.1 until standard input closes. The first line of the output is the port.",
    )
    parser.add_argument("kind", metavar="KIND", choices=[*PROGRAMS, *_SERVED], help=", ".join([*PROGRAMS, *_SERVED]))
    parser.add_argument("port", metavar="PORT", nargs="?", type=int, default=0, help="0: a free one (default)")
    parser.add_argument(
        "folder", metavar="FOLDER", nargs="?", default="", help="where a program keeps its objects; a temporary one"
    )
    arguments = parser.parse_args()
    return arguments.kind, str(arguments.port), arguments.folder


if __name__ == "__main__":
    main(*_arguments())
