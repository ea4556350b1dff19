"""``pyarrow.compute``, imported at its first use: it makes 300 functions, of which an open of a store needs none.

Use it as the module itself: ``from txnstore import compute as pc``.
"""

from __future__ import annotations

import sys
from typing import Any

from txnstore.threads import load


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    load("pyarrow.compute")
    value = globals()[name] = getattr(sys.modules["pyarrow.compute"], name)
    return value
