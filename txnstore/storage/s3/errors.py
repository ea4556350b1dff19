"""Maps errors of S3, its client libraries and the network to :mod:`txnstore.errors`.

The mapping uses the HTTP status and the S3 error code, not the exception class of s3fs: that class depends on the
server (a refused create is a ``FileExistsError`` on AWS and an ``OSError(EINVAL)`` on MinIO).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from txnstore.errors import (
    DamagedObjectError,
    ObjectNotFoundError,
    StorageError,
    StorageRefusedError,
    TxnStoreError,
    UnknownOutcomeError,
    UnsafeStorageError,
)
from txnstore.storage.redact import redact


class Kind(Enum):
    """The kind of a request; it determines whether a failed request may have had an effect."""

    READ = "read"
    WRITE = "write"
    CREATE = "create"


@dataclass(frozen=True, slots=True)
class Answer:
    """The HTTP status, S3 error code and message of a response; (None, "", "") without a response."""

    status: int | None
    code: str
    message: str = ""


class TransportError(Exception):
    """An error of a transport whose own errors are text, with the response, if there was one."""

    def __init__(self, message: str, answer: Answer = Answer(None, "")) -> None:
        super().__init__(message)
        self.answer = answer


class ForeignAnswerError(TransportError):
    """The response is not one of the store: a proxy or a login page has answered, or it is about another object."""


class UnsupportedRequestError(TransportError):
    """The transport cannot send this request, or cannot read its answer; another one can."""


class NotSentError(TransportError):
    """No connection was made, so the server has not received the request."""


class NotSecureError(NotSentError):
    """The server's certificate is not trusted, or the server does not speak TLS."""


_CREDENTIALS = {
    "InvalidAccessKeyId": "the access key is unknown there",
    "SignatureDoesNotMatch": "the secret key is wrong",
    "InvalidToken": "the session token is not valid",
    "InvalidTokenId": "the session token is not valid",  # MinIO
    "ExpiredToken": "the session token has expired",
    "TokenRefreshRequired": "the session token has expired",
    "InvalidSecurity": "the credentials are not valid",
    "AuthFailure": "the credentials are not valid",
    "NotSignedUp": "the account is not signed up for S3",
}
_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301", "307"}
_LOST_BODY = {"RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch"}
_BUSY_STATUS = {408, 409, 425, 429, 499}  # 499: MinIO's ClientDisconnected

# Exception classes of botocore and aiohttp by name, so that this module imports neither.
_NEVER_SENT = {"ConnectTimeoutError", "NotSentError", "ProxyConnectionError", "ClientConnectorError", "gaierror",
               "ConnectionRefusedError"}  # fmt: skip
_NOT_SECURE = {"NotSecureError", "SSLError"}
_NO_CREDENTIALS = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "CredentialRetrievalError",
    "TokenRetrievalError",
    "UnauthorizedSSOTokenError",
    "SSOTokenLoadError",
    "NoAuthTokenError",
}
#: The bytes of an answer are not those of the object, or not all of them.
_DAMAGED = {"FlexibleChecksumError", "IncompleteReadError"}
_NETWORK = {"HTTPClientError", "FSTimeoutError", "ResponseStreamingError", "ClientError", "ResponseParserError",
            "TransportError"}  # fmt: skip


def answer_of(error: BaseException) -> Answer:
    """Return the server's response from the error or one of its causes; an Answer without status if there was none."""
    for link in (*_cause_chain(error), *_wrapped_errors(error)):
        if isinstance(link, TransportError):
            return link.answer
        response = getattr(link, "response", None)
        if isinstance(response, Mapping):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            code = str(response.get("Error", {}).get("Code", ""))
            message = str(response.get("Error", {}).get("Message", ""))
            return Answer(int(status) if status is not None else status_of_code(code), code, message)
    return Answer(None, "")


#: The codes with which an S3 server says that an object does not exist, or may not.
_ABSENT = {"NoSuchKey", "NoSuchBucket", "NoSuchVersion"}


def check_absence(answer: Answer) -> None:
    """Check that a 404 for an object is from an S3 server: proxies answer 404 as well."""
    if answer.status == 404 and answer.code not in _ABSENT:
        raise ForeignAnswerError("it answered 404 without the error code of S3")


