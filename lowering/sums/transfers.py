"""Transfers of tensors over links, from one device to another, in parts."""

from collections.abc import Mapping
from dataclasses import dataclass

from fpgapipe.hw.hls_models.isa.instructions import Instruction, Opcode
from fpgapipe.hw.hls_models.isa.program import Program
from fpgapipe.hw.hls_models.model.link_dma import packet
from fpgapipe.hw.hls_models.spec.link import Channel
from fpgapipe.lowering.tiling.kernel import Tensor, Track

PART_BYTES = 4096
"""All parts of a tensor except the last have a multiple of this size."""

MAX_PARTS = 16
"""Largest number of parts of a tensor, for which a receiver's queue has room."""

_PART_BITS = 4


@dataclass(frozen=True)
class TransferKernel:
    """A tensor that is sent or received over a link.

    It is transferred in parts, so that the first parts are sent while the last are computed. Both
    ends must agree about channel, tag, size and parts.

    Parameters
    ----------
    name : str
    opcode : Opcode
        SEND or RECEIVE.
    link : int
        Number of the core's link.
    channel : Channel
    tensor : Tensor
    stream : int
        Tag, below 2**28, that identifies the tensor and the micro-batch; the ends compare it.
    parts : int
        Largest number of parts, 1 to `MAX_PARTS`; a small tensor has fewer.
    """

    name: str
    opcode: Opcode
    link: int
    channel: Channel
    tensor: Tensor
    stream: int
    parts: int = 8

    def __post_init__(self) -> None:
        if self.opcode not in (Opcode.SEND, Opcode.RECEIVE):
            raise ValueError(f"transfer opcode must be SEND or RECEIVE, not {self.opcode.name}")
        if not 1 <= self.parts <= MAX_PARTS:
            raise ValueError(f"transfer parts must be in 1..{MAX_PARTS}, not {self.parts!r}")
        if not 0 <= self.stream < 1 << (32 - _PART_BITS):
            raise ValueError(f"transfer stream must be below 2**28, not {self.stream!r}")

    @property
    def track(self) -> Track:
        """Track of the link's sender or receiver."""
        first = Track.SEND0 if self.opcode is Opcode.SEND else Track.RECEIVE0
        return Track(first + 2 * self.link)

    @property
    def first_tag(self) -> int:
        """Tag of the packet of the first part."""
        return self.stream << _PART_BITS

    @property
    def reads(self) -> frozenset[str]:
        """Name of the tensor if it is sent."""
        return frozenset((self.tensor.name,) if self.opcode is Opcode.SEND else ())

    @property
    def writes(self) -> frozenset[str]:
        """Name of the tensor if it is received."""
        return frozenset((self.tensor.name,) if self.opcode is Opcode.RECEIVE else ())

    def instructions(self, addresses: Mapping[str, int]) -> Program:
        """See `Kernel`."""
        size = self.tensor.size_bytes
        part_bytes = -(-size // (self.parts * PART_BYTES)) * PART_BYTES
        begin = addresses[self.tensor.name]
        return Program.of(
            Instruction(
                self.opcode,
                engine=self.link,
                body=packet(
                    begin + first,
                    min(part_bytes, size - first),
                    channel=self.channel,
                    stream=self.first_tag | number,
                ),
            )
            for number, first in enumerate(range(0, size, part_bytes))
        )
