"""Arenas: tensors that hold some value of all trainable parameters, one after the other.

One kernel can thus update all parameters. Parameters whose gradients are added up over several
devices come first, in the order of `lowering.program.share.Summed`. A parameter whose
gradient is not kept (`lowering.units.late_gradients`) lies behind the others, so that the arena of
the gradients ends before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.lowering.memory.layout import Own
from fpgapipe.lowering.memory.placed import Placed
from fpgapipe.lowering.memory.sharing import Category
from fpgapipe.lowering.tiling.tile import ceil_word
from fpgapipe.lowering.units.step_options import (
    GRADIENTS,
    MOMENTUM,
    PARAMETERS,
    SECOND_MOMENT,
    SUFFIXES,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from fpgapipe.lowering.memory.memory_map import Stored
    from fpgapipe.lowering.program.share import Summed
    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.step_options import StepOptions

CATEGORIES = {
    PARAMETERS: Category.WEIGHTS,
    GRADIENTS: Category.WEIGHT_GRADIENTS,
    MOMENTUM: Category.OPTIMISER,
    SECOND_MOMENT: Category.OPTIMISER,
}
"""Category of each arena."""


class Arenas:
    """The arenas of a program.

    Parameters
    ----------
    parameters : iterable of Stored
        All parameters; those that are not trained are left out.
    options : StepOptions
    without_gradient : collection of str
        Names of the parameters whose gradients are not kept.
    summed : callable
        Says which devices add up their gradients of a parameter.
    undecayed : collection of str
        Names of the parameters that the weight decay does not apply to; of those that are added up
        over the same devices, they come last.
    """

    def __init__(
        self,
        parameters: Iterable[Stored],
        options: StepOptions,
        without_gradient: Collection[str],
        summed: Callable[[str], Summed],
        undecayed: Collection[str] = (),
    ) -> None:
        self._undecayed = undecayed
        learned = [each.tensor for each in parameters if each.trainable]
        learned.sort(key=lambda each: (summed(each.name), each.name in undecayed))
        whole = [each for each in learned if each.name not in without_gradient]
        self._kind_of = {each.name: summed(each.name) for each in whole}
        ordered = whole + [each for each in learned if each.name in without_gradient]
        self._of = {name: whole if name == GRADIENTS else ordered for name in self._names(options)}

    @staticmethod
    def _names(options: StepOptions) -> list[str]:
        if not options.train:
            return [PARAMETERS]
        return [arena for arena in SUFFIXES if options.has_second_moment or arena != SECOND_MOMENT]

    def elements(self, arena: str) -> int:
        """Number of elements of an arena, in which each parameter begins at a whole word."""
        return self.elements_of(self._of[arena])

    @staticmethod
    def elements_of(tensors: Iterable[Tensor]) -> int:
        """Number of elements of tensors that follow one another, each from a whole word on."""
        return sum(ceil_word(each.size_bytes) for each in tensors) // 4

    def groups(self) -> list[tuple[int, int, bool]]:
        """Parts of the gradients' arena in which all or none of the parameters decay.

        Each is given by its first element, its number of elements, and whether they decay.
        """
        found: list[tuple[int, int, bool]] = []
        at = 0
        for each in self._of[GRADIENTS]:
            decays, size = each.name not in self._undecayed, ceil_word(each.size_bytes) // 4
            if found and found[-1][2] == decays:
                first, count, _ = found.pop()
                found.append((first, count + size, decays))
            else:
                found.append((at, size, decays))
            at += size
        return found

    def summed(self, kind: Summed) -> list[Tensor]:
        """The parameters whose gradients certain devices add up."""
        return [each for each in self._of[GRADIENTS] if self._kind_of[each.name] is kind]

    def own(self) -> dict[str, Own]:
        """Demand of each arena for memory."""
        return {name: Own(4 * self.elements(name), CATEGORIES[name]) for name in self._of}

    def places(self, places: Mapping[str, Placed]) -> dict[str, Placed]:
        """Places of each parameter's values, from those of the arenas."""
        found = {}
        for name, inside in self._of.items():
            at = places[name].begin
            for each in inside:
                found[each.name + SUFFIXES[name]] = Placed(at, at + each.size_bytes)
                at += ceil_word(each.size_bytes)
        return found
