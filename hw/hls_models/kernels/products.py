"""Passes of convolutions and linear layers as kernels."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fpgapipe.hw.hls_models.blocking import Blocked, block
from fpgapipe.hw.hls_models.conv import ConvSpec, Pass
from fpgapipe.hw.hls_models.conv_parts import Formats
from fpgapipe.hw.hls_models.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.core_spec import CoreSpec
from fpgapipe.hw.hls_models.isa import Instruction
from fpgapipe.hw.hls_models.kernels.kernel import Tensor, Track

OPERANDS: dict[Pass, tuple[str, str, str]] = {
    "forward": ("x", "w", "y"),
    "input": ("dy", "w", "dx"),
    "weight": ("x", "dy", "dw"),
}
"""Names in `Blocked` of the two operands and of the result."""


@dataclass(frozen=True)
class ProductKernel:
    """A pass of a convolution.

    Attributes
    ----------
    name : str
    blocked : Blocked
    tensors : mapping of str to str
        Tensor of each of the names in `OPERANDS`.
    result : str
        Which of those names is written.
    """

    name: str
    blocked: Blocked
    tensors: Mapping[str, str]
    result: str

    @property
    def track(self) -> Track:
        """The GEMM engine."""
        return Track.GEMM

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
        return self.blocked.program(places)[:-1]


def product_kernel(
    name: str,
    conv: ConvSpec,
    which: Pass,
    tensors: tuple[Tensor, Tensor, Tensor],
    core: CoreSpec,
    memory: MemorySpec,
) -> ProductKernel:
    """Cut a pass of a convolution for a core.

    Parameters
    ----------
    name : str
    conv, which, core, memory
        As for `fpgapipe.hw.hls_models.blocking.block`.
    tensors : tuple of Tensor
        In the order of `OPERANDS`.

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
    blocked = block(conv, which, core, replace(Formats(), **sizes), memory)
    names = {role: tensor.name for role, tensor in zip(roles, tensors, strict=True)}
    return ProductKernel(name, blocked, names, roles[2])
