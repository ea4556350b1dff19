"""Check the storage of a store: permissions, clock, conditional create, the settings of the bucket."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from txnstore.chain import keys
from txnstore.chain.earlier_states import SKEW_MS
from txnstore.chain.identity import document_of
from txnstore.chain.traces import no_document
from txnstore.compactor.doctor.findings import Finding, Severity
from txnstore.compactor.repair.identity import recover_command
from txnstore.connection import Connection
from txnstore.errors import CorruptionError, StorageError, UnsafeStorageError, UnsupportedFormatError
from txnstore.phrases import duration
from txnstore.storage.base import iterate_layers, read_if_there
from txnstore.storage.bucket import BucketSettings, bucket_settings
from txnstore.storage.local import LocalStore
from txnstore.storage.probe import PROBE_FOLDER
from txnstore.storage.probe import probe as probe_creates
from txnstore.storage.redact import redact

#: Less than this is a full disk, in bytes: one segment of a producer, and an entry.
_MIN_FREE_BYTES = 32 << 20
#: Less than this part of the file system is little: a twentieth.
_LOW_SPACE_FRACTION = 20

_finding = partial(Finding, "storage")


def storage_findings(connection: Connection, *, probe: bool) -> Iterator[Finding]:
    """Report on the storage, before anything else of the store is read.

    Raises:
        StoreNotFoundError: There is no store at this URL.
    """
    yield _read_finding(connection)
    yield _list_finding(connection)
    if probe:
        yield _create_finding(connection)
        yield _delete_finding(connection)
    else:
        message = "whether objects can be created once, and deleted, was not checked: that needs writes"
        yield _finding("conditional-create", Severity.NOTE, message, "txnstore doctor --probe")
    yield _clock_finding(connection)
    yield from _space_findings(connection)
    settings = bucket_settings(connection.objects)
    if settings is not None:
        yield _finding("transport", Severity.OK, f"requests go through {settings.transport}")
        yield _versioning_finding(settings)
        yield from _lifecycle_findings(settings)


def _read_finding(connection: Connection) -> Finding:
    """Check that ``store.json`` can be read."""
    try:
        data = read_if_there(connection.objects, keys.STORE)
        if data is None:
            raise no_document(connection.objects)
        document_of(data, redact(connection.url))
    except CorruptionError as error:
        return _finding("read", Severity.BAD, str(error), recover_command(connection))
    except (StorageError, UnsupportedFormatError) as error:
        return _finding("read", Severity.BAD, str(error))
    return _finding("read", Severity.OK, "objects can be read")


def _list_finding(connection: Connection) -> Finding:
    try:
        listed_objects = connection.objects.list(keys.STORE)
    except StorageError as error:
        message = f"objects cannot be listed, which vacuum, verify and recover need: {error}"
        return _finding("list", Severity.WARN, message)
    if any(item.key == keys.STORE for item in listed_objects) or read_if_there(connection.objects, keys.STORE) is None:
        return _finding("list", Severity.OK, "objects can be listed")
    return _finding("list", Severity.BAD, f"no list contains {keys.STORE}: vacuum and verify would miss objects")


def _create_finding(connection: Connection) -> Finding:
    name = "conditional-create"
    try:
        probe_creates(connection.objects, connection.runtime.new_id)
    except UnsafeStorageError as error:
        return _finding(name, Severity.BAD, str(error))
    except StorageError as error:
        return _finding(name, Severity.WARN, f"objects cannot be created: {error}")
    return _finding(name, Severity.OK, "of nine writers of one name, eight of them concurrent, exactly one created it")


def _delete_finding(connection: Connection) -> Finding:
    try:
        connection.objects.delete([f"{PROBE_FOLDER}/{connection.runtime.new_id()}"])
    except StorageError as error:
        return _finding("delete", Severity.WARN, f"objects cannot be deleted, which vacuum needs: {error}")
    return _finding("delete", Severity.OK, "objects can be deleted")


def _clock_finding(connection: Connection) -> Finding:
    """Compare the clock of this machine with that of the storage, which is read between two looks at the first."""
    time_before = connection.runtime.clock()
    try:
        storage_time = connection.objects.now_ms()
    except StorageError as error:
        return _finding("clock", Severity.NOTE, f"the clock of the storage cannot be read: {error}")
    time_after = connection.runtime.clock()
    ahead, behind = time_before - storage_time, storage_time - time_after
    if max(ahead, behind) < SKEW_MS:
        return _finding("clock", Severity.OK, "the clocks of this machine and of the storage agree")
    difference = f"{duration(ahead)} ahead of" if ahead > 0 else f"{duration(behind)} behind"
    message = (
        f"the clock of this machine is {difference} that of the storage: S3 refuses requests from 15 minutes on, and "
        "records get wrong timestamps; set it by NTP"
    )
    return _finding("clock", Severity.WARN, message)


def _space_findings(connection: Connection) -> Iterator[Finding]:
    """Report how full the file system of a local store is; nothing about other storage."""
    folder = next((layer for layer in iterate_layers(connection.objects) if isinstance(layer, LocalStore)), None)
    if folder is None:
        return
    try:
        free, total = folder.space()
    except StorageError as error:
        yield _finding("space", Severity.NOTE, f"the space of the file system cannot be read: {error}")
        return
    message = f"{free:,} of {total:,} bytes of the file system are free"
    if free < _MIN_FREE_BYTES:
        message += ": commits, compactions and checkpoints fail; free some, or move the store to a larger disk"
        yield _finding("space", Severity.BAD, message)
    elif free < total // _LOW_SPACE_FRACTION:
        message += ": a compaction writes new segments before a vacuum deletes the old ones"
        yield _finding("space", Severity.WARN, message)
    else:
        yield _finding("space", Severity.OK, message)


# Buckets --------------------------------------------------------------------------------------------------------------


def _versioning_finding(settings: BucketSettings) -> Finding:
    """Report whether the bucket keeps versions, and whether a rule deletes old ones."""
    if settings.versioning is None:
        message = f"whether the bucket keeps versions could not be read: {settings.versioning_refused}"
        return _finding("versioning", Severity.NOTE, message)
    if settings.versioning != "Enabled":
        message = f"versioning is {settings.versioning.lower()}: a deleted or overwritten object is lost"
        return _finding("versioning", Severity.OK, message)
    is_bounded = settings.rules is None or any(
        rule.deletes_versions and rule.covers(f"{settings.root}{keys.TOPICS}") for rule in settings.rules
    )
    if is_bounded:
        return _finding("versioning", Severity.OK, "versioning is enabled")
    message = (
        "versioning is enabled, and no lifecycle rule deletes old versions: what a vacuum deletes is stored, and paid "
        f"for, without end; add NoncurrentVersionExpiration for the prefix {settings.root!r}"
    )
    return _finding("versioning", Severity.WARN, message)


def _lifecycle_findings(settings: BucketSettings) -> Iterator[Finding]:
    """Yield rules that delete or archive objects of the store, and whether old uploads are removed."""
    if settings.rules is None:
        message = f"the lifecycle rules of the bucket could not be read: {settings.rules_refused}"
        yield _finding("lifecycle", Severity.NOTE, message)
        return
    our_prefixes = [f"{settings.root}{name}" for name in (keys.STORE, keys.CHAINS, keys.TOPICS)]
    harmful_rules = [
        rule
        for rule in settings.rules
        if (rule.deletes or rule.archives) and any(rule.touches(each) for each in our_prefixes)
    ]
    for rule in harmful_rules:
        verb = "deletes" if rule.deletes else "archives"
        message = (
            f"the lifecycle rule {rule.name!r} for the prefix {rule.prefix!r} {verb} objects of the store by age; only "
            "a vacuum may delete them: remove the rule, or exclude the store from it"
        )
        yield _finding("lifecycle", Severity.BAD, message)
    if not harmful_rules:
        yield _finding("lifecycle", Severity.OK, "no lifecycle rule deletes or archives objects of the store")
    if not any(rule.ends_uploads and rule.covers(f"{settings.root}{keys.TOPICS}") for rule in settings.rules):
        message = (
            "no lifecycle rule removes incomplete multipart uploads, whose parts no list shows and no vacuum deletes: "
            f"add AbortIncompleteMultipartUpload for the prefix {settings.root!r}"
        )
        yield _finding("uploads", Severity.NOTE, message)
