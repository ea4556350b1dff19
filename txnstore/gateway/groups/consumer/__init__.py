"""Groups of KIP-848, to which the chain assigns."""
