"""The doctor: looks at a store, its storage and its debt, and prints the commands to run."""
