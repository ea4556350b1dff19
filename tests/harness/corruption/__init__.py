"""Damage of every kind of object: never a wrong answer in silence; ``python -m tests.harness.corruption``.

Each case damages one or two objects of a store whose content is known, or lays an old backup over it. Then the store
is opened, read, verified and compacted: every answer must be right, or an error of txnstore that names an object, and
``verify`` must find what a reader cannot read. Last, a copy is repaired: the store opens and is sound, or each object
that is missed was named before. See docs/internals/testing.md.
"""

from tests.harness.corruption.run import Case, Finding, cases, run_case

__all__ = ["Case", "Finding", "cases", "run_case"]
