# Running a block function over whole arrays: what every family's native functions call.

cdef enum:
    MAX_PARAMETERS = 4


cdef void run(
    Block block, const double* parameters, int dtype, bint reads_output, int operands,
    const Operand* arrays, int64_t size
) noexcept:
    """Run a block function over arrays of one shape. All of them are known to be right."""
    cdef Loop loop
    if size == 0:
        return
    prepare(&loop, block, parameters, dtype, reads_output, operands, arrays)
    with nogil:
        run_loop(&loop)


cdef void unpack(tuple values, double* parameters) except *:
    cdef int i
    for i in range(len(values)):
        parameters[i] = values[i]
