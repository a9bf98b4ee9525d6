"""How blocks that have a model in C++ are simulated, and which of them a design has."""

import os
from dataclasses import dataclass
from enum import StrEnum

from fpgapipe.errors import UserError

VARIABLE = "FPGAPIPE_SIMULATE"
"""Variable of the environment that chooses where a command does not."""


class Simulation(StrEnum):
    """How the native simulator runs the blocks that have a model in C++.

    Attributes
    ----------
    FAST
        The models take the place of the Verilog.
    VERILOG
        Everything is Verilog.
    VERIFIED
        Both run, and all outputs are compared in every cycle; the Verilog's are used.
    """

    FAST = "fast"
    VERILOG = "verilog"
    VERIFIED = "verified"


DEFAULT = Simulation.VERILOG
"""Choice of Python if nothing is chosen."""

OF_COMMANDS = Simulation.FAST
"""Choice of the commands of ``fpgapipe`` if nothing is chosen."""


def chosen_simulation(given: Simulation | None = None) -> Simulation:
    """Return what was given, or else what the environment chooses, or else the default.

    Raises
    ------
    UserError
        If the environment names none.
    """
    if given is not None:
        return given
    name = os.environ.get(VARIABLE) or DEFAULT
    try:
        return Simulation(name)
    except ValueError:
        choices = ", ".join(Simulation)
        raise UserError(f"{VARIABLE} must be one of {choices}, not {name!r}") from None


@dataclass(frozen=True)
class Blocks:
    """The blocks of a design, by how they are simulated.

    Attributes
    ----------
    simulation : Simulation
    substituted : tuple of str
        Names of the blocks that have a model in C++ in the simulator.
    left : tuple of str
        Modules of such blocks that the model does not cover; they stay in Verilog.
    changed : tuple of str
        Modules of such blocks that are not what the model was compared with (`compared`); they stay
        in Verilog, too.
    """

    simulation: Simulation
    substituted: tuple[str, ...]
    left: tuple[str, ...]
    changed: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Describe in words, such as ``fast (array, quantiser in C++)``."""
        parts = []
        if self.substituted:
            parts.append(f"{', '.join(self.substituted)} in C++")
        if self.left:
            parts.append(f"{', '.join(self.left)} not covered, in Verilog")
        if self.changed:
            parts.append(
                f"{', '.join(self.changed)} changed since the comparison with C++, in Verilog"
            )
        return f"{self.simulation} ({'; '.join(parts)})" if parts else str(self.simulation)
