"""Commands on their way to the chains that decide them, and transactions through all chains that they touch."""
