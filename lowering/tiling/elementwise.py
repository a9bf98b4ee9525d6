"""Kernels of operators that process each element alone, whatever its position."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.isa.vector_fields import NUM_COEFFICIENTS, Format
from fpgapipe.hw.hls_models.isa.vector_op import (
    LANES,
    VECTOR_BYTES,
    Coefficients,
    Random,
    Source,
    Target,
    VectorOp,
)
from fpgapipe.hw.hls_models.numerics.element_format import ElementFormat
from fpgapipe.lowering.tiling.kernel import (
    Buffer,
    Move,
    Piece,
    Region,
    Step,
    Tensor,
    VectorKernel,
)
from fpgapipe.lowering.tiling.once import made_once
from fpgapipe.lowering.tiling.tile import Tile, tile_of

FEW_ELEMENTS, MANY_ELEMENTS = 1 << 13, 1 << 15
"""Least and most elements of a piece.

There are enough to hide the overhead of an instruction, and few enough to overlap with transfers.
"""

LEAST_ELEMENTS = 32
"""Least number of elements that fill whole words of BF16 and whole vectors."""

UNIT_ELEMENTS = 1 << 10
"""Divisor of a piece's number of elements: whole words and whole vectors of random numbers."""


@dataclass(frozen=True)
class FlatStep:
    """An instruction that processes all elements of a piece.

    Attributes
    ----------
    x, target : str
        Names of source and target, which may be temporaries.
    y : str or None
        Name of the second source.
    settings : mapping
        Further arguments of `VectorOp`.
    coefficients : str or None
        Name of a tensor of 16 numbers that serves as each of k0..k3.
    """

    x: str
    target: str
    y: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    coefficients: str | None = None


def flat_tile(tensor: Tensor, first: int, number: int) -> Tile:
    """Tile of contiguous elements of a tensor."""
    size = tensor.element_bytes
    return tile_of(tensor.name, first * size, number * size, [])


def piece_elements(total: int, most: int, unit: int = UNIT_ELEMENTS) -> int:
    """Number of elements of a piece of a tensor.

    Parameters
    ----------
    total : int
        Elements of the tensor.
    most : int
        Elements that fit on chip.
    unit : int
        Divisor of the result; it is 32 instead if a piece cannot have so many elements.
    """
    wanted = min(max(-(-total // 8), FEW_ELEMENTS), MANY_ELEMENTS, most)
    unit = unit if wanted >= unit else LEAST_ELEMENTS
    return max(wanted // unit, 1) * unit


@made_once
def flat_kernel(
    name: str,
    sources: Mapping[str, Tensor],
    targets: Mapping[str, Tensor],
    steps: Sequence[FlatStep],
    region: Region,
    temporaries: Mapping[str, ElementFormat] | None = None,
    coefficients: Mapping[str, Tensor] | None = None,
) -> VectorKernel:
    """Build a kernel that runs the same steps on all elements of some tensors.

    Parameters
    ----------
    name : str
    sources, targets : mapping of str to Tensor
        Tensors by the names that the steps use. No name is in both mappings, and all tensors have
        the same number of elements.
    steps : sequence of FlatStep
    region : Region
    temporaries : mapping of str to ElementFormat
        Names of temporaries, with their formats.
    coefficients : mapping of str to Tensor
        FP32 tensors of 16 numbers by further names; they are loaded before everything else.

    Raises
    ------
    ValueError
        If the region is too small for a piece.
    """
    coefficients = coefficients or {}
    formats = {name: tensor.format for name, tensor in (*sources.items(), *targets.items())}
    formats |= temporaries or {}
    sizes = {name: each.element_bytes for name, each in formats.items()}
    (total,) = {tensor.elements for tensor in (*sources.values(), *targets.values())}
    per_element = 2 * sum(sizes.values())
    fixed = 2 * WORD_BYTES * len(sizes) + WORD_BYTES * len(coefficients)
    most = (region.size_bytes - fixed) // per_element
    number = min(piece_elements(total, most), total)
    pieces = []
    for first in range(0, total, number):
        count = min(number, total - first)
        once = [Move(flat_tile(t, 0, LANES), n) for n, t in coefficients.items() if first == 0]
        loads = [Move(flat_tile(t, first, count), n) for n, t in sources.items()]
        pieces.append(
            Piece(
                loads=(*once, *loads),
                steps=tuple(flat_step(step, formats, first, count) for step in steps),
                stores=tuple(Move(flat_tile(t, first, count), n) for n, t in targets.items()),
            )
        )
    buffers = {name: Buffer(number * size) for name, size in sizes.items()}
    buffers |= {name: Buffer(VECTOR_BYTES, kept=True) for name in coefficients}
    return VectorKernel(name, buffers, tuple(pieces), region)


def flat_step(step: FlatStep, formats: Mapping[str, ElementFormat], first: int, count: int) -> Step:
    """The instruction for `count` elements from the first on, in buffers of their own."""
    settings = dict(step.settings)
    if isinstance(settings.get("test"), Random):
        # Random numbers belong to elements, independently of the division into pieces.
        drawn = settings["test"]
        settings["test"] = replace(drawn, first=drawn.first + first // LANES)

    def along(name: str) -> dict[str, Any]:
        return {
            "base": 0,
            "steps": (LANES * formats[name].element_bytes,),
            "u_steps": (LANES,),
            "u_limit": count,
            "format": Format.of(formats[name]),
        }

    op = VectorOp(
        counts=(-(-count // LANES),),
        x=Source(**along(step.x)),
        y=Source(**along(step.y)) if step.y else None,
        target=Target(**along(step.target)),
        coefficients=Coefficients(0, 0, 0, NUM_COEFFICIENTS if step.coefficients else 0),
        **settings,
    )
    return Step(op, step.x, step.target, step.y, step.coefficients)
