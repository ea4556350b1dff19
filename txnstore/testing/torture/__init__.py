"""The torture run: real processes on one store, killed and paused at random, and the checker over what they saw.

``python -m txnstore.testing.torture`` runs it, as does :func:`txnstore.testing.torture.run.torture`;
``docs/testing.md`` says what it does.
"""
