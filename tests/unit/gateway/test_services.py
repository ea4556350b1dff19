"""Topics by their ids."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest

from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.view import View
from txnstore.gateway import services
from txnstore.gateway.errors import RefusedError
from txnstore.gateway.services import topic_by_id, topic_uuid


def test_a_request_that_names_all_topics_by_id_makes_the_ids_once(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = {f"t{number}": CatalogTopic(f"t{number}", str(UUID(int=number + 1)), 1) for number in range(20)}
    view, made = cast("View", SimpleNamespace(topics=topics)), list[str]()

    def counted(topic: CatalogTopic) -> UUID:
        made.append(topic.name)
        return topic_uuid(topic)

    monkeypatch.setattr(services, "topic_uuid", counted)
    for topic in topics.values():
        assert topic_by_id(view, topic_uuid(topic)) is topic
    assert len(made) == 20
    for unknown in (UUID(int=99), None):
        with pytest.raises(RefusedError, match="no topic with the id"):
            topic_by_id(view, unknown)
