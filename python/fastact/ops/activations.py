"""Activations: one row each.

The row gives the name, the parameters with their defaults (as `torch.nn.functional` has them), the
stated accuracy and what the docstring says of this op alone (the rest is in `activation_docs`);
the formula stands in `src/common/activations/`, the oracle in `check/reference.py`.
"""

from typing import TYPE_CHECKING

from .activation import Activation
from .activation_docs import Doc, parameter
from .bounds import Bounds, Scaling
from .op import register

relu = register(
    Activation(
        "relu",
        Bounds(0, 0, 0),
        Doc(
            "Rectified linear unit",
            "max(x, 0)",
            'V. Nair and G. E. Hinton, "Rectified Linear Units Improve Restricted Boltzmann\n'
            'Machines", ICML 2010.',
            "fa.relu(np.array([-1.0, 0.0, 2.0]))\narray([0., 0., 2.])",
            "The derivative at 0 is 0.",
        ),
    )
)

relu6 = register(
    Activation(
        "relu6",
        Bounds(0, 0, 0),
        Doc(
            "Rectified linear unit, capped",
            "min(max(x, 0), 6)",
            'M. Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", '
            "CVPR 2018,\n"
            "https://arxiv.org/abs/1801.04381",
            "fa.relu6(np.array([-1.0, 2.0, 7.0]))\narray([0., 2., 6.])",
            "The derivative at 0 and at 6 is 0.",
        ),
    )
)

leaky_relu = register(
    Activation(
        "leaky_relu",
        Bounds(1, 0.5, 0),
        Doc(
            "Leaky rectified linear unit",
            "x for x > 0, else negative_slope x",
            'A. L. Maas et al., "Rectifier Nonlinearities Improve Neural Network Acoustic '
            'Models",\n'
            "ICML 2013.",
            "fa.leaky_relu(np.array([-1.0, 0.0, 2.0]))\narray([-0.01,  0.  ,  2.  ])",
            "The derivative at 0 is negative_slope.",
            parameter("negative_slope : float", "The slope below zero."),
        ),
        negative_slope=0.01,
    )
)

elu = register(
    Activation(
        "elu",
        Bounds(2, 4, 1.2e-7),
        Doc(
            "Exponential linear unit",
            "x for x > 0, else alpha (exp(x) - 1)",
            'D.-A. Clevert et al., "Fast and Accurate Deep Network Learning by Exponential Linear\n'
            'Units (ELUs)", ICLR 2016, https://arxiv.org/abs/1511.07289',
            "fa.elu(np.array([-1.0, 0.0, 2.0]))\narray([-0.6321...,  0.        ,  2.        ])",
            "elu(-inf) = -alpha. The derivative at 0 is alpha.",
            parameter("alpha : float", "What is approached far on the left, with its sign turned."),
        ),
        alpha=1.0,
    )
)

selu = register(
    Activation(
        "selu",
        Bounds(2.5, 4, 1.2e-7),
        Doc(
            "Scaled exponential linear unit",
            "1.0507... elu(x, 1.6732...)",
            'G. Klambauer et al., "Self-Normalizing Neural Networks", NeurIPS 2017,\n'
            "https://arxiv.org/abs/1706.02515",
            "fa.selu(np.array([-1.0, 0.0, 2.0]))\narray([-1.1113...,  0.        ,  2.1014...])",
            "The derivative at 0 is that of the left side, 1.758.",
        ),
    )
)

