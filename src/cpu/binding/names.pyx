# The names of what native functions take by number, for the Python layer.

cdef extern from "common/second/second.h" namespace "fastact" nogil:
    enum: kSecondKinds
    const char* const kSecondKindNames[1]

SECOND_KINDS = names_of(kSecondKindNames, kSecondKinds)
