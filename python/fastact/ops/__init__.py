"""The ops: one module a family; `op` holds what all of them share."""
