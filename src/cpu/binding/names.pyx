# Texts of C, and the names of what native functions take by number.

cdef extern from "cpu/binding/names.h" namespace "fastact" nogil:
    cppclass NameList:
        const char* of
        const char* const* names
        int count
    const NameList kNameLists[1]
    const int kNameListCount

cdef extern from "cpu/gates/gates.h" namespace "fastact" nogil:
    const double kGateUlps[2]
    const int kGateKinds
    bint are_gate_sums_apart "fastact::gate_sums_apart" (int, int, const ArrayArgument&) noexcept


cdef int refuse(str what) except -1:
    raise ValueError(f"fastact._cpu: {what}")


cdef str text(const char* name):
    """Give a text of C, or None for NULL."""
    return None if name is NULL else (<bytes>name).decode()


cdef tuple names_of(const char* const* names, int count):
    cdef list found = []
    cdef int i
    for i in range(count):
        found.append(text(names[i]))
    return tuple(found)


cdef int name_list
for name_list in range(kNameListCount):
    globals()[text(kNameLists[name_list].of)] = names_of(
        kNameLists[name_list].names, kNameLists[name_list].count
    )

# Statistics made of m2, in the order of OfM2.
OF_M2 = (
    "nothing", "m2", "variance", "deviation", "mean slope", "variance slope", "deviation slope",
    "total", "m2 or root",
)

GATE_ULPS = (kGateUlps[0], kGateUlps[1])


def gates_sums_apart(int kind, View state not None):
    """Whether the biases' gradients are better the `sum` of the others, once those are stored.

    On a device they never are.
    """
    if not 0 <= kind < kGateKinds:
        refuse(f"kind must be from 0 to {kGateKinds - 1}, got {kind}")
    if state.array.ndim < 1 or state.array.device_type != kDLCPU:
        return False
    return are_gate_sums_apart(kind, state.array.dtype, state.array)
