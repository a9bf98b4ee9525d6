"""Passes of convolutions and linear layers as kernels."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.isa.instructions import Instruction, Opcode
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.lowering.products.blocking import TiledProduct, block
from fpgapipe.lowering.products.conv import ConvSpec, Pass
from fpgapipe.lowering.products.conv_parts import Formats
from fpgapipe.lowering.tiling.kernel import Region, Tensor, Track

OPERANDS: dict[Pass, tuple[str, str, str]] = {
    "forward": ("x", "w", "y"),
    "input": ("dy", "w", "dx"),
    "weight": ("x", "dy", "dw"),
}
"""Names in `TiledProduct` of the two operands and of the result."""

FIRST_SEMAPHORES = (0, 11)
"""Of each lane, the first of the six that its products have."""


@dataclass(frozen=True)
class ProductKernel:
    """A pass of a convolution.

    Attributes
    ----------
    name : str
    tiled_product : Blocked
    tensors : mapping of str to str
        Tensor of each of the names in `OPERANDS`.
    result : str
        Which of those names is written.
    region : Region
        Its part of the scratchpad, and its lane, whose GEMM engine is the one of that number.
    """

    name: str
    tiled_product: TiledProduct
    tensors: Mapping[str, str]
    result: str
    region: Region

    @property
    def track(self) -> Track:
        """The GEMM engine of its lane."""
        return Track(Track.GEMM + 2 * self.region.lane)

    @property
    def reads(self) -> frozenset[str]:
        """The operands."""
        return frozenset(tensor for role, tensor in self.tensors.items() if role != self.result)

    @property
    def writes(self) -> frozenset[str]:
        """The result."""
        return frozenset((self.tensors[self.result],))

    def instructions(self, addresses: Mapping[str, int]) -> list[Instruction]:
        """See `Kernel`."""
        places = {role: addresses[tensor] for role, tensor in self.tensors.items()}
        program = self.tiled_product.program(places)[:-1]
        if not self.region.lane and not self.region.base:
            return program
        return [_moved(each, self.region) for each in program]


def _moved(instruction: Instruction, region: Region) -> Instruction:
    """An instruction of the first lane, from the scratchpad's beginning, in a region."""
    first = FIRST_SEMAPHORES[region.lane]
    wait, signal = (
        tuple(number + first for number in numbers)
        for numbers in (instruction.wait, instruction.signal)
    )
    body = dict(instruction.body)
    if instruction.opcode is not Opcode.GEMM:
        body["scratchpad"] += region.base
        return replace(instruction, wait=wait, signal=signal, body=body)
    for role in ("a", "b", "result"):
        body[role] = {**body[role], "base": body[role]["base"] + region.base}
    return replace(instruction, wait=wait, signal=signal, engine=region.lane, body=body)


def product_kernel(
    name: str,
    conv: ConvSpec,
    which: Pass,
    tensors: tuple[Tensor, Tensor, Tensor],
    core: CoreSpec,
    memory: MemorySpec,
    region: Region | None = None,
) -> ProductKernel:
    """Cut a pass of a convolution for a core.

    Parameters
    ----------
    name : str
    conv, which, core, memory
        As for `fpgapipe.lowering.products.blocking.block`.
    tensors : tuple of Tensor
        In the order of `OPERANDS`.
    region : Region, optional
        As large as the core's scratchpad; the first lane's, from its beginning, if left out.

    Raises
    ------
    NotImplementedError
        If no cut of the pass fits the core.
    """
    roles = OPERANDS[which]
    sizes = {
        {"dx": "x", "dy": "y"}.get(role, role): tensor.element_bytes
        for role, tensor in zip(roles, tensors, strict=True)
    }
    tiled_product = block(conv, which, core, replace(Formats(), **sizes), memory)
    names = {role: tensor.name for role, tensor in zip(roles, tensors, strict=True)}
    region = region or Region(0, core.scratchpad.size_bytes)
    return ProductKernel(name, tiled_product, names, roles[2], region)
