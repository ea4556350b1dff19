"""Hostile input with valid checksums, names and schemas; ``python -m tests.harness.hostile``.

Each case puts something into a store that its writers would not: an entry or a checkpoint whose checksums fit but whose
events do not, a name with path tricks or control characters, a schema that is huge, deep or outside the supported
types. Then every reader uses the store: scans, SQL, consumers, the command line, ``verify`` and the plan of a Spark
read. Each of them must answer or raise an error of txnstore; no key outside of the store is requested; a terminal gets
no control character; and what was accepted is read back as it was written.
"""

from tests.harness.hostile.run import KINDS, Case, Finding, cases, run_case

__all__ = ["KINDS", "Case", "Finding", "cases", "run_case"]
