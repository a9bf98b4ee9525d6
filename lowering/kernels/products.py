"""Passes of convolutions and linear layers as kernels."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.isa.instructions import Opcode
from fpgapipe.hw.hls_models.isa.program import Bodies, Program
from fpgapipe.hw.hls_models.isa.shared_fields import SharedFields
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.lowering.products.conv import ConvSpec, Pass
from fpgapipe.lowering.products.conv_parts import Formats
from fpgapipe.lowering.products.tiled_product import TiledProduct, tile_product
from fpgapipe.lowering.tiling.kernel import Region, Tensor, Track
from fpgapipe.lowering.tiling.template import Template

OPERANDS: dict[Pass, tuple[str, str, str]] = {
    "forward": ("x", "w", "y"),
    "input": ("dy", "w", "dx"),
    "weight": ("x", "dy", "dw"),
    "rounding": ("dy", "w", "dx"),
}
"""Names, in `TiledProduct`, of the two operands and of the result."""

STATIONARY = "w"
"""Name of the stationary operand of the passes that are repeated."""

FIRST_SEMAPHORES = (0, 11)
"""First of the six semaphores that the products of each lane have."""


@dataclass(frozen=True)
class ProductKernel:
    """A pass of a convolution as a kernel.

    Attributes
    ----------
    name : str
    tiled_product : TiledProduct
    tensors : mapping of str to str
        Name of the tensor for each of the names in `OPERANDS`.
    result : str
        The one of those names whose tensor is written.
    region : Region
        Part of the scratchpad for the product. Its lane is the number of the GEMM engine.
    offsets : mapping of str to int
        For names in `OPERANDS`, bytes from the beginning of the tensor to that of the matrix.
    is_repeat : bool
        Whether the kernel before it in its track has the same tiles of the same stationary operand,
        which are still on chip.
    """

    name: str
    tiled_product: TiledProduct
    tensors: Mapping[str, str]
    result: str
    region: Region
    offsets: Mapping[str, int] = field(default_factory=dict)
    is_repeat: bool = False

    @property
    def track(self) -> Track:
        """Track of the GEMM engine of the kernel's lane."""
        return Track(Track.GEMM + 2 * self.region.lane)

    def follows(self, other: object) -> bool:
        """Whether what another kernel leaves on chip is what this one, a repeat, finds there."""
        if not isinstance(other, ProductKernel):
            return False
        return (
            other.tiled_product is self.tiled_product
            and other.region == self.region
            and other.tensors.get(STATIONARY) == self.tensors[STATIONARY]
            and other.offsets.get(STATIONARY, 0) == self.offsets.get(STATIONARY, 0)
        )

    @property
    def reads(self) -> frozenset[str]:
        """Names of the operands' tensors."""
        return frozenset(tensor for role, tensor in self.tensors.items() if role != self.result)

    @property
    def writes(self) -> frozenset[str]:
        """Name of the result's tensor."""
        return frozenset((self.tensors[self.result],))

    def instructions(self, addresses: Mapping[str, int]) -> Program:
        """See `Kernel`."""
        places = {
            role: addresses[tensor] + self.offsets.get(role, 0)
            for role, tensor in self.tensors.items()
        }
        template = self.tiled_product.template(is_repeat=self.is_repeat)
        return _in_region(template, self.region).placed(places)[:-1]


@lru_cache(maxsize=1 << 10)
def _in_region(template: Template, region: Region) -> Template:
    """Move a product from the first lane and the scratchpad's beginning to a region."""
    if not region.lane and not region.base:
        return template
    program, first = template.program, FIRST_SEMAPHORES[region.lane]
    moved = program.having(
        engines=np.where(program.opcodes == Opcode.GEMM, region.lane, program.engines),
        waits=program.waits << first,
        signals=program.signals << first,
        bodies=Bodies([_moved(each, region.base) for each in program.bodies]),
    )
    return Template(moved, template.tensors)


def _moved(body: Mapping[str, Any], base: int) -> Mapping[str, Any]:
    """Move what an instruction reads and writes on chip by some bytes."""
    if "scratchpad" in body:
        return {**body, "scratchpad": body["scratchpad"] + base}
    bases = {
        role: {**body[role], "base": body[role]["base"] + base}
        for role in ("a", "b", "result")
        if role in body
    }
    return SharedFields({**body, **bases})


def product_kernel(
    name: str,
    conv: ConvSpec,
    which: Pass,
    tensors: tuple[Tensor, Tensor, Tensor],
    core: CoreSpec,
    memory: MemorySpec,
    region: Region | None = None,
    *,
    offsets: tuple[int, ...] = (0, 0, 0),
    is_repeated: bool = False,
) -> ProductKernel:
    """Tile a pass of a convolution for a core.

    Parameters
    ----------
    name : str
    conv, which, core, memory
        As for `fpgapipe.lowering.products.tiled_product.tile_product`.
    tensors : tuple of Tensor
        Operands and result, in the order of `OPERANDS`.
    region : Region, optional
        Region as large as the core's scratchpad; if left out, it is the first lane's and begins at
        0.
    offsets : tuple of int
        Bytes from the beginning of each tensor to that of its operand or result, multiples of 64.
    is_repeated : bool
        Whether the second operand is to stay on chip for kernels that follow.

    Raises
    ------
    NotImplementedError
        If no tiling of the pass fits the core.
    """
    roles = OPERANDS[which]
    formats = {
        {"dx": "x", "dy": "y"}.get(role, role): tensor.format
        for role, tensor in zip(roles, tensors, strict=True)
    }
    alone = replace(core, links=())  # cores that differ in their links share tilings
    tiled_product = tile_product(
        conv, which, alone, replace(Formats(), **formats), memory, is_repeated=is_repeated
    )
    names = {role: tensor.name for role, tensor in zip(roles, tensors, strict=True)}
    region = region or Region(0, core.scratchpad.size_bytes)
    places = {role: offset for role, offset in zip(roles, offsets, strict=True) if offset}
    return ProductKernel(name, tiled_product, names, roles[2], region, places)
