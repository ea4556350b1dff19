"""The parts of the gateway."""
