"""Lanes of a program: sequences of kernels that run concurrently, each on its own GEMM engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.isa.instructions import Opcode
from fpgapipe.hw.hls_models.isa.program import Program
from fpgapipe.hw.hls_models.spec.core_spec import ScratchpadSpec
from fpgapipe.lowering.kernels.products import ProductKernel
from fpgapipe.lowering.tiling.kernel import Region, VectorKernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.tiling.kernel import Kernel
    from fpgapipe.lowering.units.microbatch import LoweredKernel


@dataclass(frozen=True)
class EngineLane:
    """The part of the scratchpad that belongs to a lane.

    Attributes
    ----------
    scratchpad : ScratchpadSpec
        Scratchpad as large as the part for the lane's products.
    products, vectors : Region
        Parts of the scratchpad for products and for vector operations.
    """

    scratchpad: ScratchpadSpec
    products: Region
    vectors: Region

    def taking(self, kernel: Kernel) -> Kernel:
        """Move a kernel of another lane into this one, whose parts must be as large."""
        if isinstance(kernel, ProductKernel):
            return replace(kernel, region=self.products)
        assert isinstance(kernel, VectorKernel), f"{kernel.name} has no lane"
        return replace(kernel, region=self.vectors)


def core_lanes(core: CoreSpec, count: int) -> tuple[EngineLane, ...]:
    """The lanes of a core's programs; see `lanes_of`.

    Raises
    ------
    UserError
        If the core has no vector engine, or too few banks.
    """
    if core.vector is None:
        raise UserError("a training step needs a core with a vector engine")
    if core.scratchpad.banks < 2:
        raise UserError(
            f"a training step needs at least 2 banks of scratchpad, not {core.scratchpad.banks}"
        )
    return lanes_of(core.scratchpad, count)


def lanes_of(whole: ScratchpadSpec, number: int) -> tuple[EngineLane, ...]:
    """Divide a scratchpad of at least two banks among one or two lanes.

    Products get one half of it and vector operations the other; the lanes share each half equally.
    """
    half = replace(whole, banks=whole.banks // 2)
    part = half
    if number > 1:
        few = half.banks == 1
        part = replace(
            half, banks=1 if few else half.banks // 2, bank_bytes=half.bank_bytes // (1 + few)
        )
    size = part.size_bytes
    return tuple(
        EngineLane(
            part,
            Region(lane * size, size, part.bank_bytes, lane, number),
            Region(half.size_bytes + lane * size, size, part.bank_bytes, lane, number),
        )
        for lane in range(number)
    )


def is_concurrent(program: Program) -> bool:
    """Whether a program has two lanes, that is, products on several GEMM engines."""
    return bool(program.engines[program.places_of(Opcode.GEMM)].any())


def product_cycles(lowered: LoweredKernel) -> int:
    """Estimated cycles of a product; 0 for other kernels."""
    kernel = lowered.kernel
    return kernel.tiled_product.prediction.cycles if isinstance(kernel, ProductKernel) else 0


def balance_lanes(
    backward: Sequence[LoweredKernel], forward_cycles: int, lane: EngineLane
) -> list[LoweredKernel]:
    """Move weight gradients to the forward lane until both lanes take about equally long.

    A backward pass has about twice as many products as a forward pass.

    Parameters
    ----------
    backward : sequence of LoweredKernel
        Kernels of a backward pass.
    forward_cycles : int
        Cycles of the products that run concurrently in the forward lane.
    lane : EngineLane
        The forward lane.
    """
    backward_cycles = sum(map(product_cycles, backward))
    given: set[str] = set()  # tensors that the moved kernels write
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
