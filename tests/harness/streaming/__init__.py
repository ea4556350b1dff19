"""Kills streaming pipelines of Spark at random moments, and checks that every record arrives exactly once.

A pipeline is a process of its own, with a JVM and Python processes. ``python -m tests.harness.streaming --kills 50``
kills all of it, or only the JVM, or only Python processes, or the S3 server, starts it again until it is done,
sometimes without its checkpoint, and compares the records.
"""
