"""Simulation models of the primitives that gateware instantiates.

Verilog of gateware has instances of primitives and no modules for them. Synthesis knows its part's
primitives; a simulator needs a model.
"""

import re
from importlib import resources

_PRIMITIVES = ("DSP48E2",)


def model_of(primitive: str) -> str:
    """Verilog of a primitive's model."""
    return resources.files(__package__).joinpath(f"{primitive.lower()}.v").read_text()


def with_primitives(verilog: str) -> str:
    """Verilog with the models of all primitives that it has instances of."""
    used = [name for name in _PRIMITIVES if re.search(rf"^  {name} #\(", verilog, re.MULTILINE)]
    return "".join([verilog, *(f"\n{model_of(name)}" for name in used)])
