"""The torture run: real processes on one store, killed and paused at random, with a check of their histories.

``python -m tests.harness.torture`` runs it, as does :func:`tests.harness.torture.run.torture`;
``docs/internals/testing.md`` describes it.
"""
