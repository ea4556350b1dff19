"""docker/minio/docker-compose.yml, as far as it can be checked without Docker: against itself and its README."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[3] / "docker" / "minio"
README = (FOLDER / "README.md").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def test_images_are_releases() -> None:
    for name, service in SERVICES.items():
        assert re.fullmatch(r"[a-z/]+:RELEASE\.[\dTZ-]+", service["image"]), name


def test_ports_are_those_of_the_readme_and_open_on_this_machine_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert [re.sub(r"\$\{\w+:-(\d+)\}", r"\1", port) for port in ports] == [
        "127.0.0.1:9000:9000",
        "127.0.0.1:9001:9001",
    ]
    assert "AWS_ENDPOINT_URL=http://127.0.0.1:9000" in README


def test_keys_and_bucket_are_those_of_the_readme() -> None:
    keys = {"MINIO_ROOT_USER": "AWS_ACCESS_KEY_ID", "MINIO_ROOT_PASSWORD": "AWS_SECRET_ACCESS_KEY"}
    for service in SERVICES.values():
        for name, variable in keys.items():
            default = service["environment"][name].removeprefix(f"${{{name}:-").removesuffix("}")
            assert f"{variable}={default}" in README
    assert "mc mb --ignore-existing minio/txnstore" in SERVICES["bucket"]["entrypoint"][-1]
    assert "TXNSTORE_STORE=s3://txnstore/" in README


def test_names_refer_to_what_the_file_has() -> None:
    assert set(SERVICES["bucket"]["depends_on"]) <= set(SERVICES)
    volumes = {volume.partition(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert volumes == set(COMPOSE["volumes"])
    for service in SERVICES.values():
        assert service["healthcheck"]["test"][0] == "CMD"  # for `docker compose up --wait`
