"""Who commits offsets for a group: what a consumer hands to a producer (KIP-447)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """The membership of a consumer, as ``send_offsets`` of a producer needs it (KIP-447: ``ConsumerGroupMetadata``).

    Attributes:
        group: The group.
        generation: The generation of the last poll; -1: a consumer that is no member, its partitions given by hand.
        member_id: The id of the member; empty if it is none.
        instance_id: The name of a static member (KIP-345).
        topic_ids: The ids of the topics that it reads. An offset of one that was created again meanwhile is refused
            (OFF-18).
    """

    group: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
