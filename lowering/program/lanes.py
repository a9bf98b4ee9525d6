"""Lanes of a program: what runs side by side, each on a GEMM engine of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.isa.instructions import Instruction, Opcode
from fpgapipe.hw.hls_models.spec.core_spec import ScratchpadSpec
from fpgapipe.lowering.kernels.products import ProductKernel
from fpgapipe.lowering.tiling.kernel import Region, VectorKernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.lowering.tiling.kernel import Kernel
    from fpgapipe.lowering.units.microbatch import LoweredKernel


@dataclass(frozen=True)
class Lane:
    """What a lane has of the scratchpad.

    Attributes
    ----------
    scratchpad : ScratchpadSpec
        As much as its products have.
    products, vectors : Region
        Where products and vectors have theirs.
    """

    scratchpad: ScratchpadSpec
    products: Region
    vectors: Region

    def taking(self, kernel: Kernel) -> Kernel:
        """A kernel of another lane in this one, whose parts are as large."""
        if isinstance(kernel, ProductKernel):
            return replace(kernel, region=self.products)
        assert isinstance(kernel, VectorKernel), f"{kernel.name} has no lane"
        return replace(kernel, region=self.vectors)


def lanes_of(whole: ScratchpadSpec, number: int) -> tuple[Lane, ...]:
    """Share a scratchpad of at least two banks among one or two lanes.

    Products have one half of it and vectors the other, each lane as much of both.
    """
    half = replace(whole, banks=whole.banks // 2)
    part = half
    if number > 1:
        few = half.banks == 1
        part = ScratchpadSpec(1 if few else half.banks // 2, half.bank_bytes // (1 + few))
    size = part.size_bytes
    return tuple(
        Lane(
            part,
            Region(lane * size, size, part.bank_bytes, lane, number),
            Region(half.size_bytes + lane * size, size, part.bank_bytes, lane, number),
        )
        for lane in range(number)
    )


def is_concurrent(program: Sequence[Instruction]) -> bool:
    """Whether a program has two lanes: products on several GEMM engines."""
    return any(each.opcode is Opcode.GEMM and each.engine > 0 for each in program)


def product_cycles(lowered: LoweredKernel) -> int:
    """Of a product, about; 0 if it is none."""
    kernel = lowered.kernel
    return kernel.tiled_product.prediction.cycles if isinstance(kernel, ProductKernel) else 0


def shared_out(
    backward: Sequence[LoweredKernel], forward_cycles: int, lane: Lane
) -> list[LoweredKernel]:
    """Give weight gradients to the forward passes' lane, so that both take about as long.

    A backward pass has about twice the products of a forward pass.

    Parameters
    ----------
    backward : sequence of Made
        Of a backward pass.
    forward_cycles : int
        Of the products that the forward passes' lane has beside it.
    lane : Lane
        That lane.
    """
    backward_cycles = sum(map(product_cycles, backward))
    given: set[str] = set()  # tensors
    for each in sorted(backward, key=product_cycles, reverse=True):
        cycles = product_cycles(each)
        if each.is_weight and cycles > 0 and forward_cycles + cycles < backward_cycles:
            forward_cycles += cycles
            backward_cycles -= cycles
            given |= each.kernel.writes
    return [
        each
        if given.isdisjoint(each.kernel.writes | each.kernel.reads)
        else replace(each, kernel=lane.taking(each.kernel))
        for each in backward
    ]
