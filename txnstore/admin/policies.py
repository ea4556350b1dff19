"""The requests to the storage that the rules allow a principal, as a policy for S3.

A policy grants the requests of the commands that the rules allow, and nothing else. Only the policy binds a process
that does not use this library. :attr:`StoragePolicy.notes` names the limits of the policy.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from txnstore.chain.keys import CHAINS, COMMITTERS, LEASES, STORE, TABLES, TOPICS, Keys
from txnstore.core.authorization.model import CLUSTER, OPERATIONS, Operation, ResourceType
from txnstore.core.authorization.patterns import Pattern, Patterns, patterns_of
from txnstore.core.authorization.rules import Authorization
from txnstore.errors import InvalidConfigError, InvalidTopicError
from txnstore.phrases import some
from txnstore.storage.probe import PROBE_FOLDER
from txnstore.validation import check_topic_name

Provider = Literal["aws", "minio"]
#: ``create``: a PUT that the storage refuses if the object exists.
Request = Literal["get", "put", "create", "delete", "list", "settings"]

_ACTIONS: dict[Request, tuple[str, ...]] = {
    "get": ("s3:GetObject",),
    "put": ("s3:PutObject", "s3:AbortMultipartUpload"),
    "create": ("s3:PutObject",),
    "delete": ("s3:DeleteObject",),
    "list": ("s3:ListBucket",),
    "settings": ("s3:GetBucketVersioning", "s3:GetLifecycleConfiguration"),
}
#: The objects of the check that the storage supports create-if-absent.
_PROBE_OBJECTS = f"{PROBE_FOLDER}/*"
#: The characters that stand for other text in a policy, so that names must not contain them.
_WILDCARDS = "*?$"
#: The most names of topics in a note.
_MAX_NAMED_TOPICS = 5
#: The most characters of a managed policy of AWS, white space not counted.
_AWS_MAX_CHARS = 6_144
#: The operations for which a process only reads, or that are useless without one for which it writes.
_READ_OPERATIONS: dict[ResourceType, frozenset[Operation]] = {
    "TOPIC": frozenset({"READ", "DESCRIBE", "DESCRIBE_CONFIGS"}),
    "GROUP": frozenset({"DESCRIBE", "DESCRIBE_CONFIGS"}),
    "TRANSACTIONAL_ID": frozenset({"DESCRIBE", "TWO_PHASE_COMMIT"}),
    "CLUSTER": frozenset({"DESCRIBE", "DESCRIBE_CONFIGS"}),
}


class Need(NamedTuple):
    """Requests that a principal needs, or with ``denied`` must not make.

    Attributes:
        name: The purpose, as the ``Sid`` of a statement.
        requests: The kinds of requests.
        keys: Patterns of keys, in which ``*`` is any text; empty: the requests are for the bucket.
        denied: Whether they are refused, also where another need has them.
    """

    name: str
    requests: tuple[Request, ...]
    keys: tuple[str, ...] = ()
    denied: bool = False


@dataclass(frozen=True, slots=True)
class StoragePolicy:
    """A policy for the storage: :meth:`txnstore.Acls.policy`.

    Attributes:
        principal: The principal that it is for.
        provider: ``aws`` or ``minio``.
        document: The policy, in the language of AWS IAM, as a JSON object.
        notes: The limits of the policy, and what to do about them, a sentence or more each.
        unreadable: The topics whose settings cannot be read, so that the notes may say too little of them.
    """

    principal: str
    provider: Provider
    document: Mapping[str, Any]
    notes: tuple[str, ...]
    unreadable: tuple[str, ...] = ()


def storage_policy(
    authorization: Authorization,
    principal: str,
    store_id: str,
    topics: Mapping[str, int | None],
    root: str,
    provider: Provider,
) -> StoragePolicy:
    """Return the policy of a principal, as if the rules were checked already.

    Args:
        topics: The names of all topics, with their ``inline.bytes``; None: it cannot be read.
        root: The URL of the store: ``s3://bucket/prefix``.
        provider: The provider: MinIO has no condition that lets objects only be created.

    Raises:
        InvalidConfigError: The store is in no bucket, or the principal has no right to anything.
    """
    bucket, prefix = _bucket_and_prefix(root)
    declared_rules = replace(authorization, mode="declared")
    needs = storage_needs(declared_rules, principal, store_id, topics)
    if not needs:
        msg = f"{principal} has no right to anything in this store, so there is no policy for it: create a rule first"
        raise InvalidConfigError(msg)
    document = policy_document(needs, bucket, prefix, provider)
    notes = [*_notes(declared_rules, principal, topics, provider)]
    if authorization.mode == "off":
        notes.append("No process checks the rules of this store yet: enable them.")
    size = len(json.dumps(document, separators=(",", ":")))
    if provider == "aws" and size > _AWS_MAX_CHARS:
        notes.append(
            f"AWS takes {_AWS_MAX_CHARS:,} characters, and these are {size:,}: give rules for prefixes of names."
        )
    unread_topics = tuple(sorted(name for name, size in topics.items() if size is None))
    if unread_topics:
        notes.append(
            f"The settings of {some(unread_topics)} cannot be read, so whether small commits to them are in entries "
            "is unknown. The statements do not depend on settings. txnstore verify shows the damage."
        )
    return StoragePolicy(principal, provider, document, tuple(notes), unread_topics)


def storage_needs(authorization: Authorization, principal: str, store_id: str, topics: Iterable[str]) -> list[Need]:
    """The requests that a principal needs for all that the rules allow; empty if they allow nothing."""
    if principal in authorization.super_users:
        return [_BUCKET, Need("Everything", ("get", "put", "delete"), ("*",))]
    if _is_operator(authorization, principal):
        maintained_folders = CHAINS, TOPICS, TABLES, LEASES, COMMITTERS, f"{PROBE_FOLDER}/"
        return [
            _BUCKET,
            Need("ReadIdentity", ("get",), (STORE,)),
            Need("Maintain", ("get", "put", "delete"), tuple(f"{folder}*" for folder in maintained_folders)),
        ]
    if not _may_any(authorization, principal, OPERATIONS):
        return []
    names = list(topics)
    needs = [Need("List", ("list",)), Need("ReadChains", ("get",), (STORE, f"{CHAINS}*"))]
    if _may_commit(authorization, principal):
        entry_keys = f"{Keys(store_id).chains}*/entries/*"
        needs += [
            Need("CreateEntries", ("create",), (entry_keys,)),
            Need("CheckStorage", ("get", "put", "delete"), (_PROBE_OBJECTS,)),
            Need("ShareEntries", ("get", "put", "delete"), (f"{Keys(store_id).committers}*",)),
        ]
    needs += _topic_needs("ReadTopics", "get", patterns_of(authorization, principal, "READ", "TOPIC", names))
    needs += _topic_needs("WriteTopics", "put", patterns_of(authorization, principal, "WRITE", "TOPIC", names))
    return needs


_BUCKET = Need("Bucket", ("list", "settings"))


def _topic_needs(name: str, request: Request, patterns: Patterns) -> list[Need]:
    """The needs for the segments of topics; no object has segments of two topics."""
    allowed_keys, denied_keys = _key_patterns(patterns.allowed), _key_patterns(patterns.denied)
    needs = [Need(name, (request,), allowed_keys)] if allowed_keys else []
    return [*needs, Need(f"No{name}", (request,), denied_keys, denied=True)] if allowed_keys and denied_keys else needs


def _key_patterns(patterns: Iterable[Pattern]) -> tuple[str, ...]:
    """The patterns of keys of topics' segments, without invalid topic names."""
    return tuple(
        f"{TOPICS}{pattern.name}{'*' if pattern.prefixed and pattern.name else ''}{'/*' if pattern.name else '*'}"
        for pattern in patterns
        if not pattern.name or _is_topic_name(pattern)
    )


