"""The order in which programs add up the sums of blocks of a matrix product, read from them.

The products of a block's elements are added up exactly. A convolution whose channels do not lie on
chip together adds up all taps of some channels before it goes on to the next ones, so the tiling
that a program has decides the order. With one tap, and in the gradient of the weight, the order is
that of the blocks whatever the tiling.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.isa.address import LoopNest
from fpgapipe.hw.hls_models.isa.instructions import Opcode
from fpgapipe.hw.hls_models.numerics.mx import MX_BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fpgapipe.lowering.program.device_program import DeviceProgram, KernelOrigin

_PRODUCT = re.compile(r"(.+)\.(?:forward|input)(?:\.\d+)?")
"""Names of the kernels of a layer's products, but for those of gradients of weights."""


@dataclass(frozen=True)
class SumOrder:
    """How a convolution's products add up the blocks of their reductions.

    Parameters
    ----------
    rows : int
        Rows of the array: elements of a block whose products are added up exactly.
    forward, input : tuple of int
        Blocks of channels in each piece of the reduction of the forward pass and of the input
        gradient, all of whose taps come before the next piece's; one piece if left out.
    """

    rows: int = MX_BLOCK
    forward: tuple[int, ...] = ()
    input: tuple[int, ...] = ()


def sum_orders(programs: Iterable[DeviceProgram]) -> dict[str, list[SumOrder]]:
    """Orders of the products of layers, by name: one for each device that computes the layer.

    A unit of several layers has an order under the name of its last one, too.
    """
    found: dict[str, list[SumOrder]] = {}
    for program in programs:
        own: dict[str, SumOrder] = {}
        plain = SumOrder(program.core.rows)
        for kernel, is_input, pieces in _products(program):
            own.setdefault(kernel.layer, plain)
            if name := _PRODUCT.fullmatch(kernel.name):
                order = own.get(name[1], plain)
                own[name[1]] = (
                    replace(order, input=pieces) if is_input else replace(order, forward=pieces)
                )
        for layer, order in own.items():
            found.setdefault(layer, []).append(order)
    return found


def _products(program: DeviceProgram) -> Iterator[tuple[KernelOrigin, bool, tuple[int, ...]]]:
    """Kernel, whether it is an input gradient, and pieces of each kind of product."""
    known: set[tuple[str, bool]] = set()
    begun: dict[int, list[int]] = {}
    # END belongs to no kernel.
    for number, instruction in zip(program.kernel_of, program.instructions, strict=False):
        if instruction.opcode is not Opcode.GEMM:
            continue
        body, kernel = instruction.body, program.kernels[number]
        key = kernel.name, bool(body["b"]["transposed"])
        if key in known:
            continue
        pieces = begun.setdefault(number, [])
        pieces.append(LoopNest.decoded(body["a"]["tap"]).loops[0].count)
        if body["extent"]["last"]:
            known.add(key)
            yield kernel, key[1], tuple(pieces)