def map_s3_error(error: BaseException, kind: Kind, bucket: str, url: str, secrets: Collection[str]) -> TxnStoreError:
    """Return the error to raise when a request for ``url`` failed with ``error``.

    The caller handles the failed precondition (412) of a create, which is not an error. The original error becomes the
    cause unless it contains a secret.
    """
    answer = answer_of(error)
    problem = (
        _from_answer(answer, kind, bucket, url, secrets)
        if answer.status is not None
        else _from_client(error, kind, url, secrets)
    )
    # A missing object is an expected outcome, and its message is complete without a cause.
    if not isinstance(problem, ObjectNotFoundError) and _has_no_secret(error, secrets):
        problem.__cause__ = error
    return problem


def scrub(text: str, secrets: Collection[str]) -> str:
    """Replace the secrets in the text by ``***`` and remove credentials from URLs."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return redact(text)


def from_code(code: str, kind: Kind, bucket: str, url: str) -> TxnStoreError:
    """Return the error for a code inside a successful response, as DeleteObjects returns it per key."""
    return _from_answer(Answer(status_of_code(code), code), kind, bucket, url)


def _from_answer(answer: Answer, kind: Kind, bucket: str, url: str, secrets: Collection[str] = ()) -> TxnStoreError:
    """Return the error for a response of the server, by its code, then by its status."""
    # The code decides as it is; a secret that happens to be a part of it is replaced only where it is shown.
    status = answer.status or 0
    code = answer.code
    explanation = scrub(answer.message, secrets)
    shown = scrub(code, secrets)
    reply = f"the server answered {status} {shown}".rstrip() if status else f"the server answered {shown}"
    request = f"{kind.value} {url}"
    if code == "NoSuchBucket":
        return _refused(request, f"the bucket {bucket!r} does not exist", "Create it first.")
    if code in _CREDENTIALS or status == 401:
        reason = _CREDENTIALS.get(code, "the credentials are not valid")
        advice = "Check key, secret and token in storage_options or the environment."
        return _refused(request, f"{reason} ({reply})", advice)
    if code == "RequestTimeTooSkewed":
        return _refused(request, f"the clock of this machine is wrong ({reply})", "Set the clock.")
    if code in _REGION or status in (301, 307):
        advice = 'Pass client_kwargs={"region_name": …} in storage_options.'
        return _refused(request, f"the bucket is in another region ({reply})", advice)
    if status == 403:
        advice = (
            "Readers need s3:GetObject, and s3:ListBucket on the bucket (without it S3 denies access to an object that "
            "does not exist); writers also s3:PutObject, and s3:DeleteObject for the check of the storage and for "
            "vacuum."
        )
        return _refused(request, f"access denied ({reply})", advice)
    if status == 404 and kind is Kind.READ:
        return ObjectNotFoundError(f"There is no object {url}.")
    if status == 501 and "encryption" in answer.message.lower():
        reason = f"the server cannot encrypt as s3_additional_kwargs demands ({reply}: {explanation})"
        return _refused(request, reason)
    if status == 501 and kind is Kind.CREATE:
        return UnsafeStorageError(f"Cannot {request}: the server does not know conditional writes ({reply}).")
    if status == 400 and code in ("", "400"):
        advice = "Check endpoint_url: a server with TLS needs https://."
        return _refused(request, "the server answered 400, without an error of S3", advice)
    is_busy = code in _LOST_BODY or status in _BUSY_STATUS or code.startswith("SlowDown")
    # A 2xx has an error in its body here: the outcome is unknown.
    if is_busy or (status >= 500 and status != 501) or 200 <= status < 300:
        return _transient_error(f"Cannot {request} now: {reply}.", kind)
    return _refused(request, f"{reply}: {explanation.rstrip('.')}" if explanation else reply)


def _from_client(error: BaseException, kind: Kind, url: str, secrets: Collection[str]) -> TxnStoreError:
    """Return the error for a request without a response, which may or may not have been sent."""
    links = [*_cause_chain(error), *_wrapped_errors(error)]
    names = {base.__name__ for link in links for base in type(link).__mro__}
    detail = scrub(f"{type(error).__name__}: {error}", secrets)
    request = f"{kind.value} {url}"
    if names & _NOT_SECURE:
        advice = (
            "If its certificate is from an authority of your own, pass client_kwargs={'verify': '/path/of/ca.pem'} in "
            "storage_options or set AWS_CA_BUNDLE; if the server has no TLS, write http:// in endpoint_url."
        )
        return _refused(request, f"no secure connection to the server ({detail})", advice)
    if "FileNotFoundError" in names:
        reason = f"a file that the connection needs does not exist ({detail})"
        return _refused(request, reason, "Check 'verify' in client_kwargs, and AWS_CA_BUNDLE.")
    if "ForeignAnswerError" in names:
        return _transient_error(
            f"Cannot {request}: the answer does not come from the store ({scrub(str(error), secrets)}). Look for a "
            "proxy or a login page between this machine and the endpoint_url.",
            kind,
        )
    if names & _NEVER_SENT:
        return StorageError(f"Cannot {request}: cannot reach the server ({detail}).")
    if names & _NO_CREDENTIALS:
        advice = "Pass key and secret in storage_options, set them in the environment, or pass anon=True."
        return _refused(request, f"no usable credentials ({detail})", advice)
    if names & _NETWORK or isinstance(error, OSError):
        return _transient_error(f"Cannot {request}: the connection broke or no answer came in time ({detail}).", kind)
    if names & _DAMAGED and kind is Kind.READ:
        return DamagedObjectError(f"Cannot {request}: its bytes do not match their checksum or size ({detail}).")
    if names & _DAMAGED:
        return _transient_error(f"Cannot {request}: the answer is damaged ({detail}).", kind)
    if "BotoCoreError" in names or isinstance(error, (TypeError, ValueError, KeyError)):
        return _refused(request, f"the request cannot be made ({detail})", "Check storage_options.")
    return _transient_error(f"Cannot {request}: {detail}.", kind)


def _refused(request: str, reason: str, advice: str = "") -> StorageRefusedError:
    """Return the error for a request that fails until someone changes something; ``advice``: what, in sentences."""
    return StorageRefusedError(f"Cannot {request}: {reason}. {advice}".rstrip())


def _transient_error(message: str, kind: Kind) -> StorageError:
    """Return the error for a transient failure; a write may have happened, or may still happen."""
    return StorageError(message) if kind is Kind.READ else UnknownOutcomeError(message)


def status_of_code(code: str) -> int | None:
    """Return the HTTP status that goes with an error code inside a successful response."""
    if code.isdigit():
        return int(code)
    if code.startswith("SlowDown"):  # MinIO: SlowDownRead and SlowDownWrite, when too few of its drives respond
        return 503
    return {
        "AccessDenied": 403,
        "InternalError": 500,
        "ServiceUnavailable": 503,
        "SlowDown": 503,
        "NoSuchKey": 404,
    }.get(code)


def _cause_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, at most ten."""
    # Not the context: it may be an earlier error that the caller was handling when it retried.
    link: BaseException | None = error
    for _ in range(10):
        if link is None:
            return
        yield link
        link = link.__cause__


def _wrapped_errors(error: BaseException) -> Iterator[BaseException]:
    # botocore keeps the error of the HTTP library in kwargs["error"]. Only that error distinguishes the two cases of
    # aiobotocore's EndpointConnectionError: no connection, and one that broke after the request was sent.
    for link in _cause_chain(error):
        wrapped_error = getattr(link, "kwargs", {}).get("error")
        if isinstance(wrapped_error, BaseException):
            yield wrapped_error


def _has_no_secret(error: BaseException, secrets: Collection[str]) -> bool:
    """Whether a traceback of the error, including its causes and contexts, contains no secret."""
    pending: list[BaseException | None] = [error]
    checked_ids: set[int] = set()
    while pending:
        link = pending.pop()
        if link is None or id(link) in checked_ids:
            continue
        checked_ids.add(id(link))
        text = str(link)
        if scrub(text, secrets) != text:
            return False
        pending += [link.__cause__, link.__context__]
    return True
