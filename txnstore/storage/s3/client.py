"""Makes the client of s3fs for a store, from its ``storage_options``."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

from txnstore.errors import InvalidConfigError
from txnstore.storage.s3.loop import own_loop
from txnstore.storage.s3.options import unknown_option_error, wrong_option_error
from txnstore.storage.s3.session import single_attempt_session
from txnstore.storage.s3.settings import share_descriptions

#: Whatever the options say: requests are counted and repeated above, and each store has a client of its own.
_FIXED = {"use_listings_cache": False, "skip_instance_cache": True, "asynchronous": False}
#: The operations that ``s3_additional_kwargs`` may have parameters of.
_OPERATIONS = ("put_object", "get_object", "list_objects_v2", "delete_objects", "create_multipart_upload")


def connect(options: Mapping[str, Any], url: str, secrets: Collection[str]) -> Any:
    """Return a connected ``s3fs.S3FileSystem``. Sends no request, but may read files and ask for credentials."""
    try:
        import s3fs
    except ImportError:
        raise InvalidConfigError("s3:// URLs need the package s3fs: install txnstore[s3].") from None
    arguments = copy.deepcopy(dict(options))
    config = {
        "max_pool_connections": 64,
        "http_session_cls": single_attempt_session(),
        **arguments.pop("config_kwargs", {}),
        "retries": {"total_max_attempts": 1},
    }
    try:
        files = s3fs.S3FileSystem(**{**arguments, **_FIXED, "loop": own_loop()}, config_kwargs=config)
        if files.session is None:
            from aiobotocore.session import AioSession

            files.session = AioSession(**files.kwargs)  # As s3fs would make it.
            share_descriptions(files.session)
        files.connect()
        unknown_name = _find_unknown_parameter(files, arguments.get("s3_additional_kwargs") or {})
        files.s3.meta.events.register("before-call.s3.HeadBucket", _disable_redirects)
    except Exception as error:  # noqa: BLE001 - Invalid options can make s3fs raise any class.
        problem = wrong_option_error(error, url, secrets)
    else:
        if unknown_name is None:
            return files
        problem = unknown_option_error(unknown_name, url)
    raise problem  # Outside of the handler: a context may contain secrets.


def _find_unknown_parameter(files: Any, names: Mapping[str, Any]) -> str | None:
    """Return a name in ``s3_additional_kwargs`` that no request for an object has: it would be ignored."""
    known_names = frozenset[str]().union(*(operation_parameters(files.s3, operation) for operation in _OPERATIONS))
    return next((name for name in names if name not in known_names), None)


def _disable_redirects(params: dict[str, Any], **_: object) -> None:
    """Keep botocore from following a redirect of the request by which it follows redirects.

    It asks for the region of a bucket by HeadBucket; a server that answers this with 301, and without a region, would
    be asked again until the stack is exhausted.
    """
    params["context"].setdefault("s3_redirect", {})["redirected"] = True


def operation_parameters(s3: Any, operation: str) -> frozenset[str]:
    """Return the names of the parameters of an operation, such as ``put_object``."""
    meta = s3.meta
    return frozenset(meta.service_model.operation_model(meta.method_to_api_mapping[operation]).input_shape.members)
