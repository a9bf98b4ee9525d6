"""Kernels of INT8 inference: splitting, rescaling, quantising and dequantising, in exact integers.

Integers of eight bits less their zero point lie in memory as BF16 or FP32, which hold them exactly.
`constants` finds the constants of the instructions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.hw.hls_models.isa.vector_op import (
    Addend,
    Choice,
    Constant,
    Factor,
    Initial,
    Left,
    Outcome,
    Right,
    Second,
)
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.integers.constants import (
    SPLITTER,
    TO_INTEGER,
    CheckedConstants,
    DirectConstants,
    QuotientConstants,
)
from fpgapipe.lowering.kernels.activation import positions_by_channels
from fpgapipe.lowering.tiling.channels import EachStep, channel_kernel, padded
from fpgapipe.lowering.tiling.elementwise import FlatStep, flat_kernel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.numerics.element_format import ElementFormat
    from fpgapipe.lowering.tiling.kernel import Region, Tensor, VectorKernel

LARGEST_OPERAND = 127
"""Largest magnitude of integers that the array multiplies exactly, whatever is in their block."""

COARSE = 4
"""Step of the coarse part of integers that are split."""

_NONE = Constant()


def centre(name: str, x: Tensor, y: Tensor, zero: int, region: Region) -> VectorKernel:
    """``y = x - zero``."""
    step = {"addend": Addend.CONSTANT, "constants": (Constant(-float(zero)),)}
    return flat_kernel(name, {"x": x}, {"y": y}, [FlatStep("x", "y", None, step)], region)


def split(name: str, x: Tensor, coarse: Tensor, fine: Tensor, region: Region) -> VectorKernel:
    """Split integers of up to 256 into multiples of `COARSE` and what is left, -2..2.

    MXINT8 holds every block of either part exactly.
    """
    rounds = COARSE * TO_INTEGER
    steps = [
        FlatStep("x", "coarse", None, _rounded(Constant(rounds), Constant(-rounds))),
        FlatStep("x", "fine", "coarse", {"addend": Addend.Y, "negate_addend": True}),
    ]
    return flat_kernel(name, {"x": x}, {"coarse": coarse, "fine": fine}, steps, region)


def _rounded(added: Constant, taken: Constant, **more: Any) -> dict[str, Any]:
    """Settings that add a constant and take one away, each with a rounding."""
    return {
        "addend": Addend.CONSTANT,
        "constants": (added, _NONE, _NONE, more.pop("c3", _NONE), taken),
        "initial": Initial.CONSTANT,
        **more,
    }


def tables_of(
    constants: DirectConstants | CheckedConstants, channels: int
) -> dict[str, NDArray[np.float32]]:
    """Contents of the small arrays that `rescale` reads, by the names of their instructions.

    The first row has offsets, the second factors. Constants of one channel are those of all.
    """
    zeros = np.zeros_like(constants.factors)
    if isinstance(constants, DirectConstants):
        rows = {"near": (constants.offsets, constants.factors)}
    else:
        rows = {
            "total": (constants.offsets, zeros),
            "near": (constants.nears, constants.factors),
            "leading": (zeros, constants.leading),
            "rest": (zeros, constants.rest),
        }
    found = {}
    for name, row in rows.items():
        found[name] = np.zeros((2, padded(channels)), np.float32)
        found[name][:, :channels] = np.asarray(row)
    return found


def rescale(
    name: str,
    z: Tensor,
    y: Tensor,
    constants: DirectConstants | CheckedConstants,
    tables: Mapping[str, Tensor],
    limits: tuple[int, int],
    region: Region,
) -> VectorKernel:
    """Rescale sums to integers, with what `constants.search` has found.

    Parameters
    ----------
    name : str
    z, y : Tensor
        FP32 sums of ``... x channels``, and the results.
    constants : DirectConstants or CheckedConstants
    tables : mapping of str to Tensor
        Tensors with the contents of `tables_of`.
    limits : (int, int)
        Least and greatest result.
    region : Region
    """
    low, high = limits
    is_direct = isinstance(constants, DirectConstants)
    to_integer = constants.to_integer if isinstance(constants, DirectConstants) else TO_INTEGER
    near = {
        "addend": Addend.COEFFICIENT,
        "factor": Factor.COEFFICIENT,
        "initial": Initial.CONSTANT,
        **_clipped(Outcome.LESS, low, initial=to_integer),
    }
    whole = {
        "addend": Addend.CONSTANT,
        **_clipped(Outcome.GREATER, high, first=-to_integer),
    }
    steps = [
        EachStep("z", "work", None, "near", near),
        EachStep("work", "y" if is_direct else "guess", None, None, whole),
    ]
    if not is_direct:
        edge = {
            "addend": Addend.CONSTANT,
            "factor": Factor.COEFFICIENT,
            "second": Second.Y,
            "constants": (Constant(-0.5), _NONE, _NONE, Constant(-1.0)),
        }
        compared = {
            "test": (Left.S, Outcome.GREATER, Right.COUNTER),  # the counter is 0
            "then": Choice.CONSTANT,
            "otherwise": Choice.ZERO,
        }
        corrected = {"addend": Addend.Y, **_clipped(Outcome.LESS, low)}
        steps += [
            EachStep("z", "sum", None, "total", {"addend": Addend.COEFFICIENT}),
            EachStep("guess", "work", "sum", "leading", {**edge, "negate_second": True}),
            EachStep("guess", "work", "work", "rest", {**edge, **compared}),
            EachStep("guess", "y", "work", None, corrected),
        ]
    return channel_kernel(
        name,
        positions_by_channels(z),
        region,
        sources={"z": z},
        steps=steps,
        targets={"y": y},
        temporaries=dict.fromkeys(("work",) if is_direct else ("work", "guess", "sum"), FP32),
        small_sources=tables,
    )


def _clipped(
    outcome: Outcome, limit: float, *, first: float = 0, initial: float = 0
) -> dict[str, Any]:
    """Settings that replace a sum that compares so with a limit by the limit."""
    constants = (Constant(first), _NONE, _NONE, Constant(limit), Constant(initial))
    return {
        "test": (Left.S, outcome, Right.CONSTANT),
        "then": Choice.CONSTANT,
        "constants": constants,
    }


def quantise(
    name: str, x: Tensor, y: Tensor, constants: QuotientConstants, region: Region
) -> VectorKernel:
    """Quantise FP32 numbers to integers: ``y = clip(round(x / scale))``."""
    steps = _quantised("x", constants)
    return flat_kernel(name, {"x": x}, {"y": y}, steps, region, temporaries=_temporaries(steps))


def integer_add(
    name: str,
    a: Tensor,
    b: Tensor,
    y: Tensor,
    scales: tuple[float, float],
    constants: QuotientConstants,
    region: Region,
) -> VectorKernel:
    """Dequantise two tensors of integers, add them in FP32, and quantise the sum."""
    both = {
        "factor": Factor.CONSTANT,
        "second": Second.CONSTANT,
        "constants": (_NONE, *(Constant(scale) for scale in scales)),
    }
    steps = [FlatStep("a", "sum", "b", both), *_quantised("sum", constants)]
    return flat_kernel(
        name, {"a": a, "b": b}, {"y": y}, steps, region, temporaries=_temporaries(steps)
    )


def _temporaries(steps: Sequence[FlatStep]) -> dict[str, ElementFormat]:
    return {step.target: FP32 for step in steps if step.target != "y"}


def _quantised(x: str, constants: QuotientConstants) -> list[FlatStep]:
    """Steps from a name's FP32 numbers to the integers in ``y``; see `QuotientConstants.run`."""
    least, greatest = (float(each) for each in constants.limits)
    inverse = float(constants.inverse)
    steps = [
        FlatStep(x, "clipped", None, _clipped(Outcome.GREATER, greatest)),
        FlatStep("clipped", "clipped", None, _clipped(Outcome.LESS, least)),
    ]
    last: dict[str, Any] = {"factor": Factor.CONSTANT, "initial": Initial.CONSTANT}
    numbers = (_NONE, Constant(inverse), _NONE, _NONE, Constant(TO_INTEGER))
    if constants.is_exact:
        steps.append(FlatStep("clipped", "work", None, {**last, "constants": numbers}))
    else:
        steps += [
            FlatStep("clipped", "quotient", None, _times(inverse)),
            FlatStep("quotient", "work", None, _times(SPLITTER)),
            FlatStep("work", "upper", "quotient", _MINUS_Y),
            FlatStep("work", "upper", "upper", _MINUS_Y),
            FlatStep("quotient", "lower", "upper", _MINUS_Y),
        ]
        rest = "clipped"
        for part in ("upper", "lower"):
            for factor in constants.halves:
                plus = {**_times(-float(factor)), "second": Second.Y}
                steps.append(FlatStep(part, "work", rest, plus))
                rest = "work"
        last |= {"second": Second.Y, "constants": numbers}
        steps.append(FlatStep("work", "work", "quotient", last))
    taken = {"addend": Addend.CONSTANT, "constants": (Constant(-TO_INTEGER),)}
    return [*steps, FlatStep("work", "y", None, taken)]


def _times(factor: float) -> dict[str, Any]:
    return {"factor": Factor.CONSTANT, "constants": (_NONE, Constant(factor))}


_MINUS_Y = {"addend": Addend.Y, "negate_addend": True}


def dequantise(
    name: str, x: Tensor, y: Tensor, scales: Tensor | float, region: Region
) -> VectorKernel:
    """``y = scale * x``, with one scale, or those in the second row of a small array."""
    if isinstance(scales, float):
        return flat_kernel(name, {"x": x}, {"y": y}, [FlatStep("x", "y", None, _times(scales))],
                           region)  # fmt: skip
    step = EachStep("x", "y", None, "scales", {"factor": Factor.COEFFICIENT})
    return channel_kernel(
        name,
        positions_by_channels(x),
        region,
        sources={"x": x},
        steps=[step],
        targets={"y": y},
        small_sources={"scales": scales},
    )
