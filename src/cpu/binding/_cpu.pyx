# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, binding=True, embedsignature=False
"""The CPU backend: one extension module.

Data flows one way. The Python layer checks and allocates. A call of a native function is compared
with the memory that is there (native_call.pyx); the function, which its family lists in C++
(core/native_function.h), prepares an iterator or a plan and runs its partitions on the threads that
`resolve_threads` allows. NumPy arrays and tensors that need no conversion skip the Python layer:
activations of contiguous ones by the compiled checks of the fast path (fast_path.pyx), repeated
calls of all other kinds by the call cache (call_cache.pyx).
"""
# It does not declare itself safe without the interpreter's lock (freethreading_compatible): nobody
# has run its tests on such an interpreter, which therefore takes its lock back at this import.
include "cpu/binding/python.pxi"
include "cpu/core/core.pxi"
include "cpu/binding/parallel.pyx"
include "cpu/binding/threads.pyx"
include "common/binding/array_view.pyx"
include "cpu/binding/dlpack_export.pyx"
include "cpu/binding/fast_path.pyx"
include "cpu/binding/native_call.pyx"
include "cpu/binding/native_loop.pyx"
include "cpu/binding/names.pyx"
include "cpu/binding/call_key.pyx"
include "cpu/binding/call_cache.pyx"
