"""The result of a comparison of a network with its source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fpgapipe.errors import counted

EVALUATION, TRAINING = MODES = ("evaluation", "training")

TOLERANCES = {"float64": 1e-6, "float32": 1e-3}
"""Largest difference that is accepted in each type, relative to the norm of the expected values.

FP64 has a rounding error of 1e-16, which deep networks amplify to 1e-10. Constants that the module
has in FP32 differ from the same constants in FP64 by 6e-8. A wrong epsilon or momentum causes a
difference above 1e-6. In FP32, rounding alone reaches 1e-4.
"""

FLOOR = {"float64": 1e-6, "float32": 1e-3}
"""Least norm against which an error is measured.

That of a gradient is relative to the largest gradient; that of a result is absolute. The gradient
of a bias in front of a batch normalisation is zero but for rounding errors.
"""

ZERO = {"float64": 1e-5, "float32": 1e-2}
"""Least norm against which a gradient's error is measured, relative to the weights of the results.

All gradients of a network are zero but for rounding errors if it ends with the normalisation of
single values, say.
"""


@dataclass(frozen=True)
class Verification:
    """Result of a comparison of a network with its source.

    Attributes
    ----------
    verified : bool or None
        Whether both agree; None if there was no source to compare with, or it could not be run.
    source : str
        Kind of the source; empty if there is none.
    reason : str
        Reason why the network is not verified.
    precision : str
        Type in which both sides computed.
    batches, samples : int
        Number of batches that were compared in each mode, and samples of each batch.
    errors : mapping of str to mapping of str to float
        Largest differences, relative to the norm of the expected values: ``evaluation`` and
        ``training`` by layer of the result, ``gradients`` and ``statistics`` by parameter.
    parameters, source_parameters : int
        Number of learned elements of the network, and of the source if that is known.
    parameters_equal : bool or None
        Whether network and source learn the same parameters from the same initial values.
    """

    verified: bool | None
    source: str = ""
    reason: str = ""
    precision: str = ""
    batches: int = 0
    samples: int | None = None
    errors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    parameters: int = 0
    source_parameters: int | None = None
    parameters_equal: bool | None = None

    @property
    def max_error(self) -> float | None:
        """The largest difference of all; None if nothing could be compared."""
        found = [error for each in self.errors.values() for error in each.values()]
        return max(found) if found else None

    def is_seen_in(self, precision: str) -> bool:
        """Whether all that is wrong would be seen in a precision as well."""
        limits = TOLERANCES.get(self.precision, 0.0), TOLERANCES[precision]
        found = [error for each in self.errors.values() for error in each.values()]
        return all(error <= limits[0] or not error <= limits[1] for error in found)

    def to_dict(self) -> dict[str, Any]:
        """Values for JSON."""
        return {
            "verified": self.verified,
            "max_error": _finite(self.max_error),
            "parameters_equal": self.parameters_equal,
            "reason": self.reason or None,
            "source": self.source or None,
            "precision": self.precision or None,
            "tolerance": TOLERANCES.get(self.precision),
            "batches": self.batches,
            "samples": self.samples,
            "parameters": {"network": self.parameters, "source": self.source_parameters},
            "errors": {
                kind: {name: _finite(error) for name, error in each.items()}
                for kind, each in self.errors.items()
            },
        }

    def __str__(self) -> str:
        """The result as a sentence."""
        if self.verified is None:
            return f"not verified: {self.reason}"
        if not self.verified:
            return f"is not what {self.source} computes: {self.reason}"
        modes = " and ".join(each for each in MODES if each in self.errors)
        what = f"{counted(self.batches, 'batch', 'es')} of {counted(self.samples or 0, 'sample')}"
        return (
            f"verified against {self.source} in {modes}, {what}, {self.precision}: "
            f"largest difference {self.max_error:.1e}"
        )


def _finite(error: float | None) -> float | None:
    """An error for JSON; None if it is infinite, since shapes differ or one side has no value."""
    return error if error is not None and math.isfinite(error) else None
