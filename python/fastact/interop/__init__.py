"""Arrays of any framework: what they are, where they live, and whether an op can take them."""
