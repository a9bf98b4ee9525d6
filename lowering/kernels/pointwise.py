"""Elementwise functions of one tensor and of two."""

from collections.abc import Mapping
from typing import Any

from fpgapipe.hw.hls_models.isa.vector_op import (
    Addend,
    Choice,
    Constant,
    Factor,
    Initial,
    Left,
    Outcome,
    Right,
)
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.hw.hls_models.numerics.function import Function
from fpgapipe.lowering.kernels.activation import positions_by_channels
from fpgapipe.lowering.tiling.channels import EachStep, RowStep, channel_kernel, rows_kernel
from fpgapipe.lowering.tiling.elementwise import FlatStep, flat_kernel
from fpgapipe.lowering.tiling.kernel import Region, Tensor, VectorKernel

UNARY: Mapping[str, Mapping[str, Any]] = {
    "neg": {"negate_x": True},
    # Adding +0 turns -0 into +0.
    "abs": {
        "negate_x": True,
        "test": (Left.X, Outcome.LESS, Right.CONSTANT),
        "otherwise": Choice.X,
        "initial": Initial.CONSTANT,
    },
    **{
        function.name.lower(): {"function": function}
        for function in (
            Function.RECIPROCAL,
            Function.RSQRT,
            Function.SQRT,
            Function.EXP,
            Function.LOG,
            Function.TANH,
            Function.SIGMOID,
        )
    },
}
"""Functions of one tensor, with the settings of `VectorOp` for their single instruction."""

_TIMES: Mapping[str, Any] = {"factor": Factor.Y}

BINARY = ("add", "sub", "mul", "div", "max", "min")
"""Functions of two tensors."""


_BY_CHANNEL: Mapping[str, Mapping[str, Any]] = {
    "add": {"addend": Addend.COEFFICIENT},
    # k0 can only be added, so the difference is computed as -(row - x).
    "sub": {
        "negate_x": True,
        "addend": Addend.COEFFICIENT,
        "factor": Factor.CONSTANT,
        "constants": (Constant(), Constant(-1.0)),
    },
    "mul": {"factor": Factor.COEFFICIENT},
    "div": {"factor": Factor.COEFFICIENT},
}


def unary(name: str, function: str, x: Tensor, y: Tensor, region: Region) -> VectorKernel:
    """``y = function(x)``, for a function of `UNARY`."""
    return flat_kernel(
        name, {"x": x}, {"y": y}, [FlatStep("x", "y", None, UNARY[function])], region
    )


def binary(
    name: str, function: str, a: Tensor, b: Tensor, y: Tensor, region: Region
) -> VectorKernel:
    """``y = function(a, b)``, for a function of `BINARY`.

    A quotient is ``a`` times the reciprocal of ``b``. Its error may be two units in the last place,
    and it is zero where ``b`` is so large (from 2**126 on) that its reciprocal is zero. The maximum
    and the minimum are NaN if one of the numbers is NaN.
    """
    steps = {
        "add": [FlatStep("a", "y", "b", {"addend": Addend.Y})],
        "sub": [FlatStep("a", "y", "b", {"addend": Addend.Y, "negate_addend": True})],
        "mul": [FlatStep("a", "y", "b", _TIMES)],
        "div": [
            FlatStep("b", "work", None, UNARY["reciprocal"]),
            FlatStep("a", "y", "work", _TIMES),
        ],
        "max": _extreme(Outcome.GREATER),
        "min": _extreme(Outcome.LESS),
    }[function]
    return flat_kernel(
        name,
        {"a": a, "b": b},
        {"y": y},
        steps,
        region,
        temporaries={"work": FP32} if len(steps) > 1 else {},
    )


def _extreme(outcome: Outcome) -> list[FlatStep]:
    """Take ``a`` if it compares so with ``b`` or one is NaN; then take ``b`` if that is NaN."""
    kept = (Left.X, outcome | Outcome.UNORDERED, Right.Y)
    nan = (Left.Y, Outcome.UNORDERED, Right.Y)
    return [
        FlatStep("a", "work", "b", {"test": kept, "then": Choice.X, "otherwise": Choice.Y}),
        FlatStep("work", "y", "b", {"test": nan, "then": Choice.Y, "otherwise": Choice.X}),
    ]


def by_channel(
    name: str,
    function: str,
    x: Tensor,
    row: Tensor,
    y: Tensor,
    region: Region,
    *,
    factors: Tensor | None = None,
) -> list[VectorKernel]:
    """Compute ``y = function(x, row)``, where `row` has one number per channel.

    Parameters
    ----------
    name : str
    function : str
        ``add``, ``sub``, ``mul`` or ``div``; see `binary` for the accuracy of ``div``.
    x, row, y, region
    factors : Tensor, optional
        A small array of 2 rows, which ``mul`` and ``div`` write first and then read.
    """
    kernels = []
    coefficients = row
    if function in ("mul", "div"):
        if factors is None:
            raise ValueError(f"{function} by channels must have a place for factors, not none")
        # The factor is k1, the second row.
        made = UNARY["reciprocal"] if function == "div" else {}
        kernels.append(
            rows_kernel(
                f"{name}.factors",
                x.shape[-1],
                region,
                sources={"row": row},
                targets={"factors": factors},
                rows=[
                    RowStep(("row", 0), ("factors", 0)),
                    RowStep(("row", 0), ("factors", 1), settings=made),
                ],
            )
        )
        coefficients = factors
    step = EachStep("x", "y", None, "coefficients", _BY_CHANNEL[function])
    kernels.append(
        channel_kernel(
            name,
            positions_by_channels(x),
            region,
            sources={"x": x},
            steps=[step],
            targets={"y": y},
            small_sources={"coefficients": coefficients},
        )
    )
    return kernels
