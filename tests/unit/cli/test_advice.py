"""The advice that the command line adds to errors of the library."""

from __future__ import annotations

import re

import pytest

from txnstore import errors
from txnstore.cli.app import _advice
from txnstore.errors import TxnStoreError

#: A call, an argument or an object of Python.
_PYTHON = re.compile(r"\w+\(|=True|(?<!-)\b[a-z]+_[a-z]+\b|\b[Cc]reate (?:the|a new) (?:producer|consumer)\b")
CLASSES = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, TxnStoreError)]


@pytest.mark.parametrize("kind", CLASSES)
def test_advice_of_the_command_line_names_no_python(kind: type[TxnStoreError]) -> None:
    error = kind.__new__(kind)
    found = _PYTHON.search(_advice(error))
    assert found is None or "auto_offset_reset" in found[0], _advice(error)
