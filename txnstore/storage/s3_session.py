"""An HTTP session that sends a request once.

aiohttp sends an idempotent request again when its connection breaks, and counts PUT among those, also with
``If-None-Match``. The second one would be answered 412 because of the first. Whoever made the request must learn that
its outcome is unknown instead, so the repetition is switched off. What is safe to repeat is repeated one level up, by
``RetryingStore``.
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
            # A private switch, without a public one. If it goes away, a create may be answered "exists" because of
            # its own first half, which the protocol of ObjectStore allows; the tests on the wire would tell.
            if hasattr(session, "_retry_connection"):
                session._retry_connection = False  # noqa: SLF001
            return session

    return SingleAttemptSession
