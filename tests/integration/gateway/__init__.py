"""The gateway, with the clients of others."""