celu = register(
    Activation(
        "celu",
        Bounds(2, 4, 1.2e-7, scaling=Scaling("alpha", "x / alpha", lambda x, alpha: x / alpha)),
        Doc(
            "Continuously differentiable exponential linear unit",
            "x for x > 0, else alpha (exp(x / alpha) - 1)",
            'J. T. Barron, "Continuously Differentiable Exponential Linear Units",\n'
            "https://arxiv.org/abs/1704.07483",
            "fa.celu(np.array([-1.0, 0.0, 2.0]), 2.0)\n"
            "array([-0.7869...,  0.        ,  2.        ])",
            "celu(-inf) = -alpha for a positive alpha. For a negative one it is -inf where\n"
            "exp(x / alpha) overflows: from x / alpha = 89 on, in float64 from 710.",
            parameter("alpha : float", "Any number but zero."),
            "for an alpha of zero",
        ),
        rules=[("alpha must not be zero", lambda alpha: alpha != 0)],
        alpha=1.0,
    )
)

gelu = register(
    Activation(
        "gelu",
        Bounds(3, 4, 1.2e-7),
        Doc(
            "Gaussian error linear unit",
            "x Phi(x), Phi the normal distribution",
            'D. Hendrycks and K. Gimpel, "Gaussian Error Linear Units (GELUs)",\n'
            "https://arxiv.org/abs/1606.08415",
            "fa.gelu(np.array([-1.0, 0.0, 1.0]))\narray([-0.1586...,  0.        ,  0.8413...])",
            "gelu(-inf) = -0. The bounds hold for\nboth choices, each against its own formula.",
            parameter(
                'approximate : "none" or "tanh"',
                '"tanh": x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), which differs by up to\n'
                "    5e-4. It is no faster here.",
            ),
            "for another approximate",
        ),
        choices={"approximate": {"none": "gelu", "tanh": "gelu_tanh"}},
        approximate="none",
    )
)

silu = register(
    Activation(
        "silu",
        Bounds(3, 4, 1.2e-7),
        Doc(
            "Sigmoid linear unit, also named swish",
            "x sigmoid(x) = x / (1 + exp(-x))",
            'S. Elfwing et al., "Sigmoid-Weighted Linear Units for Neural Network Function\n'
            'Approximation in Reinforcement Learning", Neural Networks 107, 2018,\n'
            "https://arxiv.org/abs/1702.03118",
            "fa.silu(np.array([-1.0, 0.0, 1.0]))\narray([-0.2689...,  0.        ,  0.7310...])",
            "silu(-inf) = -0. `fastact.swish` is the same op.",
        ),
    )
)
swish = silu

mish = register(
    Activation(
        "mish",
        Bounds(3, 4, 1.2e-7),
        Doc(
            "Mish",
            "x tanh(softplus(x)) = x tanh(log(1 + exp(x)))",
            'D. Misra, "Mish: A Self Regularized Non-Monotonic Activation Function", BMVC 2020,\n'
            "https://arxiv.org/abs/1908.08681",
            "fa.mish(np.array([-1.0, 0.0, 1.0]))\narray([-0.3034...,  0.        ,  0.8650...])",
            "mish(-inf) = -0, mish(inf) = inf.",
        ),
    )
)

sigmoid = register(
    Activation(
        "sigmoid",
        Bounds(2.5, 4, 1.2e-7),
        Doc(
            "Logistic sigmoid",
            "1 / (1 + exp(-x))",
            "P.-F. Verhulst, \"Recherches mathematiques sur la loi d'accroissement de la "
            'population",\n'
            "1845.",
            "fa.sigmoid(np.array([-1.0, 0.0, 1.0]))\narray([0.2689..., 0.5       , 0.7310...])",
        ),
    )
)

logsigmoid = register(
    Activation(
        "logsigmoid",
        Bounds(2.5, 4, 1.2e-7),
        Doc(
            "Logarithm of the logistic sigmoid",
            "-log(1 + exp(-x))",
            'The log-likelihood of logistic regression: D. R. Cox, "The Regression '
            "Analysis of Binary\n"
            'Sequences", J. R. Stat. Soc. B 20, 1958.',
            "fa.logsigmoid(np.array([-1.0, 0.0, 1.0]))\n"
            "array([-1.3132..., -0.6931..., -0.3132...])",
            "logsigmoid(inf) = -0.",
        ),
    )
)

