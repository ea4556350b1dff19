"""Imported once by the server that forks the processes of a benchmark: imports what a commit needs."""

from benchmarks.beginning import VALUES, commit_in_memory

commit_in_memory(VALUES["small"])
