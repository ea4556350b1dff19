"""One module a module: the code in the small."""
