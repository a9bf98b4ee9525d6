"""Compares a backend with PyTorch in the core's number formats, within a tolerance.

PyTorch with the core's number formats has the bits of its products, but other last bits of
functions and of the vector engine's sums, so that now and then a value is rounded to another
neighbour. Loss and gradients are compared within a tolerance, and each step begins with the same
state in both backends. Where weights are updated after each micro-batch, memory has only the last
one's gradients, so what the step has added to the momentum is compared as well: the sum of the
gradients of all micro-batches, the earlier ones discounted.

Such differences are smaller than the error that MXINT8 rounding itself causes in a product. An
element of a block with largest magnitude ``m`` is rounded to a multiple of at most ``m / 64``,
which causes an error of ``m / (64 * sqrt(12))`` (root mean square), where ``m`` is at most
``sqrt(32)`` times the root mean square of the block's elements. Both operands are rounded, hence
`MX_NOISE`. A loss is computed in FP32 from FP32 logits; its tolerance is BF16's resolution.

A sum whose terms cancel is less exact than that: the gradient of a bias in front of a
normalisation is zero, and so is that of the keys' bias in an attention, and what is computed is the
remainder of rounding errors. Where a tensor differs by more than its tolerance, PyTorch repeats the
step a few times with all values disturbed as another order of sums might, before they are rounded
to the formats, and the tensor may differ as far as it moves then, times `DISTURBED_SHARE`.

Where weights are updated after each micro-batch, a rounding that is turned over early moves all
later updates, often as far as other versions of the weights would. So a result that needs this
further tolerance is also compared with steps that see other versions of the weights
(`LateWeights.others`). If one of them gives the result within the plain tolerance, and is
`FAR_NEARER` times nearer than all disturbed steps, then those are the weights that were read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.host.backends.base import Backend
from fpgapipe.host.runtime.check import Check, Difference
from fpgapipe.hw.hls_models.numerics.mx import MX_BLOCK
from fpgapipe.lowering.memory.memory_map import LOSS
from fpgapipe.lowering.units.step_options import Scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from fpgapipe.host.backends.base import StepResult, StepRunner, Values
    from fpgapipe.lowering.memory.memory_map import Labels

MX_NOISE = math.sqrt(2) * math.sqrt(MX_BLOCK) / (64 * math.sqrt(12))
"""Largest relative error to be expected of a product of MXINT8 operands: 3.6 %."""

LOSS_NOISE = 2.0**-8
"""Tolerance of a loss, relative to the loss."""

LEAST_LOSS = 2.0**-20
"""Least tolerance of a loss: that of the exponentials and logarithms of which it is the sum."""

REMAINDER = 2.0**-20
"""Least tolerance of a gradient, relative to the largest norm of the step's gradients.

It is that of FP32 sums whose terms cancel, 16 steps.
"""

NUM_DISTURBED = 8
"""Disturbed steps from which a doubtful tensor's further tolerance follows."""

DISTURBED_SHARE = 3.0
"""Tolerance as a multiple of the largest movement in the disturbed steps."""

FAR_NEARER = 10.0
"""How many times nearer than disturbed steps a step with other weights is, if it is the right one.

What it computes is the same but for the order of sums. A disturbed step may happen to turn over the
rounding that has made the difference, and then has others of its own.
"""


@dataclass(frozen=True)
class _Pair:
    """A tensor as both backends have computed it.

    Attributes
    ----------
    tensor : str
        Name of the tensor.
    layer : str
        Name of its layer; empty if it belongs to none.
    parameter : str or None
        The parameter whose gradient or momentum it is.
    found, expected : float32 array
        Values of the first and of the second backend.
    noise : float
        Tolerance, relative to the norm of the expected values.
    least : float
        Least tolerance.
    """

    tensor: str
    layer: str
    parameter: str | None
    found: NDArray[np.float32]
    expected: NDArray[np.float32]
    noise: float = MX_NOISE
    least: float = 0.0

    @property
    def error(self) -> NDArray[np.float64]:
        """How far each value is from the other."""
        found: NDArray[np.float64] = np.abs(self.found.astype(np.float64) - self.expected)
        return found

    @property
    def limit(self) -> float:
        """Tolerance of the error's norm."""
        return max(self.noise * _norm(self.expected), self.least)

    @property
    def share(self) -> float:
        """Norm of the error as a share of the tolerance; infinite if it is not a number."""
        size = _norm(self.error)
        share = float(size / np.float64(self.limit)) if size else 0.0
        return share if share >= 0 else math.inf


