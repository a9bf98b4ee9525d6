"""Products of matrices that are parts of tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.lowering.kernels.parts import Rows, copy_rows
from fpgapipe.lowering.kernels.products import OPERANDS, product_kernel
from fpgapipe.lowering.units.rounded_weights import product_of_weight

if TYPE_CHECKING:
    from fpgapipe.lowering.products.conv import ConvSpec, Pass
    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch
    from fpgapipe.lowering.units.rounded_weights import Repeats


@dataclass(frozen=True)
class Part:
    """A matrix within a tensor.

    Attributes
    ----------
    tensor : Tensor
    size : (int, int)
        Number of rows, and elements of each.
    place : Rows
        Where the rows lie.
    """

    tensor: Tensor
    size: tuple[int, int]
    place: Rows

    @classmethod
    def of(cls, tensor: Tensor, number: int, count: int) -> Part:
        """One of as many equal parts, which follow one another in memory."""
        size = tensor.elements // count
        return cls(tensor, (1, size), Rows(number * size, size))

    @classmethod
    def of_columns(cls, tensor: Tensor, number: int, count: int) -> Part:
        """One of as many equal parts of the columns of a matrix, the tensor's last axis."""
        pitch = tensor.shape[-1]
        width = pitch // count
        return cls(tensor, (tensor.elements // pitch, width), Rows(number * width, pitch))

    @property
    def offset_bytes(self) -> int | None:
        """Bytes in front of the matrix, if a product can have it where it is; else None."""
        rows, width = self.size
        offset = self.place.first * self.tensor.element_bytes
        pitch = self.place.pitch * self.tensor.element_bytes
        whole = rows == 1 or self.place.pitch == width or pitch % WORD_BYTES == 0
        return offset if whole and offset % WORD_BYTES == 0 else None

    @property
    def pitch(self) -> int | None:
        """Elements from one row to the next, if rows are apart; else None."""
        rows, width = self.size
        return None if rows == 1 or self.place.pitch == width else self.place.pitch


def multiply_parts(
    step: MicroBatch,
    name: str,
    conv: ConvSpec,
    which: Pass,
    parts: tuple[Part, Part, Part],
    *,
    is_weight: bool = False,
    repeats: Repeats | None = None,
) -> None:
    """Add the kernels of a pass of a convolution whose tensors are parts of others.

    What does not begin at a whole word of memory, or has rows that are apart and do not, is copied.
    So are the pixels of a packed convolution's input if they are apart.

    Parameters
    ----------
    step : MicroBatch
    name : str
    conv, which
        As for `product_kernel`.
    parts : tuple of Part
        Operands and result, in the order of `OPERANDS`.
    is_weight : bool
        Whether the result is a gradient of a parameter.
    repeats : Repeats, optional
        Place of the product among those with the same weight, which is the second operand.
    """
    tensors, offsets = [], []
    pitches: dict[str, Any] = {}
    roles = OPERANDS[which]
    for role, part in zip(roles, parts, strict=True):
        is_split = role == "x" and conv.is_packed and part.pitch is not None
        offset = None if is_split else part.offset_bytes
        offsets.append(offset or 0)
        if offset is not None:
            tensors.append(part.tensor)
            if part.pitch is not None:
                pitches[f"{role[-1]}_pitch"] = part.pitch
            continue
        rows, width = part.size
        own = step.tensor(f"{name}.{role}", (rows * width,), part.tensor.format)
        tensors.append(own)
        if role != roles[2]:
            kernel = copy_rows(
                f"{name}.{role}", part.tensor, own, part.size, part.place, Rows(0, width),
                step.region,
            )  # fmt: skip
            step.add(kernel, is_weight=is_weight)
    one, other, result = tensors
    placed = replace(conv, **pitches)
    if repeats is None:
        product = product_kernel(
            name, placed, which, (one, other, result), step.product_core, step.memory,
            step.product_region, offsets=tuple(offsets),
        )  # fmt: skip
    else:
        product = product_of_weight(
            step, name, placed, which, (one, other, result), repeats=repeats,
            offsets=tuple(offsets),
        )  # fmt: skip
    step.add(product, is_weight=is_weight)
    if result is not parts[2].tensor:
        place, size = parts[2].place, parts[2].size
        kernel = copy_rows(
            f"{name}.result", result, parts[2].tensor, size, Rows(0, size[1]), place, step.region
        )
        step.add(kernel, is_weight=is_weight)
