# cython: language_level=3, boundscheck=False, wraparound=False, binding=True, embedsignature=False
"""The handler that XLA calls: one for all ops, on the CPU and, with a stream, on a GPU.

It shows XLA's buffers, the inputs and then the outputs, as NumPy arrays to a Python function, which
the call's attribute names by a text that says everything (python/fastact/jax/calls.py). That
function runs what a caller of NumPy arrays runs, checks, call cache and threads included; kernels
work without the interpreter's lock. What it costs: docs/design/jax.md.

On a GPU these arrays describe memory of the device, which nobody on this side may touch: the
function makes arrays of the device of them (python/fastact/jax/device.py). Nothing here needs CUDA
to build.
"""
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uintptr_t
cimport numpy as cnp

import atexit
import os

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
    Error* stream_of(const CallFrame*, void** stream)
    Error* allocate(const CallFrame*, size_t size, void** data)
    Error* release(const CallFrame*, size_t size, void* data)

    cdef cppclass Calls:
        bint begin()
        void end()
        void close()
        void forget()

cdef extern from "numpy/arrayobject.h":
    ctypedef struct PyArray_Descr:
        pass

    object PyArray_NewFromDescr(
        PyTypeObject*, PyArray_Descr* dtype, int, const cnp.npy_intp*, const cnp.npy_intp*, void*,
        int, PyObject*,
    )
    int NPY_ARRAY_CARRAY, NPY_ARRAY_CARRAY_RO

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        pass

cdef extern from *:
    """
    // Python would make a state for a thread of XLA's at each call, and destroy it afterwards: some
    // 10 us, in which all that a thread keeps is cold. From its first call on a thread has one.
    static void keep_thread_state() {
      static thread_local bool is_kept = false;
      if (!is_kept) PyGILState_Ensure();  // which nothing releases
      is_kept = true;
    }
    """
    void keep_thread_state()

cdef enum:
    MAX_AXES = 64  # NumPy's limit

# By the numbers of xla::PrimitiveType; no op takes other types. `prepare` adds what NumPy lacks.
cdef dict dtypes = {
    number: np.dtype(name)
    for number, name in (
        (1, "bool"), (2, "int8"), (3, "int16"), (4, "int32"), (5, "int64"), (6, "uint8"),
        (7, "uint16"), (8, "uint32"), (9, "uint64"), (10, "float16"), (11, "float32"),
        (12, "float64"),
    )
}

cdef Calls calls


def _close_calls():
    with nogil:
        calls.close()


def _forget_calls():
    calls.forget()


atexit.register(_close_calls)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_calls)

cdef const char* ENDING = "RuntimeError: fastact.jax: the interpreter is ending"

cdef dict functions = {}  # of texts
cdef dict device_functions = {}
cdef object function_of = None
cdef object device_function_of = None


def prepare(of_text, of_text_on_device, more):
    """Tell how a text becomes a function of arrays, and dtypes of more numbers.

    On a device it is a function of arrays, the stream and the DeviceMemory of the call.
    """
    global function_of, device_function_of
    function_of, device_function_of = of_text, of_text_on_device
    dtypes.update(more)


cdef object array_at(void* data, object dtype, int rank, const int64_t* shape, int flags):
    Py_INCREF(dtype)  # NumPy takes it over
    return PyArray_NewFromDescr(
        <PyTypeObject*>cnp.ndarray, <PyArray_Descr*>dtype, rank, <const cnp.npy_intp*>shape, NULL,
        data, flags, NULL,
    )


cdef object array_of(const Buffer* buffer, int flags):
    cdef object dtype = dtypes.get(buffer.dtype)
    if dtype is None:
        raise TypeError(f"fastact.jax: no array for XLA's dtype {buffer.dtype}")
    return array_at(buffer.data, dtype, <int>buffer.rank, buffer.shape, flags)


cdef void show(list arrays, const Buffers* buffers, int flags) except *:
    cdef int64_t i
    for i in range(buffers.count):
        if buffers.kinds[i] != kBuffer:
            raise TypeError("fastact.jax: XLA gave something else than a buffer")
        arrays.append(array_of(buffers.buffers[i], flags))


cdef object function_for(const CallFrame* frame, dict known, object of_text):
    cdef Text* text
    if frame.attributes.count != 1 or frame.attributes.kinds[0] != kText:
        raise TypeError("fastact.jax: a call has one attribute, a text")
    text = <Text*>frame.attributes.values[0]
    key = text.data[:text.size]
    function = known.get(key)
    if function is None:
        function = known[key] = of_text(key)
    return function


