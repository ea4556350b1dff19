"""Serializes an Arrow schema to text, as the chain stores it. See docs/format.md."""

from __future__ import annotations

import base64
import binascii

import pyarrow as pa

from txnstore.errors import CorruptionError


def schema_to_text(schema: pa.Schema) -> str:
    """Serialize names, types and nullability, without metadata, to base64 of the Arrow IPC schema message.

    Deterministic: equal schemas give equal texts.
    """
    bare = pa.schema([pa.field(field.name, field.type, field.nullable) for field in schema])
    return base64.b64encode(bare.serialize().to_pybytes()).decode("ascii")


def schema_from_text(text: str) -> pa.Schema:
    """Parse a schema from :func:`schema_to_text`; raises :class:`CorruptionError` for any other text."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (binascii.Error, ValueError, OSError, pa.ArrowException) as error:
        msg = f"cannot read the schema of a topic in the chain: {error}"
        raise CorruptionError(msg) from error
