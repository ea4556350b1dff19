"""The coordinator: takes commands to the chains that decide them, and transactions through all their chains."""
