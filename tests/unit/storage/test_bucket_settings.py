"""What lifecycle rules of a bucket mean for the objects of a store."""

from __future__ import annotations

from typing import Any

import pytest

from txnstore.storage.bucket import BucketSettings, LifecycleRule, bucket_settings, rules_of
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.storage.retry import RetryingStore


def _only(rule: dict[str, Any]) -> LifecycleRule:
    (rule_read,) = rules_of({"Rules": [{"ID": "r", "Status": "Enabled", **rule}]})
    return rule_read


@pytest.mark.parametrize(
    ("where", "prefix"),
    [
        ({}, ""),
        ({"Prefix": "old/"}, "old/"),
        ({"Filter": {}}, ""),
        ({"Filter": {"Prefix": "a/"}}, "a/"),
        ({"Filter": {"And": {"Prefix": "b/", "ObjectSizeGreaterThan": 5}}}, "b/"),
    ],
)
def test_prefix_is_read_in_every_form(where: dict[str, Any], prefix: str) -> None:
    assert _only(where).prefix == prefix


def test_effects_are_read() -> None:
    assert _only({"Expiration": {"Days": 30}}).deletes
    assert _only({"Expiration": {"Date": "2030-01-01"}}).deletes
    assert not _only({"Expiration": {"ExpiredObjectDeleteMarker": True}}).deletes
    assert _only({"Transitions": [{"Days": 1, "StorageClass": "GLACIER"}]}).archives
    assert not _only({"Transitions": [{"Days": 1, "StorageClass": "STANDARD_IA"}]}).archives
    assert _only({"NoncurrentVersionExpiration": {"NoncurrentDays": 3}}).deletes_versions
    assert _only({"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 3}}).ends_uploads


def test_disabled_rules_and_rules_for_tags_are_left_out() -> None:
    disabled = {"ID": "d", "Status": "Disabled", "Expiration": {"Days": 1}}
    tagged = {"ID": "t", "Status": "Enabled", "Filter": {"Tag": {"Key": "a", "Value": "b"}}, "Expiration": {"Days": 1}}
    both = {"ID": "b", "Status": "Enabled", "Filter": {"And": {"Prefix": "", "Tags": [{"Key": "a", "Value": "b"}]}}}
    assert rules_of({"Rules": [disabled, tagged, both]}) == ()
    assert rules_of({}) == ()


def test_rule_touches_what_it_covers_and_what_is_below() -> None:
    rule = LifecycleRule("r", "root/topics/")
    assert (rule.covers("root/topics/a"), rule.touches("root/topics/a")) == (True, True)
    assert (rule.covers("root/"), rule.touches("root/")) == (False, True)
    assert not rule.touches("root/chains/")


def test_settings_are_found_behind_wrappers() -> None:
    class Bucket(MemoryStore):
        def bucket_settings(self) -> BucketSettings:
            return BucketSettings("root/")

    assert bucket_settings(CountingStore(RetryingStore(Bucket()))) == BucketSettings("root/")
    assert bucket_settings(CountingStore(MemoryStore())) is None
