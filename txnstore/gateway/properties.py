"""The properties of a gateway, with Kafka's names and defaults for brokers."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from txnstore.core.groups.membership import MAX_SESSION_TIMEOUT_MS
from txnstore.errors import InvalidConfigError


@dataclass(frozen=True, slots=True)
class Properties:
    """The properties that ``--property NAME=VALUE`` sets.

    Attributes:
        auto_create_topics_enable: Create a topic that a client asks for, if its request allows that. Kafka's default is
            true; here a typing error should not create a topic.
        num_partitions: The partitions of a topic whose creator does not say.
        message_max_bytes: The largest batch that a client may send to a topic that sets no ``max.message.bytes``.
        group_initial_rebalance_delay_ms: How long the first rebalance of an empty group waits for further members.
        group_min_session_timeout_ms: The shortest session timeout of a member.
        group_max_session_timeout_ms: The longest one.
        group_max_size: The members of a classic group after which further ones are refused.
        group_consumer_session_timeout_ms: The session timeout of the members of KIP-848.
        group_consumer_heartbeat_interval_ms: How often they send heartbeats.
        group_consumer_max_size: The members of a group of KIP-848 after which further ones are refused.
        ssl_principal_mapping_rules: What principals are made of the subjects of the certificates of clients.
        sasl_oauthbearer_jwks_endpoint_url: Where the keys of tokens are; empty: clients have no tokens.
        sasl_oauthbearer_expected_issuer: Who must have made a token.
        sasl_oauthbearer_expected_audience: For whom it must be made; several with commas between them.
        sasl_oauthbearer_sub_claim_name: The claim that names the principal.
        sasl_oauthbearer_clock_skew_seconds: By how much the clock of the issuer may differ.
    """

    auto_create_topics_enable: bool = False
    num_partitions: int = 1
    message_max_bytes: int = 1_048_588
    group_initial_rebalance_delay_ms: int = 3_000
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 2**31 - 1
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_max_size: int = 2**31 - 1
    ssl_principal_mapping_rules: str = "DEFAULT"
    sasl_oauthbearer_jwks_endpoint_url: str = ""
    sasl_oauthbearer_expected_issuer: str = ""
    sasl_oauthbearer_expected_audience: str = ""
    sasl_oauthbearer_sub_claim_name: str = "sub"
    sasl_oauthbearer_clock_skew_seconds: int = 30

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, str]) -> Self:
        """Parse properties with Kafka's names.

        Raises:
            InvalidConfigError: A name is unknown, or a value is not allowed.
        """
        names = {field.name.replace("_", "."): field for field in fields(cls)}
        values: dict[str, Any] = {}
        for name, text in mapping.items():
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
                raise InvalidConfigError(f"a gateway has no property {name!r}; {hint}")
            values[names[name].name] = _PARSERS[str(names[name].type)](name, text)
        properties = cls(**values)
        session_ms, interval_ms = (
            properties.group_consumer_session_timeout_ms,
            properties.group_consumer_heartbeat_interval_ms,
        )
        if not 0 < interval_ms < session_ms <= MAX_SESSION_TIMEOUT_MS:
            msg = (
                "group.consumer.heartbeat.interval.ms must be above 0 and below group.consumer.session.timeout.ms, "
                f"which is {MAX_SESSION_TIMEOUT_MS} at most, not {interval_ms} and {session_ms}"
            )
            raise InvalidConfigError(msg)
        return properties

    def as_texts(self) -> dict[str, str]:
        """The properties with Kafka's names, as texts that :meth:`from_mapping` parses."""
        values = ((field.name.replace("_", "."), getattr(self, field.name)) for field in fields(self))
        return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values}


def _parse_flag(name: str, text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise InvalidConfigError(f"{name} must be true or false, not {text!r}")
    return text.lower() == "true"


def _parse_number(name: str, text: str) -> int:
    minimum = 1 if name in _POSITIVE else 0
    if not text.isdecimal() or int(text) < minimum:
        raise InvalidConfigError(f"{name} must be a whole number from {minimum} on, not {text!r}")
    return int(text)


_POSITIVE = {"num.partitions", "group.max.size", "group.consumer.max.size"}
_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "bool": _parse_flag,
    "int": _parse_number,
    "str": lambda _name, text: text,
}
