"""S3 servers that are programs of their own: their command lines, and the settings in their environment."""

from __future__ import annotations

from collections.abc import Callable

ACCESS_KEY = "test-access-key"
SECRET_KEY = "test-secret-key"

Program = Callable[[int, str], tuple[list[str], dict[str, str]]]


def _minio(port: int, folder: str) -> tuple[list[str], dict[str, str]]:
    return ["minio", "server", "--quiet", "--address", f"127.0.0.1:{port}", folder], {
        "MINIO_ROOT_USER": ACCESS_KEY,
        "MINIO_ROOT_PASSWORD": SECRET_KEY,
        "MINIO_BROWSER": "off",  # its console listens on every address
        "MINIO_UPDATE": "off",  # no look for a newer release in the network
    }


def _versitygw(port: int, folder: str) -> tuple[list[str], dict[str, str]]:
    return ["versitygw", "--quiet", "--port", f"127.0.0.1:{port}", "posix", folder], {
        "ROOT_ACCESS_KEY": ACCESS_KEY,
        "ROOT_SECRET_KEY": SECRET_KEY,
    }


PROGRAMS: dict[str, Program] = {"minio": _minio, "versitygw": _versitygw}
"""By kind of server, which is the name of the program too: its command and environment, from a port and a folder."""
