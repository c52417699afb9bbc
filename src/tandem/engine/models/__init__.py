"""Network definitions, and the numbers that describe them."""
