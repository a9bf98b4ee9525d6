"""Products by their definition: the order of sums that docs/numbers.md states, in plain numpy.

`check` runs a product of a program in the bit-exact model, once as it is tiled and once in many
pieces, and compares all bits with the definition. The operands are of many magnitudes, so that
sums in another order are rounded to other numbers. This module knows nothing of tilings, patterns
and instructions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.numerics.element_format import BF16
from fpgapipe.hw.hls_models.numerics.mx import MX_BLOCK, dequantise, quantise
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec
from fpgapipe.lowering.kernels import products
from fpgapipe.lowering.products.conv import ConvSpec, Pass
from fpgapipe.lowering.products.conv_parts import Formats, Tiling
from fpgapipe.lowering.products.conv_passes import operations
from fpgapipe.lowering.products.emit import rings_of
from fpgapipe.lowering.products.tiled_product import TiledProduct, tile_product
from fpgapipe.lowering.program.layer_program import LayerProgram, place, random_operands

Array = NDArray[Any]

MOST_WORK = 2_000_000
"""Most multiply-accumulates of a product that is compared."""

Product = tuple[ConvSpec, Pass, Formats]


@contextmanager
def recorded() -> Iterator[dict[Product, TiledProduct]]:
    """Tilings of the programs that are built inside."""
    found: dict[Product, TiledProduct] = {}

    def record(
        conv: ConvSpec, which: Pass, core: CoreSpec, formats: Formats, *more: Any, **named: Any
    ) -> TiledProduct:
        tiled = tile_product(conv, which, core, formats, *more, **named)
        if which != "rounding":
            found[conv, which, formats] = tiled
        return tiled

    with patch.object(products, "tile_product", record):
        yield found


def check(product: Product, tiled: TiledProduct, core: CoreSpec, seed: int = 0) -> str:
    """Say where a product's bits are not those of its definition; empty if they are."""
    given, which, formats = product
    if given.macs > MOST_WORK:
        return ""
    conv = replace(given, x_pitch=None, w_pitch=None, y_pitch=None)
    alone = replace(core, links=())
    roomy = replace(alone, acc_depth=1 << 12, scratchpad=ScratchpadSpec(4, 1 << 20))
    cases = [(roomy, Tiling(32, 1, MX_BLOCK), None)]
    if conv == given:
        cases.append((alone, tiled.tiling, tiled))
    for runs_on, tiling, as_it_is in cases:
        pieces = as_it_is or _tiled(conv, which, runs_on, formats, tiling)
        program = place(conv, which, formats, pieces)
        operands = wide_operands(program, seed)
        memory = program.image(operands)
        CoreModel(runs_on, memory).run(program.instructions)
        found = program.result.decode(memory)
        expected = in_order(conv, which, operands, core.rows)
        if program.result.format is BF16:
            expected = BF16.decode(BF16.encode(expected), expected.shape)
        apart = found.view(np.uint32) != (expected + np.float32(0)).view(np.uint32)
        apart &= (found != 0) | (expected != 0)  # zeros of either sign
        if apart.any():
            return (
                f"{np.count_nonzero(apart)} of {apart.size} results of the {which} pass of {conv} "
                f"have other bits than sums in the documented order ({tiling})"
            )
    return ""


def _tiled(
    conv: ConvSpec, which: Pass, core: CoreSpec, formats: Formats, tiling: Tiling
) -> TiledProduct:
    """A product in pieces of a size."""
    ops = tuple(operations(conv, which, core, tiling, formats))
    rings = next(rings_of(ops, core.scratchpad))
    return TiledProduct(tiling, ops, rings, core, MemorySpec())