hardsigmoid = register(
    Activation(
        "hardsigmoid",
        Bounds(1.5, 0.5, 0),
        Doc(
            "Piecewise linear sigmoid",
            "min(max(x + 3, 0), 6) / 6",
            'A. Howard et al., "Searching for MobileNetV3", ICCV 2019,\n'
            "https://arxiv.org/abs/1905.02244",
            "fa.hardsigmoid(np.array([-4.0, 0.0, 1.5]))\narray([0.  , 0.5 , 0.75])",
            "The derivative at -3 and at 3 is 0.",
        ),
    )
)

tanh = register(
    Activation(
        "tanh",
        Bounds(2.75, 4, 1.2e-7),
        Doc(
            "Hyperbolic tangent",
            "tanh(x)",
            'Y. LeCun et al., "Efficient BackProp", in Neural Networks: Tricks of the Trade, 1998.',
            "fa.tanh(np.array([-1.0, 0.0, 1.0]))\narray([-0.7615...,  0.        ,  0.7615...])",
        ),
    )
)

hardtanh = register(
    Activation(
        "hardtanh",
        Bounds(0, 0, 0),
        Doc(
            "Piecewise linear tanh",
            "min(max(x, min_val), max_val)",
            'R. Collobert, "Large Scale Machine Learning", PhD thesis, Universite Paris VI, 2004.',
            "fa.hardtanh(np.array([-2.0, 0.5, 2.0]))\narray([-1. ,  0.5,  1. ])",
            "The derivative at the limits is 0.",
            parameter("min_val, max_val : float", "The limits."),
            "for limits in the wrong order",
        ),
        rules=[("min_val must not exceed max_val", lambda min_val, max_val: min_val <= max_val)],
        min_val=-1.0,
        max_val=1.0,
    )
)

tanhshrink = register(
    Activation(
        "tanhshrink",
        Bounds(3, 4, 1.2e-7),
        Doc(
            "What tanh takes away",
            "x - tanh(x)",
            "A shrinkage as of wavelet denoising: D. L. Donoho and I. M. Johnstone, "
            '"Ideal Spatial\n'
            'Adaptation by Wavelet Shrinkage", Biometrika 81, 1994.',
            "fa.tanhshrink(np.array([-1.0, 0.0, 1.0]))\n"
            "array([-0.2384...,  0.        ,  0.2384...])",
            "Nothing cancels near 0,\nwhere it is x^3/3.",
        ),
    )
)

softplus = register(
    Activation(
        "softplus",
        Bounds(3, 4, 1.2e-7, scaling=Scaling("beta", "beta x", lambda x, beta: beta * x)),
        Doc(
            "Smooth rectifier",
            "log(1 + exp(beta x)) / beta",
            'C. Dugas et al., "Incorporating Second-Order Functional Knowledge for Better Option\n'
            'Pricing", NeurIPS 2000.',
            "fa.softplus(np.array([-1.0, 0.0, 1.0]))\narray([0.3132..., 0.6931..., 1.3132...])",
            "There is no threshold above which it is x: none is needed.",
            parameter("beta : float", "Above zero: how sharp the bend is."),
            "for a beta that is not\n    above zero",
        ),
        rules=[("beta must be above zero", lambda beta: beta > 0)],
        beta=1.0,
    )
)

softsign = register(
    Activation(
        "softsign",
        Bounds(2, 4, 1.2e-7),
        Doc(
            "Soft sign",
            "x / (1 + |x|)",
            'J. Turian et al., "Quadratic Features and Deep Architectures for Chunking", '
            "NAACL 2009.",
            "fa.softsign(np.array([-1.0, 0.0, 3.0]))\narray([-0.5 ,  0.  ,  0.75])",
        ),
    )
)

