"""Checks that the errors of a step's matrix products are within those of MXINT8 rounding.

An element of a block whose largest magnitude is below ``2**(e + 1)`` is rounded to a multiple of
``step = 2**(e - 6)``. The error is at most half a step, except where rounding would give 128 steps;
there it is less than one step (docs/numbers.md). To first order, the error of a product is a sum
over the reduction of ``a * error_b + error_a * b``. Two numbers follow from this:

* a bound, which no error exceeds: ``sum(|a| * step_b + step_a * |b| + step_a * step_b)``;
* the variance to be expected if rounding errors are uniform and independent of each other:
  ``sum(a**2 * step_b**2 + step_a**2 * b**2) / 12``.

FP32 sums add an error of less than ``terms * 2**-24`` times the sum of magnitudes. BF16 results add
half a unit in the last place, ``2**-9``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.hw.hls_models.numerics.mx import MX_BLOCK
from fpgapipe.lowering.units.layers.conv_of_layer import conv_of
from fpgapipe.lowering.units.layers.step_units import ProductUnit
from fpgapipe.lowering.units.network_units import units_of
from fpgapipe.lowering.units.tensor_names import TensorNames

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fpgapipe.lowering.products.conv import ConvSpec, Pass
    from fpgapipe.lowering.program.step_program import StepProgram

    Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class ProductError:
    """Error of a layer's product in one pass, against the exact product of its operands.

    Attributes
    ----------
    layer : str
    which : str
        ``forward``, ``input`` or ``weight``.
    relative : float
        Root mean square of the error over that of the exact result.
    expected : float
        Expected value of `relative`.
    of_bound : float
        Largest ratio of an element's error to its bound.
    """

    layer: str
    which: Pass
    relative: float
    expected: float
    of_bound: float


def steps_of(values: Matrix, depth: int) -> Matrix:
    """Rounding step of each element of operands.

    Parameters
    ----------
    values : array, shape (..., k)
        Operands, with the reduction along the last axis.
    depth : int
        Number of elements after which blocks of 32 begin anew; `k` is a multiple of it.
    """
    blocks = -(-depth // MX_BLOCK)
    shape = (*values.shape[:-1], values.shape[-1] // depth, depth)
    padded = np.zeros((*shape[:-1], blocks * MX_BLOCK))
    padded[..., :depth] = np.abs(values.reshape(shape))
    largest = padded.reshape(*shape[:-1], blocks, MX_BLOCK).max(axis=-1)
    # frexp gives mantissas in [1/2, 1), so its exponent is one more than floor(log2).
    step = np.where(largest > 0, np.ldexp(1.0, np.frexp(largest)[1] - 7), 0.0)
    each = np.repeat(step, MX_BLOCK, axis=-1)[..., :depth]
    return np.ascontiguousarray(each).reshape(values.shape)


def unfolded(conv: ConvSpec, x: Matrix) -> Matrix:
    """The input values in the window of each position, shape (positions, taps * cin)."""
    top, left, bottom, right = conv.pad
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    rows = (
        np.arange(conv.oh)[:, None] * conv.stride[0]
        + np.arange(conv.kernel[0]) * (conv.dilation[0])
    )
    columns = (
        np.arange(conv.ow)[:, None] * conv.stride[1]
        + np.arange(conv.kernel[1]) * (conv.dilation[1])
    )
    seen = padded[:, rows[:, None, :, None], columns[None, :, None, :]]
    return seen.reshape(conv.batch * conv.oh * conv.ow, conv.taps * conv.cin)


def folded(conv: ConvSpec, seen: Matrix) -> Matrix:
    """Sum for each pixel over all windows that contain it; the adjoint of `unfolded`."""
    top, left, bottom, right = conv.pad
    whole = np.zeros((conv.batch, conv.h + top + bottom, conv.w + left + right, conv.cin))
    parts = seen.reshape(conv.batch, conv.oh, conv.ow, *conv.kernel, conv.cin)
    for i in range(conv.kernel[0]):
        for j in range(conv.kernel[1]):
            y, x = i * conv.dilation[0], j * conv.dilation[1]
            rows = slice(y, y + (conv.oh - 1) * conv.stride[0] + 1, conv.stride[0])
            columns = slice(x, x + (conv.ow - 1) * conv.stride[1] + 1, conv.stride[1])
            whole[:, rows, columns] += parts[:, :, :, i, j]
    return whole[:, top : top + conv.h, left : left + conv.w]


def product_errors(program: StepProgram, memory: NDArray[np.uint8]) -> list[ProductError]:
    """Compare each matrix product of a step with the exact product of its operands in memory.

    Parameters
    ----------
    program : StepProgram
    memory : uint8 array
        Memory after the step, into which the weights from before the update have been written
        again (``StepProgram.set_parameters``).
    """
    found: list[ProductError] = []
    names = TensorNames(program.graph)
    for unit in units_of(program.graph):
        if not isinstance(unit, ProductUnit):
            continue
        layer = unit.layers[0]
        conv = conv_of(layer)
        name = layer.name
        x = program.read(memory, program.operands[unit.name, layer.inputs[0]]).astype(np.float64)
        x = x.reshape(conv.batch, conv.h, conv.w, conv.cin)
        weight = next(p.name for p in layer.parameters if p.spec.role == "weight")
        w = program.read(memory, weight).astype(np.float64).reshape(conv.cout, -1)
        inner = partial(names.inner, unit.name)
        sums = inner(f"{name}.sums")
        sums = sums if sums in program.places else unit.name
        seen = unfolded(conv, x)
        found.append(_held(name, "forward", program, memory, sums, seen, w, conv.depth))
        if not program.options.train:
            continue
        dz = inner(f"{name}.dsums") if unit.slope is not None else program.gradients[unit.name]
        dy = program.read(memory, dz).astype(np.float64).reshape(-1, conv.cout)
        positions = dy.shape[0]
        found.append(
            _held(name, "weight", program, memory, f"{weight}.gradient", dy.T, seen.T, positions)
        )
        dx = inner(f"{name}.dx")
        if dx in program.places:
            found.append(_held_input(conv, name, program, memory, dx, dy, w))
    return found


def _held(
    layer: str,
    which: Pass,
    program: StepProgram,
    memory: NDArray[np.uint8],
    result: str,
    a: Matrix,
    b: Matrix,
    depth: int,
) -> ProductError:
    """Compare a tensor in memory with the exact product ``a @ b.T``."""
    step_a, step_b = steps_of(np.ascontiguousarray(a), depth), steps_of(
        np.ascontiguousarray(b), depth
    )  # fmt: skip
    exact = a @ b.T
    magnitude = np.abs(a) @ np.abs(b).T
    bound = np.abs(a) @ step_b.T + step_a @ np.abs(b).T + step_a @ step_b.T
    variance = (a**2 @ (step_b**2).T + step_a**2 @ (b**2).T) / 12
    got = program.read(memory, result).astype(np.float64).reshape(exact.shape)
    return _error(layer, which, program, result, got, exact, magnitude, bound, variance, a.shape[1])


def _held_input(
    conv: ConvSpec,
    layer: str,
    program: StepProgram,
    memory: NDArray[np.uint8],
    result: str,
    dy: Matrix,
    w: Matrix,
) -> ProductError:
    """Compare a layer's input gradient in memory with the exact one."""

    def back(gradient: Matrix, weight: Matrix) -> Matrix:
        return folded(conv, gradient @ weight)

    step_dy = steps_of(dy, conv.cout)
    step_w = steps_of(np.ascontiguousarray(w.T), conv.cout).T
    exact = back(dy, w)
    magnitude = back(np.abs(dy), np.abs(w))
    bound = back(np.abs(dy), step_w) + back(step_dy, np.abs(w)) + back(step_dy, step_w)
    variance = (back(dy**2, step_w**2) + back(step_dy**2, w**2)) / 12
    got = program.read(memory, result).astype(np.float64).reshape(exact.shape)
    terms = conv.taps * conv.cout
    return _error(layer, "input", program, result, got, exact, magnitude, bound, variance, terms)


def _error(
    layer: str,
    which: Pass,
    program: StepProgram,
    result: str,
    got: Matrix,
    exact: Matrix,
    magnitude: Matrix,
    bound: Matrix,
    variance: Matrix,
    terms: int,
) -> ProductError:
    """Make the error, with the rounding of FP32 sums and of the result's format added."""
    place = program.places[result]
    half_unit = 2.0**-9 if place.end - place.begin == 2 * got.size else 2.0**-24
    rounding = terms * 2.0**-24 * (magnitude + bound) + half_unit * (np.abs(exact) + bound)
    error = got - exact
    size = np.sqrt(np.mean(exact**2))
    expected = np.sqrt(np.mean(variance) + np.mean((half_unit * exact) ** 2) / 3)
    limit = bound + rounding
    return ProductError(
        layer,
        which,
        float(np.sqrt(np.mean(error**2)) / size) if size else 0.0,
        float(expected / size) if size else 0.0,
        float(np.max(np.abs(error)[limit > 0] / limit[limit > 0], initial=0.0)),
    )
