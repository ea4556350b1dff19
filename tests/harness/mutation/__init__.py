"""Random mutants of the product, which the unit and protocol tests have to notice."""
