# Gated activations: y = f(min(a', limit)) (clamp(b', -limit, limit) + offset), a' = a + bias_a,
# b' = b + bias_b (common/gated/gated.h).

def gated_forward(
    int which, View a, View b, View bias_a, View bias_b, View y, int axis, tuple parameters,
    double limit, double offset, stream
):
    """y OUT, of a IN and b IN; f and its parameters as for `activation_forward`.

    a, b and y have one shape and dtype. bias_a IN, bias_b IN: both or neither, of one dtype, which is
    a's or a wider one, along `axis`, which counts for nothing without them. limit: positive, infinity
    for none. y is a, b or disjoint from both, and disjoint from the biases. stream: of a GPU; unused
    here.
    """
    raise NotImplementedError


def gated_workspace(View a, int axis):
    """Bytes of scratch with which `gated_backward` can divide its work among many threads.

    Where it computes dbias_a and dbias_b; else it needs none.
    """
    raise NotImplementedError


def gated_backward(
    int which, View dy, View a, View b, View bias_a, View bias_b, View da, View db, View dbias_a,
    View dbias_b, int axis, tuple parameters, double limit, double offset, bint accumulate,
    View workspace, stream
):
    """da OUT, db OUT, and dbias_a OUT, dbias_b OUT: the sums of da and db over all axes but `axis`.

    Of dy IN, a IN, b IN, bias_a IN and bias_b IN, as for `gated_forward`; accumulate: all are IN/OUT,
    added to. Each may be None and is not computed then, but for one; dbias_a and dbias_b are both
    given or neither, with the biases alone, and of their dtype. What they sum is not rounded to a's
    dtype. da and db are each dy, a, b or disjoint from all three, and disjoint from each other and
    from the biases and their gradients. workspace: SCRATCH of `gated_workspace` bytes, or None.
    """
    raise NotImplementedError
