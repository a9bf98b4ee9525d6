"""Functions of elements that several formats of networks have, by operators of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.operators import Activation, Affine, Clamp

if TYPE_CHECKING:
    from typing import Protocol

    from fpgapipe.network.operators import Operator

    class Adds(Protocol):
        """A translation, which adds layers."""

        def add(self, name: str, operator: Operator, *inputs: str) -> str:
            """Add a layer, whose name is returned."""


Steps = list[tuple[str, "Operator"]]
"""Operators one after the other, each with the word that its layer's name ends with."""


def chain(t: Adds, name: str, steps: Steps, layer: str) -> str:
    """Add layers one after the other, of which the last has the name; the name is returned.

    An `Affine` that changes nothing is left out.
    """
    kept = [each for each in steps if each[1] != Affine()]
    for word, operator in kept[:-1]:
        layer = t.add(f"{name}.{word}", operator, layer)
    return t.add(name, kept[-1][1], layer)


def inverse(factor: float) -> float:
    """One divided by a factor.

    Raises
    ------
    Unsupported
        If the factor is 0.
    """
    if not factor:
        raise Unsupported("only a factor other than 0, by which it divides")
    return 1 / factor


def elu(alpha: float, scale: float = 1.0, inner: float = 1.0) -> Steps:
    """``scale * x`` above 0, and ``scale * alpha * (exp(inner * x) - 1)`` below; selu is one."""
    inverse(inner)
    stretched = Activation("elu", alpha * inner)
    return [("inner", Affine(inner)), ("elu", stretched), ("scale", Affine(scale / inner))]


def celu(alpha: float) -> Steps:
    """``alpha * elu(x / alpha)``."""
    stretched = Activation("elu", 1.0)
    return [("inner", Affine(inverse(alpha))), ("elu", stretched), ("scale", Affine(alpha))]


def bounded(low: float | None, high: float | None, *, strict: bool = False) -> Operator:
    """The nearest number within bounds, of which the upper one holds if they cross."""
    if low == 0 and high in (6, None):
        return Activation("relu" if high is None else "relu6")
    crossed = low is not None and high is not None and low > high
    return Clamp(high if crossed else low, high, strict=strict)
