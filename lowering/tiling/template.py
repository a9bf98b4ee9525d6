"""Instructions of a kernel whose tensors have no addresses yet."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.hw.hls_models.isa.program import Program

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.isa.instructions import Instruction


class Template:
    """A program whose tensors have no addresses yet.

    Parameters
    ----------
    instructions : iterable of Instruction
        Instructions whose memory addresses are relative to the beginnings of the tensors.
    tensors : sequence of str or None
        Name of the tensor of each instruction that is a transfer; None for the others.
    """

    def __init__(self, instructions: Iterable[Instruction], tensors: Sequence[str | None]) -> None:
        self.program = Program.of(instructions)
        self.tensors = tensors
        known = dict.fromkeys(each for each in tensors if each is not None)
        self._number_of: dict[str | None, int] = {each: n for n, each in enumerate(known)}
        numbers = [self._number_of.get(each, -1) for each in tensors]
        self._tensor_of = np.array(numbers, np.int64)

    def placed(self, addresses: Mapping[str, int], skipped: int = 0) -> Program:
        """Return the program for tensors at these byte addresses, which are multiples of 64.

        All programs of a template share the bodies of their instructions. Those that draw random
        numbers skip as many random vectors as `skipped` says.
        """
        begins = np.array([*(addresses[each] for each in self._number_of if each), 0], np.int64)
        numbers = self.program.numbers + begins[self._tensor_of]
        if skipped:
            numbers[self._drawing] += skipped
        return self.program.having(numbers=numbers)

    @cached_property
    def _drawing(self) -> NDArray[np.bool_]:
        """Whether each instruction draws random numbers."""
        return self.program.bodies.draws[self.program.body_of]
