"""Stores of format version 2, features of later releases, and what this release makes of them."""
