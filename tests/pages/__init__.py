"""Generators of the pages of ``docs/`` that come from code and tests: ``make docs`` writes, a unit test compares."""
