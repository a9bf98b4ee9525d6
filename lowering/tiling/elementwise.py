"""Operators that treat every element for itself, wherever it stands."""

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
from fpgapipe.lowering.tiling.kernel import (
    Buffer,
    Move,
    Piece,
    Region,
    Step,
    Tensor,
    VectorKernel,
)
from fpgapipe.lowering.tiling.tile import Tile, tile_of

FEW_ELEMENTS, MANY_ELEMENTS = 1 << 13, 1 << 15
"""Of a piece: enough to hide what an instruction costs, few enough to overlap with transfers."""

LEAST_ELEMENTS = 32
"""Whole words of BF16, and whole vectors."""

UNIT_ELEMENTS = 1 << 10
"""Pieces have a multiple of these: whole words, and whole vectors of random numbers."""


@dataclass(frozen=True)
class FlatStep:
    """An instruction on all elements of a piece.

    Attributes
    ----------
    x, target : str
        Names of sources, targets or temporaries.
    y : str or None
    settings : mapping
        Further arguments of `VectorOp`.
    coefficients : str or None
        A tensor of 16 numbers, which is each of k0..k3.
    """

    x: str
    target: str
    y: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    coefficients: str | None = None


def flat_tile(tensor: Tensor, first: int, number: int) -> Tile:
    """Elements of a tensor that lie one after the other."""
    size = tensor.element_bytes
    return tile_of(tensor.name, first * size, number * size, [])


def piece_elements(total: int, most: int, unit: int = UNIT_ELEMENTS) -> int:
    """Elements of a piece of a tensor.

    Parameters
    ----------
    total : int
        Of the tensor.
    most : int
        That fit on chip.
    unit : int
        The result is a multiple of this, or of 32 if no unit fits.
    """
    wanted = min(max(-(-total // 8), FEW_ELEMENTS), MANY_ELEMENTS, most)
    unit = unit if wanted >= unit else LEAST_ELEMENTS
    return max(wanted // unit, 1) * unit


def flat_kernel(
    name: str,
    sources: Mapping[str, Tensor],
    targets: Mapping[str, Tensor],
    steps: Sequence[FlatStep],
    region: Region,
    temporaries: Mapping[str, int] | None = None,
    coefficients: Mapping[str, Tensor] | None = None,
) -> VectorKernel:
    """Make a kernel that runs the same steps over all elements of some tensors.

    Parameters
    ----------
    name : str
    sources, targets : mapping of str to Tensor
        Under the names by which steps call them, no name in both; all have the same number of
        elements.
    steps : sequence of FlatStep
    region : Region
    temporaries : mapping of str to int
        Further names, and the bytes of their elements.
    coefficients : mapping of str to Tensor
        Under further names, tensors of 16 numbers, FP32, that are loaded before all else.

    Raises
    ------
    ValueError
        If the region is too small for a piece.
    """
    coefficients = coefficients or {}
    sizes = {name: tensor.element_bytes for name, tensor in (*sources.items(), *targets.items())}
    sizes |= temporaries or {}
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
                steps=tuple(_flat_step(step, sizes, first, count) for step in steps),
                stores=tuple(Move(flat_tile(t, first, count), n) for n, t in targets.items()),
            )
        )
    buffers = {name: Buffer(number * size) for name, size in sizes.items()}
    buffers |= {name: Buffer(VECTOR_BYTES, kept=True) for name in coefficients}
    return VectorKernel(name, buffers, tuple(pieces), region)


def _flat_step(step: FlatStep, sizes: Mapping[str, int], first: int, count: int) -> Step:
    settings = dict(step.settings)
    if isinstance(settings.get("test"), Random):
        # Random numbers belong to elements, however these are cut into pieces.
        drawn = settings["test"]
        settings["test"] = replace(drawn, first=drawn.first + first // LANES)

    def along(name: str) -> dict[str, Any]:
        return {
            "base": 0,
            "steps": (LANES * sizes[name],),
            "u_steps": (LANES,),
            "u_limit": count,
            "format": Format.of(sizes[name]),
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
