"""The torture run: real processes on one store, killed and paused at random, and the checker over what they saw.

``python -m tests.harness.torture`` runs it, as does :func:`tests.harness.torture.run.torture`;
``docs/testing.md`` says what it does.
"""
