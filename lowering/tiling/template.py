"""Instructions of a kernel whose tensors have no addresses yet."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from fpgapipe.hw.hls_models.isa.instructions import Instruction


@dataclass(frozen=True)
class Template:
    """A program whose tensors have no addresses yet.

    Attributes
    ----------
    instructions : list of Instruction
        Instructions whose memory addresses are relative to the beginnings of the tensors.
    tensors : list of str or None
        Name of the tensor of each instruction that is a transfer; None for the others.
    """

    instructions: list[Instruction]
    tensors: list[str | None]

    def placed(self, addresses: Mapping[str, int], skipped: int = 0) -> list[Instruction]:
        """Return the program for tensors at these byte addresses, which are multiples of 64.

        Instructions that are no transfers are the same objects in all programs of a template, but
        for those that draw random numbers, which skip as many random vectors as `skipped` says.
        """
        found = [
            each if tensor is None else each.moved(addresses[tensor])
            for each, tensor in zip(self.instructions, self.tensors, strict=True)
        ]
        for place in self._drawing if skipped else ():
            found[place] = found[place].skipping(skipped)
        return found

    @cached_property
    def _drawing(self) -> list[int]:
        """Places of the instructions that draw random numbers."""
        return [place for place, each in enumerate(self.instructions) if each.body.get("is_random")]
