"""Vacuum: deletes what no reader needs, after it was announced and a grace period has passed."""
