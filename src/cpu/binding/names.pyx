# The names of what native functions take by number, for the Python layer.

cdef extern from "common/norms/rows.h" namespace "fastact" nogil:
    const int kRowNorms
    const char* const kRowNormNames[1]

cdef extern from "common/second/second.h" namespace "fastact" nogil:
    enum: kSecondKinds
    const char* const kSecondKindNames[1]

ROW_NORMS = names_of(kRowNormNames, kRowNorms)
SECOND_KINDS = names_of(kSecondKindNames, kSecondKinds)
