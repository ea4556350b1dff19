"""Damage of every kind of object: never a wrong answer in silence; ``python -m tests.harness.corruption``.

Each case damages one object of a store whose content is known: a flipped bit, a truncation, a deletion, a copy of it
under another key, another object of its kind in its place, or other content with a valid checksum. Then the store is
opened, scanned, queried, consumed, verified, compacted, and read again. Every answer must be right, or an error of
txnstore that names an object; ``verify`` must find what a reader cannot read.
"""

from tests.harness.corruption.run import Case, Finding, cases, run_case

__all__ = ["Case", "Finding", "cases", "run_case"]
