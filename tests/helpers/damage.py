"""Damages the objects of a store on purpose."""

from __future__ import annotations

import hashlib


def sealed(body: bytes) -> bytes:
    """A JSON object with a checksum that fits."""
    return body[:-1] + b',"checksum":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'
