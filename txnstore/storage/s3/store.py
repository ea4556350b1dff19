"""An object store on S3 and S3-compatible servers, whose requests s3fs or obstore sends (``transport``).

Both repeat requests by default. Therefore their retries and caches are disabled, each call makes one request
(``requests``), and ``errors`` maps errors by their HTTP status.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, TypeVar

from txnstore.errors import InvalidConfigError, ObjectNotFoundError, StorageError, StorageRefusedError
from txnstore.storage.base import ObjectInfo, check_key, check_prefix, check_range
from txnstore.storage.bucket import BucketSettings, rules_of
from txnstore.storage.s3.errors import Kind, UnsupportedRequestError, from_code, map_s3_error
from txnstore.storage.s3.loop import own_loop, run_on
from txnstore.storage.s3.options import check_options, secrets_in
from txnstore.storage.s3.requests import PAGE_KEYS, Found, Requests
from txnstore.storage.s3.s3fs import S3fsRequests
from txnstore.storage.s3.transport import TRANSPORT_OPTION, check_transport, requests_of
from txnstore.threads import ForkLock, in_thread

T = TypeVar("T")

#: The variables that choose the server and the user where the options do not.
_IDENTIFYING = (
    "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE", "AWS_ROLE_ARN",
)  # fmt: skip


class S3Store:
    """An :class:`~txnstore.storage.base.ObjectStore` in an S3 bucket, below a prefix.

    One call is one request, except for lists and deletes of more than 1,000 keys and a ``put`` of more than 64 MiB.
    Modification times have S3's resolution of one second. Each process creates its own client at its first request,
    so the store can be used after a fork. A pickled copy contains the options, including credentials; messages and
    ``repr`` never do.

    Args:
        bucket: The name of the bucket.
        prefix: The prefix of all keys.
        storage_options: Passed unchanged to ``s3fs.S3FileSystem``, except ``transport``: s3fs or obstore.

    Raises:
        InvalidConfigError: The ``endpoint_url`` contains credentials or a query, or is no URL of a server; a number in
            ``config_kwargs`` is not positive; or there is no such ``transport``.
    """

    #: Its probe costs requests, so other processes remember it (:mod:`txnstore.storage.proofs`).
    remote = True

    def __init__(self, bucket: str, prefix: str = "", *, storage_options: Mapping[str, Any] | None = None) -> None:
        self.bucket = bucket
        self.prefix = prefix.strip("/")
        self._root = f"{self.prefix}/" if self.prefix else ""
        self._options: dict[str, Any] = copy.deepcopy(dict(storage_options or {}))
        self._secrets = frozenset(secrets_in(self._options))
        check_options(self._options)
        self._requested_transport: str | None = self._options.get(TRANSPORT_OPTION)
        check_transport(self._requested_transport)
        #: Guards `_clients`; held while a client connects. Its holder takes no other lock of the store.
        self._lock = ForkLock()
        #: One client per process id and requested transport, created at the first request. A forked child keeps its
        #: parent's entry unused: collecting it would close the parent's sockets.
        self._clients: dict[tuple[int, str | None], Requests] = {}

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def transport(self) -> str | None:
        """The library that sends this process's requests: s3fs or obstore; None before the first request."""
        requests = self._clients.get((os.getpid(), self._requested_transport))
        return None if requests is None else requests.name

    @property
    def endpoint(self) -> str:
        """The URL of the server, as far as it is known."""
        client = self._options.get("client_kwargs") or {}
        return self._options.get("endpoint_url") or client.get("endpoint_url") or "the default endpoint"

    @property
    def identity(self) -> str:
        """The URL with the endpoint and the user, as another user may have no permission to write there.

        It identifies the store in :func:`txnstore.storage.probe.probe_once`.
        """
        client = self._options.get("client_kwargs") or {}
        user = [
            *(self._options.get(name) for name in ("key", "username", "profile", "anon")),
            client.get("aws_access_key_id"),
            *(os.environ.get(name) for name in _IDENTIFYING),
        ]
        return f"{self.url} at {self.endpoint} by {user}"

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        full_key = self._full_key(key)
        first_byte, limit = check_range(key, start, end)
        # HTTP cannot request zero bytes. An empty range requests one byte, so that a missing object still raises.
        last_byte = None if limit is None else max(limit - 1, first_byte)
        data, _ = self._run_request(Kind.READ, key, lambda requests: requests.get(full_key, first_byte, last_byte))
        return data if limit is None else data[: max(0, limit - first_byte)]

    def put(self, key: str, data: bytes) -> None:
        full_key = self._full_key(key)
        self._run_request(Kind.WRITE, key, lambda requests: requests.write(full_key, data))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        full_key = self._full_key(key)
        return self._run_request(Kind.CREATE, key, lambda requests: requests.create(full_key, data))

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        check_prefix(prefix)
        infos: list[ObjectInfo] = []
        last_key = self._root + start_after if start_after else ""
        # One list finds all, or as many as are missing, of which `_object_infos` may leave out some.
        while limit is None or len(infos) < limit:
            missing = None if limit is None else limit - len(infos)
            request = partial(_list_objects, self._root + prefix, last_key, missing)
            found_objects = self._run_request(Kind.READ, prefix, request)
            infos.extend(self._object_infos(found_objects))
            if missing is None or len(found_objects) < missing:
                break
            last_key = found_objects[-1].key
        return infos

    def delete(self, keys: Sequence[str]) -> None:
        names = [self._full_key(key) for key in keys]
        for first_index in range(0, len(names), PAGE_KEYS):
            batch = partial(_delete_objects, names[first_index : first_index + PAGE_KEYS])
            for name, code in self._run_request(Kind.WRITE, keys[first_index], batch):
                if code != "NoSuchKey":
                    raise from_code(code, Kind.WRITE, self.bucket, f"s3://{self.bucket}/{name}")

    def stat(self, key: str) -> ObjectInfo:
        full_key = self._full_key(key)
        stored_object = self._run_request(Kind.READ, key, lambda requests: requests.head(full_key))
        return ObjectInfo(key, stored_object.size, _milliseconds(stored_object.modified))

    def now_ms(self) -> int:
        """Return the server's clock, from the ``Date`` header of a HEAD response; its resolution is one second."""
        try:
            date = self._run_request(Kind.READ, "", lambda requests: requests.date())
        except ObjectNotFoundError:  # A HEAD response has no body with an error code: only the bucket can be missing.
            raise from_code("NoSuchBucket", Kind.READ, self.bucket, self.url) from None
        if date is None:
            raise StorageError(f"Cannot read the clock of {self.url}: the server's responses have no Date header.")
        return _milliseconds(parsedate_to_datetime(date))

    def bucket_settings(self) -> BucketSettings:
        """Read the versioning and the lifecycle rules of the bucket. A refusal is a part of the result."""
        settings = BucketSettings(self._root, transport=self._requests_of_process(self._requested_transport).name)
        s3fs = self._s3fs()

        def ask(operation: str) -> Any:
            return self._run_request(Kind.READ, "", lambda _: s3fs.call(operation), s3fs)

        try:
            settings = replace(settings, versioning=ask("get_bucket_versioning").get("Status") or "Off")
        except StorageError as error:
            settings = replace(settings, versioning_refused=str(error))
        try:
            return replace(settings, rules=rules_of(ask("get_bucket_lifecycle_configuration")))
        except ObjectNotFoundError:  # NoSuchLifecycleConfiguration
            return replace(settings, rules=())
        except StorageError as error:
            return replace(settings, rules_refused=str(error))

    def close(self) -> None:
        with self._lock.own:
            own_requests = [requests for (pid, _), requests in self._clients.items() if pid == os.getpid()]
            self._clients = {key: requests for key, requests in self._clients.items() if key[0] != os.getpid()}
        for requests in own_requests:
            in_thread(requests.release)

    def __repr__(self) -> str:
        return f"S3Store({self.url!r})" if self.transport is None else f"S3Store({self.url!r} by {self.transport})"

    def __reduce__(self) -> tuple[Callable[..., S3Store], tuple[str, str, dict[str, Any]]]:
        return (_unpickle, (self.bucket, self.prefix, self._options))

    def _full_key(self, key: str) -> str:
        return self._root + check_key(key)

    def _object_infos(self, found_objects: Sequence[Found]) -> Iterator[ObjectInfo]:
        """Yield the listed objects by their keys in the store, without those that it cannot have written."""
        for found in found_objects:
            key = found.key[len(self._root) :]
            try:
                check_key(key)
            except StorageRefusedError:
                continue  # Some tools create "folder/" markers; txnstore never creates such keys.
            yield ObjectInfo(key, found.size, _milliseconds(found.modified))

    def _run_request(
        self, kind: Kind, key: str, request: Callable[[Requests], Awaitable[T]], requests: Requests | None = None
    ) -> T:
        """Run the coroutine on the event loop of this process, and map its error to :mod:`txnstore.errors`."""
        requests_of_process = self._requests_of_process(self._requested_transport) if requests is None else requests
        answer = run_on(own_loop(), lambda: request(requests_of_process))
        error = answer.exception()
        if error is None:
            return answer.result()
        if isinstance(error, UnsupportedRequestError) and requests is None:
            return self._run_request(kind, key, request, self._s3fs())
        if not isinstance(error, Exception) or isinstance(error, InvalidConfigError):
            raise error
        url = f"{self.url}/{key}" if key else self.url
        # Raised outside of a handler: otherwise the original error, which may contain a secret, would be its context.
        raise map_s3_error(error, kind, self.bucket, url, self._secrets)

    def _s3fs(self) -> S3fsRequests:
        """Return the requests through s3fs, for the few that obstore does not have."""
        requests = self._requests_of_process(self._requested_transport)
        if not isinstance(requests, S3fsRequests):
            requests = self._requests_of_process("s3fs")
        assert isinstance(requests, S3fsRequests)
        return requests

    def _requests_of_process(self, transport_choice: str | None) -> Requests:
        """Return the requests of this process, through the chosen transport."""
        key = (os.getpid(), transport_choice)
        requests = self._clients.get(key)
        if requests is None:
            with self._lock.own:
                requests = self._clients.get(key)
                if requests is None:  # It imports, and reads files.
                    requests = self._clients[key] = in_thread(partial(self._make_requests, transport_choice))
        return requests

    def _make_requests(self, transport_choice: str | None) -> Requests:
        options = {name: value for name, value in self._options.items() if name != TRANSPORT_OPTION}
        return requests_of(options, self.bucket, self.url, transport_choice, self._secrets)


def _unpickle(bucket: str, prefix: str, options: dict[str, Any]) -> S3Store:
    return S3Store(bucket, prefix, storage_options=options)


def _list_objects(prefix: str, start_after: str, limit: int | None, requests: Requests) -> Awaitable[Sequence[Found]]:
    return requests.list(prefix, start_after, limit)


def _delete_objects(keys: Sequence[str], requests: Requests) -> Awaitable[Sequence[tuple[str, str]]]:
    return requests.delete(keys)


def _milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)
