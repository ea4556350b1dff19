"""Damaged and hostile stores: every reader answers, or says what is wrong; ``python -m tests.harness corruption``.

A case either damages one or two objects of a store whose content is known, or lays an old backup over it; or it puts
something into a store that its writers would not: an entry or a checkpoint whose checksums fit but whose events do not,
a name with path tricks or control characters, a schema that is huge, deep or outside the supported types. Then the
store is read, verified and compacted. Every answer is right, or an error of txnstore that names an object; no key
outside of the store is requested. A damaged store is also repaired: it opens and is sound, or each object that is
missed was named before. See docs/internals/testing.md.
"""

from tests.harness.corruption.run import EFFECTS, KINDS, Case, Finding, cases, run_case

__all__ = ["EFFECTS", "KINDS", "Case", "Finding", "cases", "run_case"]
