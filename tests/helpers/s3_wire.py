"""S3 stores of a test, and faults on the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.harness.s3.wire import WireFault, WireRequest
from txnstore.storage.s3.store import S3Store


def backend(url: str, options: dict[str, Any]) -> S3Store:
    """The store without the retries around it."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return S3Store(bucket, prefix, storage_options=options)


def every(fault: WireFault) -> Callable[[WireRequest], WireFault]:
    return lambda _: fault


def s3fs_of(store: S3Store) -> Any:
    """A connected ``S3FileSystem`` of a store, with its method ``call_s3``; loads s3fs if it was not needed yet."""
    return store._s3fs().files
