"""Which library sends the requests of a store on S3.

The storage option ``transport`` names it: ``s3fs`` or ``obstore``. Without it obstore is used where it is installed and
knows every option that is given, else s3fs. They differ in speed only: what a request means, and what its errors mean,
is the same, and the same tests check both.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from txnstore.errors import InvalidConfigError
from txnstore.storage.s3.obstore import ObstoreRequests, is_usable, unfit, unknown_parameter, unsupported
from txnstore.storage.s3.requests import S3fsRequests
from txnstore.storage.s3.settings import plain_settings, settings_of

_LOG = logging.getLogger(__name__)

OPTION = "transport"
NAMES = ("s3fs", "obstore")


def check_transport(wish: object) -> None:
    """Check the option.

    Raises:
        InvalidConfigError: There is no such transport, or it is not installed in a version that txnstore knows.
    """
    if wish is not None and wish not in NAMES:
        raise InvalidConfigError(
            f"The storage option {OPTION!r} must be {' or '.join(map(repr, NAMES))}, not {wish!r}."
        )
    reason = unfit() if wish == "obstore" else None
    if reason is not None:
        raise InvalidConfigError(f"The transport 'obstore' is {reason}: install txnstore[obstore].")


def requests_of(
    connect: Callable[[], Any], options: Mapping[str, Any], bucket: str, url: str, wish: str | None
) -> S3fsRequests:
    """The requests of a bucket, through the transport that is wished for, or else through the best that fits.

    Args:
        connect: Makes a connected ``s3fs.S3FileSystem``. It is called now, unless the settings are plain.
        options: The ``storage_options``.
        bucket: The name of the bucket.
        url: The store, for messages.
        wish: The option ``transport``.

    Raises:
        InvalidConfigError: An option is wrong, or obstore is wished for, and does not know one.
    """
    reason = "it was not asked for" if wish == "s3fs" else unfit()
    if reason is None and not is_usable():
        reason = "this process was forked from one that uses it"
    if reason is None and not bucket.endswith("--x-s3"):
        settings = plain_settings(options, os.environ)
        if settings is not None and unknown_parameter(settings.additional) is None:
            _LOG.info("S3 requests go through obstore", extra={"url": url})
            return ObstoreRequests(bucket, settings, connect)
    files = connect()
    if reason is None:
        missing = unsupported(files, options, bucket)
        if missing is None:
            _LOG.info("S3 requests go through obstore", extra={"url": url})
            return ObstoreRequests(bucket, settings_of(files), connect, files)
        if wish is not None:
            raise InvalidConfigError(
                f"The transport 'obstore' does not know the storage option {missing} for {url}. Leave it out, or "
                f"pass {OPTION}='s3fs'."
            )
        reason = f"it does not know {missing}"
    if wish != "s3fs":
        _LOG.info("S3 requests go through s3fs", extra={"url": url, "not_obstore": reason})
    return S3fsRequests(bucket, connect, files)