class NumericCheck(Check):
    """Compares loss and gradients within a tolerance, each step from the first backend's state.

    Attributes
    ----------
    worst : dict of str to float
        Largest error so far of the loss and of each gradient, as a share of its tolerance.
    """

    def __init__(self, backend: StepRunner, gain: float = 1.0) -> None:
        super().__init__(backend)
        self.worst: dict[str, float] = {}
        self._gain = gain

    def after(
        self,
        step: int,
        first: StepRunner,
        result: StepResult,
        before: Values,
        inputs: Values,
        labels: Labels,
        scalars: Sequence[int],
    ) -> Difference | None:
        """See `Check`."""
        self.backend.set_state(before)
        other = self.backend.step(inputs, labels, scalars)

        def again(runner: StepRunner) -> Iterator[_Pair]:
            runner.set_state(before)
            found = runner.step(inputs, labels, scalars)
            one, two = (result, found) if runner is self.backend else (found, other)
            return self._pairs(first, one.loss, two.loss, before, scalars)

        pairs = list(self._pairs(first, result.loss, other.loss, before, scalars))
        return self._first_beyond(step, first, pairs, again)

    def after_inference(
        self,
        step: int,
        first: StepRunner,
        results: Values,
        inputs: Values,
        scalars: Sequence[int],
    ) -> Difference | None:
        """See `Check`."""

        def pairs(ours: Values, others: Values) -> Iterator[_Pair]:
            for name, expected in others.items():
                yield _Pair(name, name, None, ours[name].reshape(expected.shape), expected)

        def again(runner: StepRunner) -> Iterator[_Pair]:
            found, _ = runner.infer(inputs, scalars)
            return pairs(results, found) if runner is self.backend else pairs(found, others)

        others, _ = self.backend.infer(inputs, scalars)
        return self._first_beyond(step, first, list(pairs(results, others)), again)

    def _pairs(
        self,
        first: StepRunner,
        loss: float,
        other_loss: float,
        before: Values,
        scalars: Sequence[int],
    ) -> Iterator[_Pair]:
        """Results of a step: the loss, and values that belong to parameters, last layers first."""
        one, two = (np.array([each], np.float32) for each in (loss, other_loss))
        yield _Pair(LOSS, "", None, one, two, noise=LOSS_NOISE, least=LEAST_LOSS)
        kinds = {"gradient": _gradients(first, self.backend, self._gain)}
        if first.num_updates > 1:
            kinds["momentum"] = _added_momentum(first, self.backend, before, scalars)
        for kind, (found, expected) in kinds.items():
            least = REMAINDER * max(map(_norm, expected.values()), default=0.0)
            for layer in reversed(list(first.graph.layers.values())):  # as in the backward pass
                for name in (each.name for each in layer.parameters if each.name in found):
                    yield _Pair(
                        f"{name}.{kind}", layer.name, name, found[name], expected[name], least=least
                    )

    def _first_beyond(
        self,
        step: int,
        first: StepRunner,
        pairs: Sequence[_Pair],
        again: Callable[[StepRunner], Iterator[_Pair]],
    ) -> Difference | None:
        """The first pair that differs by more than its tolerance, where its error is largest."""
        moved: dict[str, float] | None = None
        nearest = 0.0
        for pair in pairs:
            error = pair.error
            if not error.any():
                self.worst.setdefault(pair.tensor, 0.0)
                continue
            size, limit = _norm(error), pair.limit
            if not size <= limit:  # NaN exceeds the tolerance, too
                if moved is None:
                    moved, nearest = self._movements(first, pairs, again)
                limit = max(limit, DISTURBED_SHARE * moved[pair.tensor])
            share = float(size / np.float64(limit))
            self.worst[pair.tensor] = max(self.worst.get(pair.tensor, 0.0), share)
            if not share <= 1:
                return self._difference(step, first, pair)
        if moved is None:
            return None
        limit = min(1.0, nearest / FAR_NEARER)
        for runner in (self.backend, first):
            for versions in runner.other_versions():
                if _share(again(runner)) < limit:
                    pair = max(pairs, key=lambda each: each.share)
                    self.worst[pair.tensor] = pair.share
                    note = f"as if {runner.name} did its {versions}"
                    return self._difference(step, first, pair, note)
        return None

    def _difference(self, step: int, first: StepRunner, pair: _Pair, note: str = "") -> Difference:
        """A pair that differs, at the element whose error is largest."""
        error = pair.error
        flat = int(np.nan_to_num(error, nan=np.inf).argmax())
        at = tuple(int(each) for each in np.unravel_index(flat, error.shape))
        return Difference(
            step,
            _device_of(first, pair.parameter),
            pair.layer,
            pair.tensor,
            at,
            (f"{pair.found[at]:.9g}", f"{pair.expected[at]:.9g}"),
            (first.name, self.backend.name),
            int(np.count_nonzero(pair.found != pair.expected)),
            note,
        )

    def _movements(
        self,
        first: StepRunner,
        pairs: Sequence[_Pair],
        again: Callable[[StepRunner], Iterator[_Pair]],
    ) -> tuple[dict[str, float], float]:
        """How far each tensor moves at most when PyTorch's values are disturbed, by norm.

        Also returns the share of the tolerances that the nearest of the disturbed steps takes.
        """
        moved = dict.fromkeys((pair.tensor for pair in pairs), 0.0)
        nearest = math.inf
        for runner in (self.backend, first):
            for seed in range(NUM_DISTURBED):
                with runner.disturbed(seed) as is_disturbed:
                    if not is_disturbed:
                        break
                    others = list(again(runner))
                    nearest = min(nearest, _share(others))
                    for old, new in zip(pairs, others, strict=True):
                        now, then = (
                            (each.expected if runner is self.backend else each.found)
                            for each in (new, old)
                        )
                        with np.errstate(over="ignore", invalid="ignore"):
                            change = now - then
                        if np.isfinite(change).all():  # what overflows says nothing
                            moved[old.tensor] = max(moved[old.tensor], _norm(change))
        return moved, nearest


