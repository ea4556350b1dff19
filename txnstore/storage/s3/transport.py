"""The choice of the library that sends the requests of a store on S3.

The storage option ``transport`` names it: ``s3fs`` or ``obstore``. Without it obstore is used where it is installed and
knows every option that is given, else s3fs. They differ in speed only: what a request means, and what its errors mean,
is the same, and the same tests check both.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from txnstore.errors import InvalidConfigError
from txnstore.storage.s3.client import connect
from txnstore.storage.s3.obstore import (
    ObstoreRequests,
    UnknownOptionError,
    is_usable,
    supported_settings,
    unusable_reason,
)
from txnstore.storage.s3.options import suggest_option, wrong_option_error
from txnstore.storage.s3.requests import Requests
from txnstore.storage.s3.s3fs import S3fsRequests

_LOG = logging.getLogger(__name__)

TRANSPORT_OPTION = "transport"
NAMES = ("s3fs", "obstore")


def check_transport(transport: object) -> None:
    """Check that a transport exists, and is installed in a supported version."""
    if transport is not None and transport not in NAMES:
        raise InvalidConfigError(
            f"The storage option {TRANSPORT_OPTION!r} must be {' or '.join(map(repr, NAMES))}, not {transport!r}."
        )
    reason = unusable_reason() if transport == "obstore" else None
    if reason is not None:
        raise InvalidConfigError(f"The transport 'obstore' is {reason}: install txnstore[obstore].")


def requests_of(
    options: Mapping[str, Any], bucket: str, url: str, transport: str | None, secrets: Collection[str]
) -> Requests:
    """Return the requests of a bucket, through the chosen transport, else through the best that fits."""
    reason = "it was not asked for" if transport == "s3fs" else unusable_reason()
    if reason is None and not is_usable():
        reason = "this process was forked from one that uses it"
    if reason is None:
        try:
            settings = supported_settings(options, bucket)
        except UnknownOptionError as unknown:
            reason = f"it does not know {unknown}"
            problem = _unknown_transport(str(unknown), url) if transport == "obstore" else None
        except Exception as error:  # noqa: BLE001 - Invalid options can make botocore raise any class.
            problem = wrong_option_error(error, url, secrets)
        else:
            _LOG.info("S3 requests go through obstore", extra={"url": url})
            return ObstoreRequests(bucket, settings)
        if problem is not None:
            raise problem  # Outside of the handler: a context may contain secrets.
    if transport != "s3fs":
        _LOG.info("S3 requests go through s3fs", extra={"url": url, "not_obstore": reason})
    return S3fsRequests(bucket, connect(options, url, secrets))


def _unknown_transport(name: str, url: str) -> InvalidConfigError:
    hint = (" " not in name and suggest_option(name)) or f"Leave it out, or pass {TRANSPORT_OPTION}='s3fs'."
    return InvalidConfigError(f"The transport 'obstore' does not know the storage option {name} for {url}. {hint}")
