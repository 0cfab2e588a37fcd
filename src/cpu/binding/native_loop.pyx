# Calls of native functions for part after part of their arrays, where parts lie evenly.
#
# They are built for the first two parts alone (native_call.pyx), and for the first one once more as
# another thread would run it, with scratch memory of its own. The distances say where all others
# are, so that a part costs no more than its native functions.
#
# Where these take no lock of the interpreter's, each thread runs all functions of its own parts, in
# one parallel region. Else each function, of one part after the other, has threads.

cdef enum:
    MAX_LOOPED = 32      # arrays of all the calls
    LOOPED_WORDS = 1024  # of 8 bytes, of all the calls


cdef struct LoopedCalls:
    int64_t count                           # of parts
    int calls, arrays
    int64_t bytes                           # of all calls' blocks, one after the other
    const KernelTable* kernels              # of a run,
    char* memory                            # and its blocks
    RunPart run[MAX_LOOPED]
    int64_t begin[MAX_LOOPED]               # where each call's block begins in them,
    int64_t place[MAX_LOOPED]               # and where each array's address stands
    int64_t step[MAX_LOOPED]                # from part to part, in bytes
    int64_t thread_step[MAX_LOOPED]


cdef void move(
    const LoopedCalls* loop, char* memory, int64_t parts, int64_t threads
) noexcept nogil:
    """Move the addresses on by so many parts, and to another thread's memory."""
    cdef int k
    for k in range(loop.arrays):
        (<char**>(memory + loop.place[k]))[0] += (
            loop.step[k] * parts + loop.thread_step[k] * threads
        )


cdef void run_looped_partition(
    const LoopedCalls* loop, int64_t index, int64_t partitions
) noexcept nogil:
    """A thread's share of the parts, by copies of the calls."""
    cdef double[LOOPED_WORDS] room
    cdef char* own = <char*>room
    cdef int64_t first = loop.count * index // partitions
    cdef int64_t end = loop.count * (index + 1) // partitions, _part
    cdef int k
    for k in range(loop.arrays):
        if max(loop.step[k], -loop.step[k]) * loop.count >= kFarElements:
            (&computes_parts())[0] = True
    memcpy(own, loop.memory, loop.bytes)
    move(loop, own, first, index)
    for _part in range(first, end):
        for k in range(loop.calls):
            loop.run[k](own + loop.begin[k] + sizeof(Block), loop.kernels)
        move(loop, own, 1, 0)
    (&computes_parts())[0] = False


cdef class NativeLoop:
    """The calls of the first part, which are run for every part."""

    cdef list calls, workspaces  # a recorded loop has no workspaces of its own
    cdef int threads  # at most, as many as have scratch memory
    cdef bint is_free
    cdef LoopedCalls looped

    cdef int add(self, NativeCall call, NativeCall second, NativeCall other) except -1:
        """Note the next call, where in it addresses stand, and their distances to other parts."""
        cdef LoopedCalls* looped = &self.looped
        cdef int k, n = looped.arrays
        if call is None or call.block is NULL or looped.calls == MAX_LOOPED:
            refuse(f"native_loop: native_call makes its calls, at most {MAX_LOOPED}")
        for part in (second, other):
            if (
                part is None or (<NativeCall>part).function is not call.function
                or (<NativeCall>part).remote is not call.remote
            ):
                refuse("native_loop: all parts must have calls of the same functions")
        looped.begin[looped.calls] = looped.bytes
        looped.run[looped.calls] = call.function.native.run_part
        self.is_free &= call.remote is NULL and call.function.native.run_part is not NULL
        for k, (a, b, c) in enumerate(zip(call.views, second.views, other.views)):
            if not (a is None) == (b is None) == (c is None):
                refuse("native_loop: all parts must have the same arrays")
            if a is None:
                continue
            if n == MAX_LOOPED:
                refuse(f"native_loop: calls must have at most {MAX_LOOPED} arrays")
            looped.place[n] = looped.bytes + call.address_of(k)
            looped.step[n], looped.thread_step[n] = step_between(a, b), step_between(a, c)
            check_reach(a, looped.step[n], looped.count, looped.thread_step[n], self.threads)
            n += 1
        looped.bytes += call.bytes
        looped.calls, looped.arrays = looped.calls + 1, n

    cdef int go(self, char* memory, void* stream) except -1:
        """Run it by these copies of the calls' blocks, whose addresses move."""
        cdef LoopedCalls run = self.looped
        cdef int64_t _part
        cdef int k
        run.kernels, run.memory = table, memory
        if self.is_free:
            with nogil:
                run_partitions(min(self.threads, get_thread_limit()), run_looped_partition, &run)
            return 0
        for _part in range(run.count):
            for k in range(run.calls):
                (<NativeCall>self.calls[k]).go(<Block*>(memory + run.begin[k]), stream)
            move(&run, memory, 1, 0)

    def run(self, intptr_t stream):
        """stream: of a GPU, else 0."""
        cdef NativeCall call
        if self.workspaces is None:
            refuse("NativeLoop: native_loop makes one, which runs until a plan has taken it over")
        blocks = bytearray()
        for call, workspace in zip(self.calls, self.workspaces):
            call.check_made()
            call.take_workspace(workspace)
            blocks += call.copied_block()
        self.go(blocks, <void*>stream)


cdef object step_between(View first, View second):
    """In bytes. Memory that calls made for themselves serves all parts: the first's."""
    if first.shape != second.shape or first.strides != second.strides:
        refuse("native_loop: all parts must be alike")
    if whole_of(first) is not whole_of(second):
        return 0
    return second.array.data - first.array.data


cdef int check_reach(View view, step, int64_t count, thread_step, int64_t threads) except -1:
    """Check that all parts lie within their array, for all threads."""
    low, high = view.reach
    least, most = whole_of(view).reach
    for move, times in ((step, count), (thread_step, threads)):
        low += min(0, move * (times - 1))
        high += max(0, move * (times - 1))
    if low < least or high > most:
        refuse("native_loop: all parts must lie within their arrays")


def native_loop(
    list first not None, list second not None, list other not None, int64_t count, int threads
):
    """The calls of `count` parts, by the first two parts: (call, its workspace).

    other: of the first part, by the second of so many threads; without one, `first`.
    """
    cdef NativeLoop loop = NativeLoop.__new__(NativeLoop)
    if count < 2 or threads < 1 or not 0 < len(first) == len(second) == len(other):
        refuse("native_loop: there must be two parts and a thread, with as many calls each")
    loop.threads, loop.looped.count, loop.is_free = threads, count, True
    loop.calls, loop.workspaces = map(list, zip(*first))
    for (a, _), (b, _), (c, _) in zip(first, second, other):
        loop.add(a, b, c)
    loop.is_free &= loop.looped.bytes <= <int64_t>sizeof(double) * LOOPED_WORDS
    return loop
