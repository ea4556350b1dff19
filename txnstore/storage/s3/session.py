"""An HTTP session that sends each request once.

aiohttp repeats an idempotent request when its connection breaks, and treats PUT as idempotent even with
``If-None-Match``. The server would then answer 412 to the repetition because of the first request, although the caller
must learn that the outcome is unknown. Therefore this session disables the repetition; ``RetryingStore`` repeats the
requests that are safe to repeat.

It follows redirects, too: after 303 it sends GET without the body, whose answer would pass for that of a create. This
session raises the redirect as the answer of the server.

aiohttp has no public switch for repetitions, and aiobotocore no public way to the session of aiohttp. A version
without these two names is refused before the first request.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any

from txnstore.errors import InvalidConfigError

_SESSION = "_get_session"
_SWITCH = "_retry_connection"


@cache
def single_attempt_session() -> type[Any]:
    """Return the class to pass as ``http_session_cls`` in ``config_kwargs``."""
    from aiobotocore.httpsession import AIOHTTPSession
    from aiohttp import ClientSession, TraceConfig

    refuse_unless_switchable(AIOHTTPSession, ClientSession)
    no_redirects = TraceConfig()
    no_redirects.on_request_redirect.append(_refuse_redirect)
    no_redirects.freeze()

    class SingleAttemptSession(AIOHTTPSession):  # type: ignore[misc, unused-ignore]
        async def _get_session(self, proxy_url: Any) -> Any:
            session = await super()._get_session(proxy_url)
            setattr(session, _SWITCH, False)
            if no_redirects not in session.trace_configs:
                session.trace_configs.append(no_redirects)
            return session

    return SingleAttemptSession


async def _refuse_redirect(_session: Any, _context: Any, redirect: Any) -> None:
    from botocore.exceptions import ClientError

    status = redirect.response.status
    redirect.response.close()
    raise ClientError({"Error": {"Code": str(status)}, "ResponseMetadata": {"HTTPStatusCode": status}}, redirect.method)


def refuse_unless_switchable(outer_class: type[Any], inner_class: type[Any]) -> None:
    """Check that the sessions of aiobotocore and aiohttp have the names that this module uses."""
    names = (*getattr(inner_class, "ATTRS", ()), *getattr(inner_class, "__slots__", ()))
    if hasattr(outer_class, _SESSION) and _SWITCH in names:
        return
    raise InvalidConfigError(
        f"aiobotocore {version('aiobotocore')} with aiohttp {version('aiohttp')} repeats a request when its connection "
        "breaks, and has no option against it, so the outcome of a commit could be mistaken. Install the versions in "
        "requirements-dev.lock, or report this."
    )
