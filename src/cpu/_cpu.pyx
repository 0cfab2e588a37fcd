# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, binding=True, embedsignature=False, freethreading_compatible=True
"""The CPU backend: one extension module, one file a family.

Data flows one way: the Python layer checks and allocates, the functions here take `View`s that
are known to be right, build a loop (iterate.h) and run its blocks on the threads that
`resolve_threads` allows. NumPy arrays and tensors that need no conversion take short cuts:
contiguous ones through the compiled checks of `FastActivation` (shortcut.pyx), those of all other
ops by the plans of their doors (doors.pyx).
"""
include "native.pxi"
include "threads.pyx"
include "arrays.pyx"
include "memory.pyx"
include "loops.pyx"
include "shortcut.pyx"
include "activations.pyx"
include "reductions.pyx"
include "bias.pyx"
include "moments.pyx"
include "norms.pyx"
include "batch_norm.pyx"
include "gates.pyx"
include "descriptions.pyx"
include "doors.pyx"
include "probes.pyx"
