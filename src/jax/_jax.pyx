# cython: language_level=3, boundscheck=False, wraparound=False, binding=True, embedsignature=False
"""The handler that XLA calls on the CPU: one for all ops.

It shows XLA's buffers, the inputs and then the outputs, as NumPy arrays to a Python function, which
the call's attribute names by a text that says everything (python/fastact/jax/calls.py). What that
runs is what a caller of NumPy arrays runs, checks, call cache and threads included; kernels work
without the interpreter's lock. What it costs: docs/design/jax.md.
"""
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t
cimport numpy as cnp

import numpy as np

cnp.import_array()

cdef extern from "jax/ffi.h" namespace "fastact::xla" nogil:
    cdef struct Error:
        pass

    cdef struct Buffer:
        int dtype
        void* data
        int64_t rank
        int64_t* shape

    cdef struct Buffers:
        int64_t count
        int* kinds
        Buffer** buffers

    cdef struct Text:
        const char* data
        size_t size

    cdef struct Attributes:
        int64_t count
        int* kinds
        void** values

    cdef struct CallFrame:
        int stage
        Buffers inputs
        Buffers outputs
        Attributes attributes

    int kBuffer, kText, kExecute
    bint answer_metadata(CallFrame*)
    Error* error_of(const CallFrame*, const char*)

cdef extern from "numpy/arrayobject.h":
    ctypedef struct PyArray_Descr:
        pass

    object PyArray_NewFromDescr(
        PyTypeObject*, PyArray_Descr* dtype, int, const cnp.npy_intp*, const cnp.npy_intp*, void*, int,
        PyObject*,
    )
    int NPY_ARRAY_CARRAY, NPY_ARRAY_CARRAY_RO

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        pass

# By the numbers of xla::PrimitiveType; what is not there no op takes.
cdef dict dtypes = {
    number: np.dtype(name)
    for number, name in (
        (1, "bool"), (2, "int8"), (3, "int16"), (4, "int32"), (5, "int64"), (6, "uint8"),
        (7, "uint16"), (8, "uint32"), (9, "uint64"), (10, "float16"), (11, "float32"),
        (12, "float64"),
    )
}

cdef dict functions = {}  # of texts
cdef object function_of = None


def prepare(of_text, bfloat16):
    """Tell how a text becomes a function of arrays, and the dtype for bfloat16."""
    global function_of
    function_of = of_text
    dtypes[16] = bfloat16


cdef object array_of(const Buffer* buffer, int flags):
    cdef object dtype = dtypes.get(buffer.dtype)
    if dtype is None:
        raise TypeError(f"fastact.jax: no array for XLA's dtype {buffer.dtype}")
    Py_INCREF(dtype)  # NumPy takes it over
    return PyArray_NewFromDescr(
        <PyTypeObject*>cnp.ndarray, <PyArray_Descr*>dtype, <int>buffer.rank,
        <const cnp.npy_intp*>buffer.shape, NULL, buffer.data, flags, NULL,
    )


cdef void show(list arrays, const Buffers* buffers, int flags) except *:
    cdef int64_t i
    for i in range(buffers.count):
        if buffers.kinds[i] != kBuffer:
            raise TypeError("fastact.jax: XLA gave something else than a buffer")
        arrays.append(array_of(buffers.buffers[i], flags))


cdef object function_for(const CallFrame* frame):
    cdef Text* text
    if frame.attributes.count != 1 or frame.attributes.kinds[0] != kText:
        raise TypeError("fastact.jax: a call has one attribute, a text")
    text = <Text*>frame.attributes.values[0]
    key = text.data[:text.size]
    function = functions.get(key)
    if function is None:
        function = functions[key] = function_of(key)
    return function


cdef Error* run(CallFrame* frame) noexcept with gil:
    """Inputs are read-only, the outputs are to be filled; neither outlives the call."""
    cdef list arrays = []
    try:
        function = function_for(frame)
        show(arrays, &frame.inputs, NPY_ARRAY_CARRAY_RO)
        show(arrays, &frame.outputs, NPY_ARRAY_CARRAY)
        function(arrays)
    except BaseException as error:  # nothing may pass through XLA's own frames
        message = f"{type(error).__name__}: {error}".encode(errors="replace")
        return error_of(frame, message)
    return NULL


cdef Error* handle(CallFrame* frame) noexcept nogil:
    if answer_metadata(frame) or frame.stage != kExecute:
        return NULL
    return run(frame)


def handler():
    """What `jax.ffi.register_ffi_target` takes."""
    return PyCapsule_New(<void*>handle, NULL, NULL)
