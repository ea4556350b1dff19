"""The compose files of docker/, as far as they can be checked without Docker: against themselves and their READMEs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import yaml

from txnstore.cli.commands.gateway import gateway
from txnstore.cli.commands.maintain import maintain
from txnstore.cli.commands.store import init

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


GATEWAY = Path(__file__).parents[3] / "docker" / "gateway"
GATEWAY_README = (GATEWAY / "README.md").read_text()
GATEWAY_COMPOSE: dict[str, Any] = yaml.safe_load((GATEWAY / "docker-compose.yml").read_text())
GATEWAYS = {name: each for name, each in GATEWAY_COMPOSE["services"].items() if name.startswith("gateway-")}


def _parsed(command: click.Command, arguments: list[str]) -> dict[str, Any]:
    assert arguments[0] == command.name
    return command.make_context(command.name, arguments[1:]).params


def test_gateways_name_all_gateways_in_the_same_order() -> None:
    parsed = [_parsed(gateway, each["command"]) for each in GATEWAYS.values()]
    assert len(parsed) == 2
    assert [each["peers"] for each in parsed] == [tuple(each["listen"] for each in parsed)] * 2
    servers = ",".join(f"{host}:{port}" for host, port in parsed[0]["peers"])
    assert f"SERVERS={servers}" in GATEWAY_README
    for service, each in zip(GATEWAYS.values(), parsed, strict=True):
        assert each["listen"][0] == "127.0.0.1"  # neither TLS nor users
        assert "http://{}:{}/metrics".format(*each["metrics"]) in service["healthcheck"]["test"][-1]
    assert "http://{}:{}/metrics".format(*parsed[0]["metrics"]) in GATEWAY_README


def test_a_service_maintains_the_store() -> None:
    service = GATEWAY_COMPOSE["services"]["maintain"]
    metrics = _parsed(maintain, service["command"])["metrics"]
    assert "http://{}:{}/health".format(*metrics) in service["healthcheck"]["test"][-1]
    assert "http://{}:{}/metrics".format(*metrics) in GATEWAY_README
    assert (service["environment"], set(service["depends_on"])) == (GATEWAYS["gateway-1"]["environment"], {"store"})


def test_gateways_have_the_store_that_is_made_before() -> None:
    services = GATEWAY_COMPOSE["services"]
    store = services["store"]
    assert _parsed(init, store["command"])["exist_ok"]
    assert (GATEWAY / GATEWAY_COMPOSE["include"][0]).resolve() == FOLDER / "docker-compose.yml"
    assert set(store["depends_on"]) <= set(SERVICES)
    assert (GATEWAY / store["build"]["context"] / store["build"]["dockerfile"]).resolve() == GATEWAY / "Dockerfile"
    for each in GATEWAYS.values():
        assert (each["image"], each["environment"]) == (store["image"], store["environment"])
        assert set(each["depends_on"]) == {"store"}
        assert each["network_mode"] == "host"
    assert f"`TXNSTORE_STORE={store['environment']['TXNSTORE_STORE']}`" in GATEWAY_README


def test_keys_of_the_gateways_are_those_of_minio() -> None:
    environment = GATEWAY_COMPOSE["services"]["store"]["environment"]
    minio = SERVICES["minio"]["environment"]
    assert environment["AWS_ACCESS_KEY_ID"] == minio["MINIO_ROOT_USER"]
    assert environment["AWS_SECRET_ACCESS_KEY"] == minio["MINIO_ROOT_PASSWORD"]
