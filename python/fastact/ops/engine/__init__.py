"""What runs the ops: their objects, by family, and what all of them share."""
