"""The tables of a store, and the catalog that serves them."""
