"""Numbered scenarios of the protocol, on the embedded stores."""