def _is_topic_name(pattern: Pattern) -> bool:
    try:
        check_topic_name(f"{pattern.name}x" if pattern.prefixed else pattern.name)
    except InvalidTopicError:
        return False
    return True


def _is_operator(authorization: Authorization, principal: str) -> bool:
    return authorization.allows(principal, "CLUSTER_ACTION", "CLUSTER", CLUSTER)


def _may_commit(authorization: Authorization, principal: str) -> bool:
    """Whether the rules allow any command that creates an entry."""
    return _may_any(authorization, principal, {kind: OPERATIONS[kind] - _READ_OPERATIONS[kind] for kind in OPERATIONS})


def _may_any(
    authorization: Authorization, principal: str, operations: Mapping[ResourceType, Collection[Operation]]
) -> bool:
    return any(
        authorization.allows(principal, operation, kind, None) for kind in operations for operation in operations[kind]
    )


# Limits of a policy ---------------------------------------------------------------------------------------------------


def _notes(
    authorization: Authorization,
    principal: str,
    topics: Mapping[str, int | None],
    provider: Provider,
) -> Iterator[str]:
    """Yield what a policy for a principal cannot limit, by its rights."""
    if principal in authorization.super_users or _is_operator(authorization, principal):
        if principal not in authorization.super_users:
            yield "CLUSTER_ACTION is for compactions, which read and write all topics, whatever its other rules are."
        return
    if _may_commit(authorization, principal):
        yield (
            "Who may create entries may write any event, also of foreign topics, groups, transactional ids and rules, "
            "in the name of any principal, or stop the store with an object that is no entry. This policy limits "
            "accidents, and what else it can reach: give it only to programs that you trust with what the store says."
        )
        if provider == "minio":
            yield (
                "MinIO has no condition under which an object can only be created, so an entry can be overwritten: "
                "keep versions of the bucket's objects."
            )
    else:
        yield "It may write nothing: in Python, open the store with read_only=True; commands that read need no option."
    readable_topics = patterns_of(authorization, principal, "READ", "TOPIC", topics)
    yield "It sees the names, settings, schemas and offsets of all topics and groups, which are in the chains."
    inlined = sorted(name for name, size in topics.items() if size and not readable_topics.allow(name))
    if inlined:
        names = ", ".join(inlined[:_MAX_NAMED_TOPICS]) + (
            f" and {len(inlined) - _MAX_NAMED_TOPICS} more" if len(inlined) > _MAX_NAMED_TOPICS else ""
        )
        yield (
            f"Small commits are in the entries, which it reads, also those to topics that it may not read ({names}): "
            "set inline.bytes=0 for these. What is in entries already stays there until it was compacted and vacuumed."
        )
    yield "It may list the names of all objects of the bucket: give the store a bucket of its own."
    if authorization.allow_if_no_acl:
        yield "A topic that is created later, and that no rule is for, needs a new policy."


