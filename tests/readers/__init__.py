"""Do other engines read the tables of random histories row by row as ``scan`` does? See docs/internals/testing.md."""