softshrink = register(
    Activation(
        "softshrink",
        Bounds(0.5, 0, 0),
        Doc(
            "Soft shrinkage",
            "x - lambd sign(x) for |x| > lambd, else 0",
            'D. L. Donoho, "De-noising by Soft-Thresholding", IEEE Trans. Inf. Theory 41, 1995.',
            "fa.softshrink(np.array([-2.0, 0.25, 2.0]))\narray([-1.5,  0. ,  1.5])",
            "The zeros have the sign of x; the\nderivative at +-lambd is 0.",
            parameter("lambd : float", "Not below zero."),
            "for a negative lambd",
        ),
        rules=[("lambd must not be negative", lambda lambd: lambd >= 0)],
        lambd=0.5,
    )
)

hardshrink = register(
    Activation(
        "hardshrink",
        Bounds(0, 0, 0),
        Doc(
            "Hard shrinkage",
            "x for |x| > lambd, else 0",
            'D. L. Donoho and I. M. Johnstone, "Ideal Spatial Adaptation by Wavelet Shrinkage",\n'
            "Biometrika 81, 1994.",
            "fa.hardshrink(np.array([-2.0, 0.25, 2.0]))\narray([-2.,  0.,  2.])",
            "The zeros have the sign of x; the\nderivative at +-lambd is 0.",
            parameter("lambd : float", "Not below zero."),
            "for a negative lambd",
        ),
        rules=[("lambd must not be negative", lambda lambd: lambd >= 0)],
        lambd=0.5,
    )
)

hardswish = register(
    Activation(
        "hardswish",
        Bounds(2.5, 4, 1.2e-7),
        Doc(
            "Piecewise parabolic swish",
            "x min(max(x + 3, 0), 6) / 6",
            'A. Howard et al., "Searching for MobileNetV3", ICCV 2019,\n'
            "https://arxiv.org/abs/1905.02244",
            "fa.hardswish(np.array([-4.0, -1.5, 3.0]))\narray([-0.   , -0.375,  3.   ])",
            "hardswish(-inf) = -0. The derivative at\n-3 is 0, at 3 it is 1.",
        ),
    )
)

hardmish = register(
    Activation(
        "hardmish",
        Bounds(1.5, 0.5, 0),
        Doc(
            "Piecewise parabolic Mish",
            "x/2 min(max(x + 2, 0), 2)",
            'D. Misra, "H-Mish", 2020, https://github.com/digantamisra98/H-Mish',
            "fa.hardmish(np.array([-3.0, -1.0, 2.0]))\narray([-0. , -0.5,  2. ])",
            "hardmish(-inf) = -0. The derivative at\n-2 is 0, at 0 it is 1.",
        ),
    )
)

lisht = register(
    Activation(
        "lisht",
        Bounds(2.5, 4, 1.2e-7),
        Doc(
            "Linearly scaled hyperbolic tangent",
            "x tanh(x)",
            'S. K. Roy et al., "LiSHT: Non-Parametric Linearly Scaled Hyperbolic Tangent '
            "Activation\n"
            'Function for Neural Networks", https://arxiv.org/abs/1901.05894',
            "fa.lisht(np.array([-1.0, 0.0, 1.0]))\narray([0.7615..., 0.        , 0.7615...])",
        ),
    )
)

logcosh = register(
    Activation(
        "logcosh",
        Bounds(2.5, 4, 1.2e-7),
        Doc(
            "Logarithm of the hyperbolic cosine",
            "log(cosh(x))",
            'R. A. Saleh and A. K. M. E. Saleh, "Statistical Properties of the log-cosh '
            "Loss Function\n"
            'Used in Machine Learning", https://arxiv.org/abs/2208.04564',
            "fa.logcosh(np.array([-1.0, 0.0, 1.0]))\narray([0.4337..., 0.        , 0.4337...])",
            "Nothing overflows, and nothing cancels\nnear 0, where it is x^2/2.",
        ),
    )
)

if not TYPE_CHECKING:  # a type checker reads the rows
    __all__ = [name for name, value in globals().items() if isinstance(value, Activation)]
