"""One module per noun or verb of the command line; each command wraps one call of the library."""
