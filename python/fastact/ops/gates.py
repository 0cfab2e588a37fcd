"""Recurrent gates: what an LSTM or a GRU does at each step besides its matrix products.

`lstm_gates`, `gru_gates` with the reset gate behind the product, `gru_reset` and `gru_blend` for
the form with the reset gate before it. Packed arrays (..., G H) hold G gates side by side.
"""

from .gates_docs import GRU, LSTM, half_docs
from .gates_op import GatesOp, Kind
from .op import register

lstm_gates = register(
    GatesOp("lstm_gates", Kind("lstm", 4, 4, "c_prev", ("h", "c"), order="ifgo"), LSTM)
)

gru_gates = register(
    GatesOp("gru_gates", Kind("gru", 3, 4, "h_prev", ("h",), takes_recurrent=True), GRU)
)

gru_reset = register(
    GatesOp(
        "gru_reset",
        Kind("reset", 1, 1, "h_prev", ("y",)),
        half_docs(
            "gru_reset",
            "y = r h_prev with r = sigmoid(gates + recurrent + biases): the first half of a GRU\n"
            "whose reset gate works before the matrix product, as in Cho et al. and Flux's GRU.",
            1,
            "r",
            """\
>>> fa.gru_reset(np.zeros((1, 2)), np.array([[1.0, 3.0]]))
array([[0.5, 1.5]])""",
        ),
    )
)

gru_blend = register(
    GatesOp(
        "gru_blend",
        Kind("blend", 2, 2, "h_prev", ("h",)),
        half_docs(
            "gru_blend",
            "h = (1 - z) n + z h_prev with z = sigmoid(...) and n = tanh(...) of gates +\n"
            "recurrent + biases: the second half of a GRU whose reset gate works before the\n"
            "matrix product.\n"
            "The recurrent projection of n is U (r h_prev), that of z is U h_prev.",
            2,
            "z and n",
            """\
>>> fa.gru_blend(np.array([[0.0, 1.0]]), np.array([[0.5]]))
array([[0.6307...]])""",
        ),
    )
)
