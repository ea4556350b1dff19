"""Histories of clients whose rights change, on stores and a broker with ``StandardAuthorizer``, compared step by step.

``python -m tests.harness.authorization --kafka LIBS --seeds 100`` compares with a broker (TST-25).
"""

from tests.harness.authorization.comparison import Difference, run_history
from tests.harness.authorization.on_store import OnStore

__all__ = ["Difference", "OnStore", "run_history"]
