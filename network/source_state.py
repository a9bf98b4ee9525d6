"""State that the source of a network keeps by name, as a module's ``state_dict`` has it.

The graph says of its parameters how they go by the source's names and layouts (`Parameter`,
`Graph.aliases`). A source keeps more: counters, tables that the import has computed with, weights
that nothing reads. Files for the source need these, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

COUNTER, MEAN = ".num_batches_tracked", ".running_mean"
"""Ends of the names of a batch normalisation's counter and mean in PyTorch."""


@dataclass(frozen=True)
class SourceState:
    """The tensors that a network's source keeps.

    Parameters
    ----------
    names : tuple of str
        Their names in the source's order, parameters under all their names included; empty if the
        source has no such list.
    folded : tuple of str
        Those that no layer has because the import has computed with them: with other values it
        would be another network.
    unread : mapping of str to array
        Values of those that no layer has, `folded` and counters included.
    """

    names: tuple[str, ...] = ()
    folded: tuple[str, ...] = ()
    unread: Mapping[str, NDArray[np.generic]] = field(
        default_factory=dict, compare=False, repr=False
    )


def is_counter(name: str) -> bool:
    """Whether a tensor counts the batches of a batch normalisation."""
    return name.endswith(COUNTER)


def mean_of(counter: str) -> str:
    """Name of the running mean beside a counter."""
    return counter.removesuffix(COUNTER) + MEAN
