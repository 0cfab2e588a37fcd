"""The objects of ops, by family, and what runs all of them."""
