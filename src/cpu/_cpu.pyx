# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, binding=True, embedsignature=False
"""The CPU backend: one extension module, one file a family.

Data flows one way: the Python layer checks and allocates, the functions here take `View`s, compare
what they take from them with the memory that is there (checks.pyx), build a loop (iterate.h) and run
its blocks on the threads that `resolve_threads` allows. NumPy arrays and tensors that need no conversion skip the Python layer:
activations of contiguous ones by the compiled checks of the fast path (fast_path.pyx), repeated
calls of all other kinds by the call cache (call_cache.pyx).
"""
# It does not declare itself safe without the interpreter's lock (freethreading_compatible): nobody
# has run its tests on such an interpreter, which therefore takes its lock back at this import.
include "native.pxi"
include "threads.pyx"
include "arrays.pyx"
include "memory.pyx"
include "checks.pyx"
include "loops.pyx"
include "fast_path.pyx"
include "activations.pyx"
include "reductions.pyx"
include "bias.pyx"
include "moments.pyx"
include "norms.pyx"
include "batch_norm.pyx"
include "gates.pyx"
include "call_key.pyx"
include "call_cache.pyx"
include "probes.pyx"
