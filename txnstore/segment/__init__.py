"""Segments: Arrow tables on their way into immutable objects and back."""
