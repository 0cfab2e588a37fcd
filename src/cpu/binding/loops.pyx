# Runs a kernel over whole arrays: what the native functions of every family call.

cdef enum:
    MAX_PARAMETERS = 4
    MOST_ARRAYS = 6  # of an element-wise call


cdef void run(
    ElementwiseKernel kernel, const double* parameters, int dtype, bint reads_output, int operands,
    const Operand* arrays, int64_t size
) noexcept:
    """Run a kernel, or copy (null), over arrays of one shape, which have been checked."""
    cdef TensorIterator iterator
    if size == 0:
        return
    prepare(&iterator, kernel, parameters, dtype, reads_output, operands, arrays)
    with nogil:
        run_iterator(&iterator)


cdef void run_call(
    ElementwiseKernel kernel, const double* parameters, bint reads_output, int count,
    const ArrayArgument* given
) noexcept:
    with nogil:
        run_elementwise(kernel, parameters, reads_output, count, given)


cdef void unpack(tuple values, double* parameters) except *:
    """parameters OUT (MAX_PARAMETERS): those that are not given are 0."""
    cdef int i
    if values is None or len(values) > MAX_PARAMETERS:
        refuse(f"parameters must be a tuple of at most {MAX_PARAMETERS}, got {values}")
    for i in range(len(values)):
        parameters[i] = values[i]
    for i in range(<int>len(values), MAX_PARAMETERS):
        parameters[i] = 0
