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
    const KernelTable* kernels              # of a run, and
    char* block[MAX_LOOPED]                 # each call's block in it
    RunPart run[MAX_LOOPED]
    int64_t bytes[MAX_LOOPED]               # of a call's block
    int of_call[MAX_LOOPED]                 # whose array it is,
    int64_t place[MAX_LOOPED]               # and where its address stands in the block
    int64_t step[MAX_LOOPED]                # from part to part, in bytes
    int64_t thread_step[MAX_LOOPED]


cdef void move(
    const LoopedCalls* loop, char** block, int64_t parts, int64_t threads
) noexcept nogil:
    """Move the addresses on by so many parts, and to another thread's memory."""
    cdef int k
    for k in range(loop.arrays):
        (<char**>(block[loop.of_call[k]] + loop.place[k]))[0] += (
            loop.step[k] * parts + loop.thread_step[k] * threads
        )


cdef void run_looped_partition(
    const LoopedCalls* loop, int64_t index, int64_t partitions
) noexcept nogil:
    """A thread's share of the parts, by copies of the calls."""
    cdef double[LOOPED_WORDS] room
    cdef char* own[MAX_LOOPED]
    cdef char* at = <char*>room
    cdef int64_t first = loop.count * index // partitions
    cdef int64_t end = loop.count * (index + 1) // partitions, _part
    cdef int k
    for k in range(loop.arrays):
        if max(loop.step[k], -loop.step[k]) * loop.count >= kFarElements:
            (&computes_parts())[0] = True
    for k in range(loop.calls):
        own[k] = at
        memcpy(at, loop.block[k], loop.bytes[k])
        at += loop.bytes[k]
    move(loop, own, first, index)
    for _part in range(first, end):
        for k in range(loop.calls):
            loop.run[k](own[k] + sizeof(Block), loop.kernels)
        move(loop, own, 1, 0)
    (&computes_parts())[0] = False


cdef class NativeLoop:
    """The calls of the first part, which are run for every part."""

    cdef list calls, workspaces
    cdef int threads  # at most, as many as have scratch memory
    cdef bint is_free
    cdef LoopedCalls looped

    cdef int take(self, list calls) except -1:
        """Note the calls, and where in them addresses stand."""
        cdef int64_t bytes = 0
        cdef NativeCall call
        cdef int i = 0, k, n = 0
        self.calls, self.is_free = calls, True
        for call in calls:
            if call is None or call.block is NULL or i == MAX_LOOPED:
                refuse(f"native_loop: native_call makes its calls, at most {MAX_LOOPED}")
            self.looped.bytes[i] = call.bytes
            self.looped.run[i] = call.function.native.run_part
            self.is_free &= call.remote is NULL and call.function.native.run_part is not NULL
            bytes += call.bytes
            for k in range(len(call.views)):
                if call.views[k] is None:
                    continue
                if n == MAX_LOOPED:
                    refuse(f"native_loop: calls must have at most {MAX_LOOPED} arrays")
                self.looped.of_call[n], self.looped.place[n] = i, call.address_of(k)
                n += 1
            i += 1
        self.is_free &= bytes <= <int64_t>sizeof(double) * LOOPED_WORDS
        self.looped.calls, self.looped.arrays = i, n
        return 0

    cdef NativeLoop of_calls(self, list calls):
        """Make this loop anew of copies of its calls."""
        cdef NativeLoop other = NativeLoop.__new__(NativeLoop)
        other.workspaces, other.threads, other.looped = self.workspaces, self.threads, self.looped
        other.take(calls)
        return other

    cdef int go(self, char* memory, void* stream) except -1:
        """Run it by the calls' own blocks, or by their copies in a recorded call's memory."""
        cdef NativeCall call
        cdef LoopedCalls run = self.looped
        cdef int64_t _part
        cdef int k = 0
        for call in self.calls:
            run.block[k] = <char*>call.block if memory is NULL else memory + call.begin
            k += 1
        run.kernels = table
        if self.is_free:
            with nogil:
                run_partitions(min(self.threads, thread_limit()), run_looped_partition, &run)
            return 0
        for _part in range(run.count):
            for k in range(run.calls):
                call = self.calls[k]
                call.go(<Block*>run.block[k], stream)
            move(&run, run.block, 1, 0)
        move(&run, run.block, -run.count, 0)
        return 0

    def run(self, intptr_t stream):
        """stream: of a GPU, else 0."""
        cdef int k
        if self.calls is None:
            refuse("NativeLoop: native_loop makes one")
        for k in range(len(self.calls)):
            (<NativeCall>self.calls[k]).take_workspace(self.workspaces[k])
        self.go(NULL, <void*>stream)


cdef View whole_of(View view):
    """The array that a view is of."""
    while type(view.owner) is View:
        view = view.owner
    return view


cdef object step_between(View first, View second):
    """In bytes. Memory that calls made for themselves serves all parts: the first's."""
    if first.shape != second.shape or first.strides != second.strides:
        refuse("native_loop: all parts must be alike")
    if whole_of(first) is not whole_of(second):
        return 0
    return second.operand.data - first.operand.data


cdef int check_reach(View view, step, int64_t count, thread_step, int64_t threads) except -1:
    """Check that all parts lie within their array, for all threads."""
    low, high = view.reach
    least, most = whole_of(view).reach
    for move, times in ((step, count), (thread_step, threads)):
        low += min(0, move * (times - 1))
        high += max(0, move * (times - 1))
    if low < least or high > most:
        refuse("native_loop: all parts must lie within their arrays")
    return 0


def native_loop(
    list first not None, list second not None, list other not None, int64_t count, int threads
):
    """The calls of `count` parts, by the first two parts: (call, its workspace).

    other: of the first part, by the second of so many threads; without one, `first`.
    """
    cdef NativeLoop loop = NativeLoop.__new__(NativeLoop)
    cdef NativeCall a, b, c
    cdef list calls = []
    cdef int i, k, n = 0
    if count < 2 or threads < 1 or not len(first) == len(second) == len(other):
        refuse("native_loop: there must be two parts and a thread, with as many calls each")
    loop.workspaces, loop.threads, loop.looped.count = [], threads, count
    for a, workspace in first:
        calls.append(a)
        loop.workspaces.append(workspace)
    loop.take(calls)
    for i in range(len(first)):
        a, b, c = first[i][0], second[i][0], other[i][0]
        for call in (b, c):
            if (
                call is None or (<NativeCall>call).function is not a.function
                or (<NativeCall>call).remote is not a.remote
            ):
                refuse("native_loop: all parts must have calls of the same functions")
        for k in range(len(a.views)):
            if not (a.views[k] is None) == (b.views[k] is None) == (c.views[k] is None):
                refuse("native_loop: all parts must have the same arrays")
            if a.views[k] is not None:
                step = step_between(a.views[k], b.views[k])
                thread_step = step_between(a.views[k], c.views[k])
                check_reach(a.views[k], step, count, thread_step, threads)
                loop.looped.step[n], loop.looped.thread_step[n] = step, thread_step
                n += 1
    return loop
