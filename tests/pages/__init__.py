"""The pages of ``docs/`` that are made from code and tests: ``make docs`` writes them, a unit test compares them."""