# The document ---------------------------------------------------------------------------------------------------------


def policy_document(needs: Iterable[Need], bucket: str, prefix: str, provider: Provider) -> dict[str, Any]:
    """The policy for these needs in the language of AWS IAM, of which MinIO supports a part.

    ``list`` has no condition on ``s3:prefix``: a GET of an object that does not exist has none, so AWS would answer 403
    in the place of 404, by which a process finds the end of a chain; and neither has the HEAD of the bucket, by which
    it asks for the clock of the storage, on both.
    """
    return {"Version": "2012-10-17", "Statement": [_statement(need, bucket, prefix, provider) for need in needs]}


def _statement(need: Need, bucket: str, prefix: str, provider: Provider) -> dict[str, Any]:
    """Return one statement of an AWS policy; a create is limited to new names where the provider can."""
    arn = f"arn:aws:s3:::{bucket}"
    root = f"{arn}/{prefix}/" if prefix else f"{arn}/"
    statement: dict[str, Any] = {
        "Sid": need.name,
        "Effect": "Deny" if need.denied else "Allow",
        "Action": [action for request in need.requests for action in _ACTIONS[request]],
        "Resource": [f"{root}{key}" for key in need.keys] or [arn],
    }
    if "create" in need.requests and provider == "aws":
        statement["Condition"] = {"Null": {"s3:if-none-match": "false"}}
    return statement


def _bucket_and_prefix(root: str) -> tuple[str, str]:
    """The bucket and the prefix of a store."""
    scheme, _, path = root.partition("://")
    if scheme not in ("s3", "s3a"):
        msg = f"a policy is for a bucket, and the store is at {root}: there, the permissions of files decide"
        raise InvalidConfigError(msg)
    if wildcards := sorted(set(path) & set(_WILDCARDS)):
        msg = f"a policy cannot name {root}: {wildcards[0]!r} stands for other text there"
        raise InvalidConfigError(msg)
    bucket, _, prefix = path.partition("/")
    return bucket, prefix.strip("/")
