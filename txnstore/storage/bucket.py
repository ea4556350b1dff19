"""The settings of a bucket that matter to a store: versioning, and lifecycle rules for its objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from txnstore.storage.base import ObjectStore, method_of

#: Storage classes whose objects must be restored before they can be read.
_ARCHIVES = {"GLACIER", "DEEP_ARCHIVE"}


@dataclass(frozen=True, slots=True)
class LifecycleRule:
    """An enabled lifecycle rule, and what it does with the objects below its prefix.

    Attributes:
        name: Its id.
        prefix: The prefix of the keys in the bucket that it applies to; empty: all.
        deletes: Whether it deletes current objects.
        archives: Whether it moves objects to a storage class from which they cannot be read immediately.
        deletes_versions: Whether it deletes versions that are no longer current.
        ends_uploads: Whether it removes incomplete multipart uploads.
    """

    name: str
    prefix: str
    deletes: bool = False
    archives: bool = False
    deletes_versions: bool = False
    ends_uploads: bool = False

    def covers(self, prefix: str) -> bool:
        """Whether the rule applies to all objects whose keys start with ``prefix``."""
        return prefix.startswith(self.prefix)

    def touches(self, prefix: str) -> bool:
        """Whether the rule applies to some object whose key starts with ``prefix``."""
        return prefix.startswith(self.prefix) or self.prefix.startswith(prefix)


@dataclass(frozen=True, slots=True)
class BucketSettings:
    """The settings of the bucket of a store; a setting that could not be read is None, with the reason.

    Attributes:
        root: The prefix of the store's keys in the bucket.
        versioning: ``Enabled``, ``Suspended`` or ``Off``.
        rules: The enabled lifecycle rules that may apply to objects of the store.
        versioning_refused: Why the state of the versioning is unknown.
        rules_refused: Why the rules are unknown.
        transport: The library that sends the requests: s3fs or obstore.
    """

    root: str
    versioning: str | None = None
    rules: tuple[LifecycleRule, ...] | None = None
    versioning_refused: str = ""
    rules_refused: str = ""
    transport: str = ""


def bucket_settings(objects: ObjectStore) -> BucketSettings | None:
    """Read the settings of the bucket of a store, which may be wrapped; None if it is in no bucket.

    Two requests, which no wrapper counts or repeats.
    """
    read_settings = method_of(objects, "bucket_settings")
    return read_settings() if read_settings is not None else None


def rules_of(answer: Mapping[str, Any]) -> tuple[LifecycleRule, ...]:
    """Return the enabled rules in the answer to GetBucketLifecycleConfiguration.

    Rules for objects with tags are left out: the objects of a store have none.
    """
    return tuple(
        _parse_rule(rule) for rule in answer.get("Rules", ()) if rule.get("Status") == "Enabled" and not _has_tags(rule)
    )


def _parse_rule(rule: Mapping[str, Any]) -> LifecycleRule:
    """Return what an enabled lifecycle rule of the bucket does to objects."""
    expiration = rule.get("Expiration", {})
    transitions: Sequence[Mapping[str, Any]] = rule.get("Transitions", ())
    return LifecycleRule(
        name=str(rule.get("ID", "")),
        prefix=_rule_prefix(rule),
        deletes="Days" in expiration or "Date" in expiration,
        archives=any(transition.get("StorageClass") in _ARCHIVES for transition in transitions),
        deletes_versions="NoncurrentVersionExpiration" in rule,
        ends_uploads="AbortIncompleteMultipartUpload" in rule,
    )


def _rule_prefix(rule: Mapping[str, Any]) -> str:
    rule_filter = rule.get("Filter", {})
    return str(rule_filter.get("Prefix") or rule_filter.get("And", {}).get("Prefix") or rule.get("Prefix") or "")


def _has_tags(rule: Mapping[str, Any]) -> bool:
    rule_filter = rule.get("Filter", {})
    return "Tag" in rule_filter or bool(rule_filter.get("And", {}).get("Tags"))
