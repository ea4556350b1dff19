"""An Arrow schema as text, the way the chain stores it."""

from __future__ import annotations

import base64
import binascii

import pyarrow as pa

from txnstore.errors import CorruptionError


def schema_to_text(schema: pa.Schema) -> str:
    """Names, types and nullability in base64 of the Arrow IPC schema message; metadata is left out.

    Equal schemas give equal texts.
    """
    bare = pa.schema([pa.field(field.name, field.type, field.nullable) for field in schema])
    return base64.b64encode(bare.serialize().to_pybytes()).decode("ascii")


def schema_from_text(text: str) -> pa.Schema:
    """The schema that :func:`schema_to_text` wrote; :class:`CorruptionError` for anything else."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (binascii.Error, ValueError, OSError, pa.ArrowException) as error:
        msg = f"the schema of a topic in the chain cannot be read: {error}"
        raise CorruptionError(msg) from error
