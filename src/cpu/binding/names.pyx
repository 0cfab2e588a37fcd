# The names of what native functions take by number, for the Python layer.

cdef extern from "common/norms/rows.h" namespace "fastact" nogil:
    const int kRowNorms
    const char* const kRowNormNames[1]

cdef extern from "common/second/second.h" namespace "fastact" nogil:
    enum: kSecondKinds
    const char* const kSecondKindNames[1]

ROW_NORMS = names_of(kRowNormNames, kRowNorms)
SECOND_KINDS = names_of(kSecondKindNames, kSecondKinds)
TERMS = names_of(kTermNames, kTerms)
PAIRS = names_of(kPairNames, kPairs)

# What becomes of m2; the order is OfM2's.
OF_M2 = (
    "nothing", "m2", "variance", "deviation", "mean slope", "variance slope", "deviation slope",
    "total", "m2 or root",
)