def _share(pairs: Iterable[_Pair]) -> float:
    """The largest share of a tolerance."""
    return max((pair.share for pair in pairs), default=0.0)


def _norm(values: NDArray[Any]) -> float:
    return float(np.linalg.norm(values.astype(np.float64)))


def _gradients(one: StepRunner, other: StepRunner, gain: float) -> tuple[Values, Values]:
    """Gradients of a step that both backends have done from one state.

    Where one of them does not keep a gradient, its momentum says how far it is from that of the
    other: the momentum of both was equal before, and `gain` times the gradient is added to it.
    Where none keeps it, the momentum is compared.
    """
    inverse = np.float32(1 / gain)
    found, expected = one.parameters(".gradient"), other.parameters(".gradient")
    moments = one.parameters(".momentum"), other.parameters(".momentum")
    for name in moments[0]:
        if name in found and name in expected:
            continue
        first, second = (each[name] for each in moments)
        if name in expected:
            found[name] = expected[name] + (first - second) * inverse
        elif name in found:
            expected[name] = found[name] + (second - first) * inverse
        else:
            found[name], expected[name] = first, second
    return found, expected


def _added_momentum(
    one: StepRunner, other: StepRunner, before: Values, scalars: Sequence[int]
) -> tuple[Values, Values]:
    """Change of the momentum by the updates of a step, in both backends."""
    kept = float(np.uint32(scalars[Scalar.MOMENTUM]).view(np.float32)) ** one.num_updates
    found, expected = (
        {
            name: value - np.float32(kept) * before[f"{name}.momentum"]
            for name, value in each.parameters(".momentum").items()
        }
        for each in (one, other)
    )
    return found, expected


def _device_of(backend: StepRunner, parameter: str | None) -> int:
    """Index of the device that has a parameter, else of the last one; 0 for PyTorch."""
    if not isinstance(backend, Backend):
        return 0
    parts = backend.pipeline.parts
    return next((part.index for part in parts if parameter in part.stored), parts[-1].index)
