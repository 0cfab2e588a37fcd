"""Derivatives of gradients and forward mode, of ops whose kernels give neither.

    formulas.py, gates.py  ops as a textbook has them, over any framework's arrays
    graph.py               such a formula as a graph, whose derivatives are graphs again
    second.py              what `backward.backward` and `jvp` are made of, and the bridges

Results and gradients themselves are the op's.
"""
