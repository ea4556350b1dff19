"""What an operator asks for: transactions, producers, groups."""
