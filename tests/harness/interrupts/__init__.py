"""Ctrl-C at random instants in every client of one process; the command is ``python -m tests.harness.interrupts``.

A second thread sends SIGINT while the main thread uses producers, a consumer of a group, scans, SQL and maintenance;
a third thread writes and reads through the same store all the time. Each call is repeated until it is not interrupted.
In the end every acknowledged record is stored exactly once, no refused one is, the consumer skipped none, nothing hung,
and ``verify`` finds nothing. The check of a commit that was interrupted is the documented one: the repeated call
succeeds, or says that the transaction has to be aborted, and then it is.
"""

from tests.harness.interrupts.run import Report, Settings, interrupt

__all__ = ["Report", "Settings", "interrupt"]
