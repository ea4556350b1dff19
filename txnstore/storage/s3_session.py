"""An HTTP session that sends each request once.

aiohttp repeats an idempotent request when its connection breaks, and treats PUT as idempotent even with
``If-None-Match``. The server would then answer 412 to the repetition because of the first request, although the caller
must learn that the outcome is unknown. Therefore this session disables the repetition; ``RetryingStore`` repeats the
requests that are safe to repeat.
"""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def single_attempt_session() -> type[Any]:
    """The class to pass as ``http_session_cls`` in ``config_kwargs``."""
    from aiobotocore.httpsession import AIOHTTPSession

    class SingleAttemptSession(AIOHTTPSession):  # type: ignore[misc, unused-ignore]
        async def _get_session(self, proxy_url: Any) -> Any:
            session = await super()._get_session(proxy_url)
            # aiohttp has no public switch. Without this one, a create may return "exists" because of its own first
            # request, which the ObjectStore protocol allows; the tests with RequestLog detect the extra request.
            if hasattr(session, "_retry_connection"):
                session._retry_connection = False  # noqa: SLF001
            return session

    return SingleAttemptSession
