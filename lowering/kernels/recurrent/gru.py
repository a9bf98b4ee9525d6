"""A step of a gated recurrent unit, forward and backward, on the gates' products.

The gates are in PyTorch's order: reset, update, new. The cell is the hidden state in FP32, so that
the share of the old state that the update gate keeps is not rounded at each position.

Source: K. Cho et al., "Learning phrase representations using RNN encoder-decoder for statistical
machine translation", EMNLP 2014, with the reset gate behind the product, as in cuDNN and PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.isa.vector_op import Addend, Factor
from fpgapipe.hw.hls_models.numerics.function import Function
from fpgapipe.lowering.kernels.recurrent.cells import (
    Cell,
    Gradients,
    Part,
    Position,
    Sequence,
    View,
    cell_kernel,
)
from fpgapipe.lowering.tiling.rows import MINUS_Y

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fpgapipe.lowering.tiling.kernel import Region, Step, Tensor, VectorKernel

RESET, UPDATE, NEW, PRODUCT = range(4)
"""The gates, and behind them what is kept besides: what the reset gate multiplies."""


def forward(
    name: str,
    sequence: Sequence,
    position: Position,
    region: Region,
    *,
    recurrent: Tensor | None = None,
    bias: Tensor | None = None,
) -> VectorKernel:
    """Compute the gates and the hidden state of a position.

    ``h = n + z * (h_before - n)`` with ``n = tanh(x_n + r * h_n)``, where ``r`` and ``z`` are
    sigmoids of the sums of both products, ``x_n`` and ``h_n`` the products of the input and of the
    hidden state before, each with its bias.

    Parameters and errors are those of `lstm.forward`.
    """
    width, samples = sequence.width, sequence.samples
    loads = {"sums": Part(sequence.sums, position.at * samples, GRU.gates * width)}
    if recurrent is not None:
        loads["recurrent"] = Part(recurrent, 0, GRU.gates * width)
    loads["before"] = Part(sequence.cells, position.before * samples, width)
    stores = {
        "kept": Part(sequence.kept, position.at * samples, GRU.kept * width),
        "cell": Part(sequence.cells, position.after * samples, width),
        "hidden": Part(sequence.hidden, position.after * samples, width),
    }

    def steps(view: View) -> Iterator[Step]:
        is_zero = recurrent is None
        addend = Addend.NOTHING if is_zero else Addend.Y
        yield view.step(("sums", RESET), None if is_zero else ("recurrent", RESET),
                        ("kept", RESET), gates=2, bias=RESET, addend=addend,
                        function=Function.SIGMOID)  # fmt: skip
        product = None if is_zero else ("recurrent", NEW)
        yield view.step(product, None, ("kept", PRODUCT), bias=PRODUCT)
        yield view.step(("kept", RESET), ("kept", PRODUCT), "work", factor=Factor.Y)
        yield view.step(("sums", NEW), "work", ("kept", NEW), bias=NEW, addend=Addend.Y,
                        function=Function.TANH)  # fmt: skip
        yield view.step("before", ("kept", NEW), "work", **MINUS_Y)
        yield view.step("work", ("kept", UPDATE), "work", factor=Factor.Y)
        yield view.step("work", ("kept", NEW), "cell", addend=Addend.Y)
        yield view.step("cell", None, "hidden")

    return cell_kernel(name, region, (samples, width), loads, stores, ("work",), steps, bias)


def backward(
    name: str, sequence: Sequence, position: Position, region: Region, gradients: Gradients
) -> VectorKernel:
    """Compute the gradients of a position's products, and of the hidden state before.

    The gradient of the hidden state before is only what does not go through its product.

    Parameters and errors are those of `lstm.backward`.
    """
    width, samples = sequence.width, sequence.samples
    wide = GRU.gates * width
    loads = {
        "kept": Part(sequence.kept, position.at * samples, GRU.kept * width),
        "before": Part(sequence.cells, position.before * samples, width),
    }
    loads = gradients.with_loads(position, loads)
    stores = {
        "dsums": Part(gradients.dsums, position.at * samples, wide),
        "drecurrent": Part(gradients.drecurrent, position.at * samples, wide),
        "dbefore": Part(gradients.dbefore, 0, width),
    }

    def steps(view: View) -> Iterator[Step]:
        yield view.step("dy", "dcell", "dh", addend=Addend.Y)
        if gradients.dhidden is not None:
            yield view.step("dh", "dhidden", "dh", addend=Addend.Y)
        yield view.step("before", ("kept", NEW), "own", **MINUS_Y)
        yield view.step("own", "dh", "own", factor=Factor.Y)
        yield from view.through_sigmoid(UPDATE)
        yield view.step("dh", ("kept", UPDATE), "dbefore", factor=Factor.Y)
        yield view.step("dh", "dbefore", "own", **MINUS_Y)
        yield view.complement_of_square(("kept", NEW), "slope")
        yield view.step("own", "slope", "own", factor=Factor.Y)
        yield view.step("own", None, ("dsums", NEW))
        yield view.step("own", ("kept", RESET), ("drecurrent", NEW), factor=Factor.Y)
        yield view.step("own", ("kept", PRODUCT), "own", factor=Factor.Y)
        yield from view.through_sigmoid(RESET)
        yield view.step(("dsums", RESET), None, ("drecurrent", RESET), gates=2)

    work = ("dh", "own", "slope")
    return cell_kernel(name, region, (samples, width), loads, stores, work, steps)


GRU = Cell(gates=3, added=2, kept=4, forward=forward, backward=backward)
