"""What docstrings of several families say in the same words: it stands here once."""

from textwrap import fill, indent

WIDTH = 98

#: What every op takes as its data.
ARRAY = """\
Any shape and strides; float16, bfloat16, float32 or float64, a NumPy array or an array of any
framework with DLPack."""

STREAM = """\
stream : optional
    For arrays on a GPU: the stream to work on, instead of their framework's current one."""

#: Of ops with an activation behind them, and its parameters.
ACTIVATION = """\
activation : str or op
    The name of an activation of `fastact.ops`, or the op itself; "identity" for none."""
OWN = """\
... : float
    The activation's own parameters, by keyword."""

#: What most ops return.
LIKE_X = """\
y : array
    `out` where it was given, else a new array of x's framework, in x's layout."""

CHO = """\
K. Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder for Statistical Machine
Translation", https://arxiv.org/abs/1406.1078"""

# What None means in a tuple of outputs, for all ops alike, as their docstrings say it.
#: Of results: as in NumPy.
ALLOCATED = "one that is None is allocated"
#: Of gradients, in `backward` of an op with several: autograd asks for some of them. It is None in
#: what is returned, too. At least one is not None.
SKIPPED = "one that is None is not computed"

OGITA = """\
T. Ogita, S. M. Rump and S. Oishi, "Accurate Sum and Dot Product", SIAM J. Sci. Comput. 26
(2005), https://doi.org/10.1137/030601818"""


def paragraph(text: str, by: int = 0) -> str:
    """Words in lines as wide as those of the templates, indented."""
    return indent(fill(text, WIDTH - by, break_on_hyphens=False), " " * by)
