"""The ops, by family: signatures in one module, the op object in another, `op` for all of them."""
