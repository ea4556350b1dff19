"""The principals of clients that are known by their certificates: the subject, or what rules make of it (KIP-371)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from txnstore.core.authorization.changes import check_principal
from txnstore.errors import InvalidConfigError

#: The names of attributes in a subject by RFC 2253, by those of OpenSSL.
_ATTRIBUTES = {
    "commonName": "CN", "countryName": "C", "domainComponent": "DC", "localityName": "L", "organizationName": "O",
    "organizationalUnitName": "OU", "stateOrProvinceName": "ST", "streetAddress": "STREET", "userId": "UID",
}  # fmt: skip
#: A rule of Kafka's ``ssl.principal.mapping.rules``, and the comma that ends it.
_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
#: A reference to a group in a replacement, or a character that is taken as it is.
_REFERENCE = re.compile(r"\$(\d)|\\(.)")

Rule = Callable[[str], str | None]


def subject_name(certificate: Mapping[str, Any]) -> str:
    """The subject of a certificate in the form of RFC 2253, as Kafka's brokers see it: the last attribute comes first.

    Args:
        certificate: As ``SSLSocket.getpeercert`` returns it.
    """
    names = [
        "+".join(f"{_ATTRIBUTES.get(name, name)}={_escaped(str(value))}" for name, value in attributes)
        for attributes in certificate.get("subject", ())
    ]
    return ",".join(reversed(names))


def _escaped(value: str) -> str:
    text = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    text = f"\\{text}" if text[:1] in {"#", " "} else text
    return f"{text[:-1]}\\ " if text[-1:] == " " and len(value) > 1 else text


class CertificateRules:
    """Makes principals of certificates.

    Args:
        text: The value of ``ssl.principal.mapping.rules``; the first rule that fits counts.

    Raises:
        InvalidConfigError: It has another form.
    """

    def __init__(self, text: str = "DEFAULT") -> None:
        self._rules: Sequence[Rule] = _parse(text)

    def principal(self, certificate: Mapping[str, Any]) -> str:
        """The principal of a certificate that was verified.

        Raises:
            InvalidConfigError: No rule fits its subject, or what it makes is no principal.
        """
        subject = subject_name(certificate)
        name = next((name for rule in self._rules if (name := rule(subject)) is not None), None)
        if name is None:
            raise InvalidConfigError(f"no rule of ssl.principal.mapping.rules fits the subject {subject!r}")
        check_principal(f"User:{name}")
        return f"User:{name}"


def _parse(text: str) -> list[Rule]:
    """Parse ``ssl.principal.mapping.rules``: each rule from the end of the one before it."""
    rules: list[Rule] = []
    position = 0
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None:
            form = "RULE:PATTERN/REPLACEMENT/[LU], or DEFAULT"
            msg = f"ssl.principal.mapping.rules has no rule at {text[position:]!r}: {form}"
            raise InvalidConfigError(msg)
        is_default, pattern, replacement, case = match.groups()
        rules.append(str if is_default else _rule(pattern, replacement, case))
        position = match.end()
    if not rules:
        raise InvalidConfigError("ssl.principal.mapping.rules is empty: DEFAULT takes the subject as it is")
    return rules


def _rule(pattern: str, replacement: str, case: str) -> Rule:
    """Return a rule: the replacement, if the pattern fits the whole subject."""
    try:
        compiled = re.compile(pattern.replace("\\/", "/"))
    except re.error as error:
        raise InvalidConfigError(f"ssl.principal.mapping.rules: {pattern!r} is no pattern: {error}") from None
    for reference in _REFERENCE.finditer(replacement):
        if reference[1] is not None and int(reference[1]) > compiled.groups:
            msg = f"ssl.principal.mapping.rules: {pattern!r} has no group {reference[0]}, which {replacement!r} names"
            raise InvalidConfigError(msg)

    def apply(subject: str) -> str | None:
        """Return the principal of a subject; None if the pattern does not match all of it."""
        match = compiled.fullmatch(subject)
        if match is None:
            return None
        name = _REFERENCE.sub(
            lambda reference: (match[int(reference[1])] or "") if reference[1] is not None else reference[2],
            replacement,
        )
        return {"L": name.lower(), "U": name.upper()}.get(case, name)

    return apply
