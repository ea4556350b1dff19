"""Tables as engines read them."""
