"""Administration of transactions, producers and groups."""
