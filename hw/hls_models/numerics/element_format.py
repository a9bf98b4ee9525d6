"""Formats of a tensor's elements in memory, in the scratchpad and on links.

Another format is added here: its size, and how its values become bytes. The engines that take it
are named with their instructions (:mod:`fpgapipe.hw.hls_models.isa.vector_fields`).
"""

from __future__ import annotations

from enum import Enum
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.hw.hls_models.numerics import fp32, mx

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class ElementFormat(Enum):
    """How the elements of a tensor are encoded.

    Elements of FP32 and BF16 stand alone. Those of MXINT8 come in blocks along the last axis, each
    with a scale of its own; the last block of a row is filled with zeros.
    """

    FP32 = "FP32"
    BF16 = "BF16"
    MXINT8 = "MXINT8"

    def __repr__(self) -> str:
        """The format as one writes it in Python."""
        return str(self)

    @property
    def element_bytes(self) -> int:
        """Distance in bytes from one element to the next; those of a block of MXINT8 have 1."""
        return {"FP32": 4, "BF16": 2, "MXINT8": 1}[self.value]

    @property
    def block(self) -> int:
        """Number of elements that are encoded together."""
        return mx.MX_BLOCK if self is MXINT8 else 1

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, its scale included."""
        return mx.BLOCK_BYTES if self is MXINT8 else self.element_bytes

    @property
    def has_blocks(self) -> bool:
        """Whether several elements share a scale."""
        return self.block > 1

    def size_bytes(self, shape: Sequence[int]) -> int:
        """Bytes of a tensor of a shape; the blocks lie along the last axis."""
        *rows, width = shape or (1,)
        return prod(rows) * -(-width // self.block) * self.block_bytes

    def encode(self, values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Bytes of an array of any shape, rounded to the format.

        Raises
        ------
        TypeError
            If `values` does not hold float32.
        """
        if values.dtype != np.float32:
            raise TypeError(f"elements must be float32, not {values.dtype}")
        if self is FP32:
            return np.ascontiguousarray(values).reshape(-1).astype("<f4").view(np.uint8)
        if self is BF16:
            flat = np.ascontiguousarray(values).reshape(-1)
            return fp32.to_bf16(flat).astype("<u2").view(np.uint8)
        width = values.shape[-1]
        padding = [(0, 0)] * (values.ndim - 1) + [(0, -width % self.block)]
        padded = np.pad(values, padding).reshape(-1, self.block)
        return mx.pack(padded).reshape(-1)

    def decode(self, raw: NDArray[np.uint8], shape: Sequence[int]) -> NDArray[np.float32]:
        """Values of a tensor of a shape from its bytes: the inverse of `encode`, but for rounding.

        Raises
        ------
        ValueError
            If the number of bytes is not that of the shape.
        """
        expected = self.size_bytes(shape)
        if raw.size != expected:
            raise ValueError(
                f"{self.value} of {tuple(shape)} must be {expected} bytes, not {raw.size}"
            )
        raw = np.ascontiguousarray(raw)
        if self is FP32:
            return raw.view("<f4").reshape(shape)
        if self is BF16:
            return fp32.from_bf16(raw.view("<u2")).reshape(shape)
        *rows, width = shape
        values = mx.unpack(raw.reshape(-1, self.block_bytes))
        return np.ascontiguousarray(values.reshape(*rows, -1)[..., :width])


FP32, BF16, MXINT8 = ElementFormat.FP32, ElementFormat.BF16, ElementFormat.MXINT8
