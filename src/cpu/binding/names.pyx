# Texts of C, and the names of what native functions take by number.

cdef extern from "common/bias/channel_functions.h" namespace "fastact" nogil:
    const int kChannelFunctions
    const char* const kChannelFunctionNames[1]

cdef extern from "cpu/gates/gates.h" namespace "fastact" nogil:
    const double kGateUlps[2]
    const int kGateKinds
    const char* const kGateKindNames[1]
    bint are_gate_sums_apart "fastact::gate_sums_apart" (int, int, const ArrayArgument&) noexcept

cdef extern from "common/softmax/call.h" namespace "fastact" nogil:
    enum: kSoftmaxKinds
    enum: kReductions
    const char* const kSoftmaxKindNames[1]
    const char* const kReductionNames[1]

cdef extern from "common/norms/rows.h" namespace "fastact" nogil:
    const int kRowNorms
    const char* const kRowNormNames[1]

cdef extern from "common/second/second.h" namespace "fastact" nogil:
    enum: kSecondKinds
    const char* const kSecondKindNames[1]


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


ROW_NORMS = names_of(kRowNormNames, kRowNorms)
SECOND_KINDS = names_of(kSecondKindNames, kSecondKinds)
TERMS = names_of(kTermNames, kTerms)
PAIRS = names_of(kPairNames, kPairs)

# Statistics made of m2, in the order of OfM2.
OF_M2 = (
    "nothing", "m2", "variance", "deviation", "mean slope", "variance slope", "deviation slope",
    "total", "m2 or root",
)

ACTIVATIONS = names_of(kActivationNames, kActivations)
# Backward of these is given y in the place of x.
SAVE_VALUE = frozenset([ACTIVATIONS[i] for i in range(kActivations) if kActivationSavesValue[i]])
# Functions of x and of its channel's parameter; kernels count them from the last activation on.
CHANNEL_FUNCTIONS = names_of(kChannelFunctionNames, kChannelFunctions)
GATE_KINDS = names_of(kGateKindNames, kGateKinds)
GATE_ULPS = (kGateUlps[0], kGateUlps[1])
SOFTMAX_KINDS = names_of(kSoftmaxKindNames, kSoftmaxKinds)
REDUCTIONS = names_of(kReductionNames, kReductions)


def gates_sums_apart(int kind, View state not None):
    """Whether the biases' gradients are better the `sum` of the others, once those are stored.

    On a device they never are.
    """
    if not 0 <= kind < kGateKinds:
        refuse(f"kind must be from 0 to {kGateKinds - 1}, got {kind}")
    if state.array.ndim < 1 or state.array.device_type != kDLCPU:
        return False
    return are_gate_sums_apart(kind, state.array.dtype, state.array)
