"""A step of long short-term memory, forward and backward, on the gates' sums.

The gates are in PyTorch's order: input, forget, cell, output.

Source: S. Hochreiter, J. Schmidhuber, "Long short-term memory", Neural Computation 1997, with the
forget gate of F. Gers, J. Schmidhuber, F. Cummins, "Learning to forget", 1999.
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

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fpgapipe.lowering.tiling.kernel import Region, Step, Tensor, VectorKernel

INPUT, FORGET, CELL, OUTPUT = range(4)


def forward(
    name: str,
    sequence: Sequence,
    position: Position,
    region: Region,
    *,
    recurrent: Tensor | None = None,
    bias: Tensor | None = None,
) -> VectorKernel:
    """Compute the gates, the cell and the hidden state of a position.

    ``c = f * c_before + i * g`` and ``h = o * tanh(c)``, where ``i``, ``f`` and ``o`` are sigmoids
    and ``g`` is the tanh of the sums of both products and the bias.

    Parameters
    ----------
    name : str
    sequence : Sequence
    position : Position
    region : Region
    recurrent : Tensor, optional
        FP32, shape ``samples x gates * hidden``: products of the hidden state before and its
        weights; none where that state is zero.
    bias : Tensor, optional
        FP32, shape ``(biases * hidden,)``; see `Cell.biases`.

    Raises
    ------
    NoRoom
        If the region is too small for a sample.
    """
    width, samples = sequence.width, sequence.samples
    wide = LSTM.gates * width
    loads = {"sums": Part(sequence.sums, position.at * samples, wide)}
    if recurrent is not None:
        loads["recurrent"] = Part(recurrent, 0, wide)
    loads["before"] = Part(sequence.cells, position.before * samples, width)
    stores = {
        "kept": Part(sequence.kept, position.at * samples, wide),
        "cell": Part(sequence.cells, position.after * samples, width),
        "hidden": Part(sequence.hidden, position.after * samples, width),
    }

    def steps(view: View) -> Iterator[Step]:
        addend = Addend.NOTHING if recurrent is None else Addend.Y
        for first, count, function in (
            (INPUT, 2, Function.SIGMOID),
            (CELL, 1, Function.TANH),
            (OUTPUT, 1, Function.SIGMOID),
        ):
            y = None if recurrent is None else ("recurrent", first)
            yield view.step(("sums", first), y, ("kept", first), gates=count, bias=first,
                            addend=addend, function=function)  # fmt: skip
        yield view.step(("kept", FORGET), "before", "old", factor=Factor.Y)
        yield view.step(("kept", INPUT), ("kept", CELL), "new", factor=Factor.Y)
        yield view.step("old", "new", "cell", addend=Addend.Y)
        yield view.step("cell", None, "new", function=Function.TANH)
        yield view.step(("kept", OUTPUT), "new", "hidden", factor=Factor.Y)

    size = samples, width
    return cell_kernel(name, region, size, loads, stores, ("old", "new"), steps, bias)


def backward(
    name: str, sequence: Sequence, position: Position, region: Region, gradients: Gradients
) -> VectorKernel:
    """Compute the gradients of the sums of a position's gates, and of the cell before.

    Parameters
    ----------
    name, sequence, position, region
        As for `forward`.
    gradients : Gradients

    Raises
    ------
    NoRoom
        If the region is too small for a sample.
    """
    width, samples = sequence.width, sequence.samples
    wide = LSTM.gates * width
    loads = {
        "kept": Part(sequence.kept, position.at * samples, wide),
        "cell": Part(sequence.cells, position.after * samples, width),
        "before": Part(sequence.cells, position.before * samples, width),
    }
    loads = gradients.with_loads(position, loads)
    stores = {
        "dsums": Part(gradients.dsums, position.at * samples, wide),
        "dbefore": Part(gradients.dbefore, 0, width),
    }

    def steps(view: View) -> Iterator[Step]:
        if gradients.dhidden is None:
            yield view.step("dy", None, "dh")
        else:
            yield view.step("dy", "dhidden", "dh", addend=Addend.Y)
        yield view.step("cell", None, "turned", function=Function.TANH)
        yield view.step("dh", "turned", "own", factor=Factor.Y)
        yield from view.through_sigmoid(OUTPUT)
        # 1 - tanh(c)**2, times the output gate and the hidden state's gradient
        yield view.complement_of_square("turned", "own")
        yield view.step(("kept", OUTPUT), "dh", "turned", factor=Factor.Y)
        yield view.step("turned", "own", "turned", factor=Factor.Y)
        yield view.step("turned", "dcell", "dc", addend=Addend.Y)
        yield view.step(("kept", CELL), "dc", "own", factor=Factor.Y)
        yield from view.through_sigmoid(INPUT)
        yield view.step("before", "dc", "own", factor=Factor.Y)
        yield from view.through_sigmoid(FORGET)
        yield view.step(("kept", INPUT), "dc", "own", factor=Factor.Y)
        yield view.complement_of_square(("kept", CELL), "turned")
        yield view.step("own", "turned", ("dsums", CELL), factor=Factor.Y)
        yield view.step(("kept", FORGET), "dc", "dbefore", factor=Factor.Y)

    work = ("dh", "turned", "own", "dc", "slope")
    return cell_kernel(name, region, (samples, width), loads, stores, work, steps)


LSTM = Cell(gates=4, added=4, kept=4, forward=forward, backward=backward)
