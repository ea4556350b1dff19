"""``txnstore doctor``: the findings, the commands to run, and the exit status."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from s3fs import S3FileSystem

import txnstore
from tests.harness.s3.servers import S3Server
from tests.helpers.cli import Cli
from tests.helpers.s3_servers import fresh_bucket
from txnstore.compactor import Severity


@pytest.fixture
def cli(local_store_url: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line on a store with a record."""
    with txnstore.create(local_store_url) as store:
        store.create_topic("orders")
        with store.producer() as producer:
            producer.send("orders", b"v")
    return Cli(local_store_url, monkeypatch)


def test_sound_store_is_status_0(cli: Cli) -> None:
    looked = cli("doctor")
    assert looked.status == 0
    assert "txnstore doctor --probe" in looked.out
    assert looked.err == "12 ok, 1 note\n"
    probed = cli("doctor", "--probe")
    assert (probed.status, probed.err) == (0, "14 ok\n")


def test_findings_as_json(cli: Cli) -> None:
    (report,) = cli.ok("doctor", "--json").lines
    assert report["ok"] is True
    assert {name for item in report["findings"] for name in item} == {
        "section", "name", "severity", "message", "command",
    }  # fmt: skip
    sections = [item["section"] for item in report["findings"]]
    assert list(dict.fromkeys(sections)) == [
        "storage",
        "identity",
        "chains",
        "sharing",
        "segments",
        "transactions",
        "groups",
        "garbage",
    ]
    assert {item["severity"] for item in report["findings"]} <= {str(each) for each in Severity}


def test_damage_is_status_1_and_names_the_command(cli: Cli) -> None:
    with txnstore.open(cli.url) as store:
        store.create_topic("later")
    folder = Path(cli.url.removeprefix("file://"))
    (entry,) = folder.glob("chains/*/0000/entries/*1.json")
    entry.unlink()
    damaged = cli("doctor")
    assert damaged.status == 1
    assert "txnstore recover" in damaged.out
    (report,) = cli("doctor", "--json").lines
    assert report["ok"] is False


def test_missing_store_is_an_error(cli: Cli, tmp_path: Path) -> None:
    missing = cli("doctor", url=(tmp_path / "nothing").as_uri())
    assert (missing.status, missing.out) == (1, "")
    assert "txnstore init" in missing.err


@pytest.mark.s3
def test_lifecycle_rules_and_versions_of_a_bucket_are_read(moto_server: S3Server, transport: str) -> None:
    options = {**moto_server.storage_options, "transport": transport}
    url = f"{fresh_bucket(moto_server)}/root"
    bucket = url.split("/")[2]
    with txnstore.create(url, storage_options=options) as store:
        assert _bucket_findings(store) == {"versioning": "ok", "lifecycle": "ok", "uploads": "note"}
        files = S3FileSystem(**{name: value for name, value in options.items() if name != "transport"})
        files.call_s3("put_bucket_versioning", Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        files.call_s3("put_bucket_lifecycle_configuration", Bucket=bucket, LifecycleConfiguration={"Rules": [
            _rule("uploads", "", AbortIncompleteMultipartUpload={"DaysAfterInitiation": 3}),
            _rule("old", "root/topics/", Expiration={"Days": 30}),
        ]})  # fmt: skip
        assert _bucket_findings(store) == {"versioning": "warn", "lifecycle": "bad"}
        files.call_s3("put_bucket_lifecycle_configuration", Bucket=bucket, LifecycleConfiguration={"Rules": [
            _rule("uploads", "", AbortIncompleteMultipartUpload={"DaysAfterInitiation": 3}),
            _rule("versions", "root/", NoncurrentVersionExpiration={"NoncurrentDays": 3}),
        ]})  # fmt: skip
        assert _bucket_findings(store) == {"versioning": "ok", "lifecycle": "ok"}


@pytest.mark.s3
def test_doctor_names_the_transport(moto_server: S3Server, transport: str) -> None:
    options = {**moto_server.storage_options, "transport": transport}
    with txnstore.create(fresh_bucket(moto_server), storage_options=options) as store:
        (finding,) = (item for item in store.doctor().findings if item.name == "transport")
    assert (str(finding.severity), finding.message) == ("ok", f"requests go through {transport}")


def _rule(name: str, prefix: str, **effect: Any) -> dict[str, Any]:
    return {"ID": name, "Status": "Enabled", "Filter": {"Prefix": prefix}, **effect}


def _bucket_findings(store: txnstore.Store) -> dict[str, str]:
    names = ("versioning", "lifecycle", "uploads")
    return {item.name: str(item.severity) for item in store.doctor().findings if item.name in names}
