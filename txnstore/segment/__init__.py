"""Segments: encoding Arrow tables as immutable objects, and decoding them."""