def wide_operands(program: LayerProgram, seed: int) -> dict[str, Array]:
    """Values of which blocks differ in their scale, as the program's formats hold them."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, values in random_operands(program, seed).items():
        scales = [np.exp2(rng.integers(-6, 7, size)) for size in values.shape]
        for axis, scale in enumerate(scales):
            shape = [1] * values.ndim
            shape[axis] = -1
            values = values * scale.reshape(shape)
        kept = program.tensors[name].format
        found[name] = kept.decode(kept.encode(values.astype(np.float32)), values.shape)
    return found


# ------------------------------------------------------------------------- the definition


def in_order(conv: ConvSpec, which: Pass, operands: Mapping[str, Array], rows: int) -> Array:
    """A pass in FP32, its sums in the documented order.

    Parameters
    ----------
    conv, which
        The pass.
    operands : mapping of str to float32 array
        Tensors with the channels last.
    rows : int
        Rows of the array.
    """
    padded = np.zeros(
        (conv.batch, conv.h + conv.pad[0] + conv.pad[2], conv.w + conv.pad[1] + conv.pad[3],
         conv.cin), np.float32,
    )  # fmt: skip
    inside = padded[
        :, conv.pad[0] : conv.pad[0] + conv.h, conv.pad[1] : conv.pad[1] + conv.w
    ]  # fmt: skip
    if which == "input":
        gradient, weight = operands["dy"], operands["w"]
        for block in _blocks(conv.cout):
            for ty, tx in np.ndindex(*conv.kernel):
                target = padded[_window(conv, ty, tx)]
                _add(target, gradient[..., block], weight[block, ty, tx].T, rows)
        return np.array(inside)
    inside[:] = operands["x"]
    if which == "weight":
        gradient = operands["dy"].reshape(-1, conv.cout)
        sums = np.zeros((conv.cout, *conv.kernel, conv.cin), np.float32)
        size = len(gradient) // conv.segments
        for ty, tx in np.ndindex(*conv.kernel):
            seen = padded[_window(conv, ty, tx)].reshape(-1, conv.cin)
            for first in range(0, len(gradient), size):
                for block in _blocks(size, first):
                    _add(sums[:, ty, tx], gradient[block].T, seen[block].T, rows)
        return sums
    sums = np.zeros((conv.batch, conv.oh, conv.ow, conv.cout), np.float32)
    if conv.is_packed:
        for ty in range(conv.kernel[0]):
            across = [padded[_window(conv, ty, tx)] for tx in range(conv.kernel[1])]
            row = np.concatenate(across, axis=-1)
            weight = operands["w"][:, ty].reshape(conv.cout, -1)
            for block in _blocks(conv.depth):
                _add(sums, row[..., block], weight[:, block], rows)
        return sums
    for block in _blocks(conv.cin):
        for ty, tx in np.ndindex(*conv.kernel):
            seen = padded[_window(conv, ty, tx)]
            _add(sums, seen[..., block], operands["w"][:, ty, tx, block], rows)
    return sums


def _window(conv: ConvSpec, ty: int, tx: int) -> tuple[slice, ...]:
    """Positions of the padded image that a tap meets, one for each output."""
    spans = []
    for tap, axis, count in ((ty, 0, conv.oh), (tx, 1, conv.ow)):
        first, stride = tap * conv.dilation[axis], conv.stride[axis]
        spans.append(slice(first, first + (count - 1) * stride + 1, stride))
    return slice(None), *spans


def _blocks(size: int, first: int = 0) -> list[slice]:
    """Blocks of a reduction of so many elements from the first on."""
    end = first + size
    return [slice(at, min(at + MX_BLOCK, end)) for at in range(first, end, MX_BLOCK)]


def _add(sums: Array, a: Array, b: Array, rows: int) -> None:
    """Add the products of a block of two operands, whose last axis is the reduction's.

    `a` has the axes of `sums` but the last; `b` has its last one.
    """
    size = a.shape[-1]
    a, b = _rounded(a), _rounded(b)
    for first in range(0, size, rows):
        part = slice(first, min(first + rows, size))
        # Products of integers of 7 bits times powers of two: exact in FP64.
        sums += (a[..., part] @ b[..., part].T).astype(np.float32)


def _rounded(block: Array) -> Array:
    """A block as MXINT8 holds it."""
    whole = np.zeros((*block.shape[:-1], MX_BLOCK), np.float32)
    whole[..., : block.shape[-1]] = block
    return dequantise(*quantise(whole))
