# The module-wide imports, and what the headers of Python and NumPy declare.
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItem, PyDict_Next
from cpython.float cimport PyFloat_CheckExact
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.number cimport PyNumber_Index
from cpython.object cimport (
    Py_TPFLAGS_HEAPTYPE, Py_TYPE, PyObject, PyObject_GenericSetAttr, PyTypeObject, ternaryfunc
)
from cpython.pycapsule cimport (
    PyCapsule_CheckExact, PyCapsule_GetName, PyCapsule_GetPointer, PyCapsule_IsValid,
    PyCapsule_New, PyCapsule_SetName,
)
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_ITEM
from cpython.type cimport PyType_CheckExact
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_CheckExact
from libc.math cimport INFINITY
from libc.stdint cimport (
    int32_t, int64_t, intptr_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
)
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset, strcmp
from libcpp cimport bool as cpp_bool
from libcpp.vector cimport vector
cimport numpy as cnp

import sys
import warnings

cnp.import_array()

cdef extern from "Python.h":
    bint PyType_HasFeature(PyTypeObject*, unsigned long) noexcept
    Py_ssize_t references "Py_REFCNT"(PyObject*) noexcept

cdef extern from "numpy/arrayscalars.h":
    ctypedef struct PyDoubleScalarObject:
        double obval

cdef extern from "numpy/arrayobject.h":
    enum: NPY_HALF
    object PyArray_Scalar(void*, cnp.dtype, object)
    PyTypeObject PyHalfArrType_Type, PyFloatArrType_Type, PyDoubleArrType_Type
    object PyArray_NewLikeArray(cnp.ndarray, cnp.NPY_ORDER order, PyObject* dtype, int subok)