cdef Error* failure(const CallFrame* frame, object error) noexcept:
    message = f"{type(error).__name__}: {error}".encode(errors="replace")
    return error_of(frame, message)


cdef Error* run(CallFrame* frame) noexcept with gil:
    """Inputs are read-only, the outputs are to be filled; neither outlives the call."""
    cdef list arrays = []
    keep_thread_state()
    try:
        function = function_for(frame, functions, function_of)
        show(arrays, &frame.inputs, NPY_ARRAY_CARRAY_RO)
        show(arrays, &frame.outputs, NPY_ARRAY_CARRAY)
        function(arrays)
    except BaseException as error:  # nothing may pass through XLA's own frames
        return failure(frame, error)
    return NULL


cdef Error* handle(CallFrame* frame) noexcept nogil:
    cdef Error* error
    if answer_metadata(frame) or frame.stage != kExecute:
        return NULL
    if not calls.begin():
        return error_of(frame, ENDING)
    error = run(frame)
    calls.end()
    return error


def handler():
    """Make what `jax.ffi.register_ffi_target` takes, for the CPU."""
    return PyCapsule_New(<void*>handle, NULL, NULL)


cdef class DeviceMemory:
    """Memory of XLA's allocator on the device of a call, for as long as that takes.

    It goes back when the work has been queued, as XLA's own handlers give theirs back: the
    allocator gives it to nobody but later work of the same stream.
    """

    cdef const CallFrame* frame
    cdef list blocks  # address, size
    cdef Error* error  # XLA's own, where it has no more memory

    def empty(self, tuple shape not None, dtype):
        """An array of NumPy's that describes new memory of the device."""
        cdef object described = np.dtype(dtype)
        cdef int64_t[MAX_AXES] lengths
        cdef int64_t size = described.itemsize
        cdef void* data = NULL
        cdef int i
        if self.frame is NULL:
            raise RuntimeError("fastact.jax: the call that had this memory is over")
        if len(shape) > MAX_AXES:
            raise ValueError(f"fastact.jax: arrays have at most {MAX_AXES} axes, got {len(shape)}")
        for i in range(len(shape)):
            lengths[i] = shape[i]
            size *= lengths[i]
        if size and self.error is NULL:
            self.error = allocate(self.frame, size, &data)
            if self.error is NULL:
                self.blocks.append((<uintptr_t>data, size))
        if self.error is not NULL:
            raise MemoryError("fastact.jax: XLA gave no memory")
        return array_at(data, described, <int>len(shape), lengths, NPY_ARRAY_CARRAY)

    cdef void give_back(self) noexcept:
        """All of it; what fails first is the call's error."""
        cdef Error* error
        for address, size in self.blocks:
            error = release(self.frame, size, <void*><uintptr_t>address)
            if self.error is NULL:
                self.error = error
        self.blocks = []
        self.frame = NULL


cdef Error* run_on_device(CallFrame* frame, void* stream) noexcept with gil:
    """Run a call as `run` does, with the work queued on a stream."""
    cdef list arrays = []
    cdef DeviceMemory memory = DeviceMemory.__new__(DeviceMemory)
    cdef Error* failed = NULL
    keep_thread_state()
    memory.frame = frame
    memory.blocks = []
    try:
        function = function_for(frame, device_functions, device_function_of)
        show(arrays, &frame.inputs, NPY_ARRAY_CARRAY_RO)
        show(arrays, &frame.outputs, NPY_ARRAY_CARRAY)
        function(arrays, <uintptr_t>stream, memory)
    except BaseException as error:
        if memory.error is NULL:
            failed = failure(frame, error)
    memory.give_back()
    return failed if failed is not NULL else memory.error


cdef Error* handle_on_device(CallFrame* frame) noexcept nogil:
    cdef void* stream = NULL
    cdef Error* error
    if answer_metadata(frame) or frame.stage != kExecute:
        return NULL
    error = stream_of(frame, &stream)
    if error is not NULL:
        return error
    if not calls.begin():
        return error_of(frame, ENDING)
    error = run_on_device(frame, stream)
    calls.end()
    return error


def device_handler():
    """Make what `jax.ffi.register_ffi_target` takes, for a GPU."""
    return PyCapsule_New(<void*>handle_on_device, NULL, NULL)
