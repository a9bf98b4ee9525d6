"""Checks of a random network, and how a difference is told from rounding."""

from __future__ import annotations

import copy
import random
import re
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fpgapipe.errors import UserError
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.torch_backend import TorchBackend
from fpgapipe.host.backends.torch_reference import initial_weights
from fpgapipe.host.backends.verification import verify
from fpgapipe.host.runtime.check import Difference
from fpgapipe.host.runtime.numeric_check import NumericCheck
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.program.pipeline import PipelineProgram
from fpgapipe.lowering.units.coverage import coverage_of
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
from fpgapipe.network.frontends.torch.torch_program import from_torch
from fpgapipe.network.graph import Graph
from fpgapipe.network.initial_values import random_batch
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

from .networks import Network

REFUSALS = (UserError, NotImplementedError)
RIGHT, REFUSED, WRONG, TRACEBACK = "right", "refused", "wrong", "traceback"
LINKS = (LinkEngineSpec(), LinkEngineSpec())
SMALL = CoreSpec(
    8, 8, acc_depth=256, scratchpad=ScratchpadSpec(8, 1 << 14), vector=VectorSpec(4, 2), links=LINKS
)
CORES = (
    SMALL,
    SMALL,
    replace(SMALL, rows=32, cols=32, scratchpad=ScratchpadSpec(8, 1 << 16), vector=VectorSpec(16)),
    replace(SMALL, rows=4, cols=16, vector=VectorSpec(8, 2)),
    replace(SMALL, rows=16, cols=8, acc_depth=512, vector=VectorSpec(2, 1)),
)
"""Cores of the networks; two of a cluster are the same."""

ERROR = 0.04
"""Largest difference by norm from PyTorch with the core's numbers that needs no explanation."""

SPREADS = 6.0
"""Largest difference that rounding explains, in spreads of results for slightly other values."""

REMAINDER = 2.0**-20
"""Difference that is rounding, relative to the largest norm of all values.

A gradient that is zero in exact arithmetic is the remainder of a sum, in the order of that sum.
"""

SHAKEN = 2.0**-11
"""Relative size of the changes with which the spread is found: some steps of BF16 and MXINT8."""

Values = Mapping[str, NDArray[Any]]


class Wrong(Exception):
    """A result is not what it must be."""


@dataclass
class Verdict:
    """The outcome of one level.

    Attributes
    ----------
    outcome : str
        ``right``, ``refused``, ``wrong`` or ``traceback``.
    reason : str
    """

    outcome: str
    reason: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether it must not happen."""
        return self.outcome in (WRONG, TRACEBACK)

    @property
    def kind(self) -> str:
        """The reason without names and numbers, by which verdicts are counted."""
        text = " ".join(self.reason.split("\n")[-1 if self.outcome == TRACEBACK else 0].split())
        text = re.sub(r"'[^']*'|\[[^\]]*\]|\([\d, ]*\)", "…", text)
        text = re.sub(r"^[\w.]+: |\blayers? [\w.]+(, [\w.]+)*", "", text)
        return re.sub(r"-?\d[\d.,e+x ]*", "N ", text)[:160].strip()


def judged(function: Callable[[], object]) -> Verdict:
    """Run a check and give its verdict."""
    try:
        with warnings.catch_warnings(), torch.random.fork_rng():
            warnings.simplefilter("ignore")
            function()
    except Wrong as error:
        return Verdict(WRONG, str(error))
    except REFUSALS as error:
        return Verdict(REFUSED, f"{error}")
    except Exception:  # any other error is a defect
        return Verdict(TRACEBACK, traceback.format_exc(limit=-4).strip())
    return Verdict(RIGHT)


@dataclass
class Subject:
    """A network with what is drawn for its checks.

    Attributes
    ----------
    network : Network
    seed : int
    graph : Graph or None
        The imported network.
    difference : Difference or None
        What the comparison of ``run --check torch`` has found.
    """

    network: Network
    seed: int
    graph: Graph | None = None
    difference: Difference | None = None

    def __post_init__(self) -> None:
        draw = random.Random(self.seed + 7)
        self.core = draw.choice(CORES)
        self.activations = draw.choice([FP32, FP32, BF16])
        self.optimiser = draw.choice(["sgd", "sgd", "sgd", "adam", "adamw"])
        self.clip = draw.choice([None, None, 1.0])
        self.count = draw.choice([1, 1, 2, 3])
        self.draw = draw

    @property
    def imported(self) -> Graph:
        """The graph."""
        assert self.graph is not None, "the import is the first level"
        return self.graph

    @property
    def weights(self) -> dict[str, NDArray[np.float32]]:
        """The module's values by the names of the graph."""
        return {
            name: each.detach().numpy() for name, each in initial_weights(self.imported).items()
        }

    def options(self, **more: Any) -> StepOptions:
        """Options of the programs."""
        return StepOptions(
            activations=self.activations,
            optimiser=self.optimiser,  # type: ignore[arg-type]
            clip_norm=self.clip,
            **more,
        )

    def in_torch(self, options: StepOptions, count: int, precision: str = "mxint8") -> TorchBackend:
        """PyTorch with the core's numbers, or in FP32."""
        return TorchBackend(
            self.imported,
            self.weights,
            num_microbatches=count,
            options=options,
            precision=precision,
            device="cpu",
        )

    def batch(self, count: int) -> tuple[dict[str, NDArray[Any]], Any]:
        """Samples and labels of some micro-batches."""
        return random_batch(self.imported, self.seed, count)


def scalars(step: int = 0) -> list[int]:
    """Contents of the scalar registers."""
    return scalar_bits(learning_rate=0.02, seed=7, step=step)


def check_import(subject: Subject) -> None:
    """Import the module, and compare results and gradients with it in FP64."""
    network = subject.network
    module = copy.deepcopy(network.module)
    subject.graph = from_torch((module, (network.example,)), name="network")
    held_verification(subject.graph)


def held_verification(graph: Graph) -> None:
    """Raise an error if a network is not verified, as `build` does."""
    found = verify(graph, batches=1)
    if found.verified is None:
        raise UserError(str(found))
    if not found.verified:
        raise Wrong(str(found))


def shaken(values: Values, seed: int, size: float = SHAKEN) -> dict[str, NDArray[Any]]:
    """Values with small relative changes; whole numbers stay."""
    rng = np.random.default_rng(seed)
    return {
        name: each
        if each.dtype.kind in "iub"
        else (each * (1 + size * rng.uniform(-1, 1, each.shape))).astype(each.dtype)
        for name, each in values.items()
    }


def distance(one: Values, other: Values, name: str) -> float:
    """Norm of the difference of two values; infinite where one is no number."""
    found = float(np.linalg.norm(one[name].astype(np.float64) - other[name].astype(np.float64)))
    return found if found == found else float("inf")


def norm(value: NDArray[Any]) -> float:
    """Norm of a value."""
    return float(np.linalg.norm(value.astype(np.float64)))


def held(
    what: str, found: Values, expected: Values, again: Callable[..., Values], limit: float = ERROR
) -> None:
    """Compare values by the norms of their differences.

    Parameters
    ----------
    what : str
    found, expected : mapping of str to array
    again : callable
        Computes what is expected for values that are changed a little, in a way for each number
        `near`, or with `precision` ``fp32``. A difference that such changes cause as well is
        rounding, and so is one of values of which PyTorch in FP32 has but a remainder as well.
    limit : float
        Largest difference relative to the norm that needs no explanation.
    """
    missing = expected.keys() - found.keys()
    if missing:
        raise Wrong(f"{what} without {', '.join(sorted(missing))}")
    far = [
        name
        for name, value in expected.items()
        if found[name].shape != value.shape
        or not distance(found, expected, name) <= limit * norm(value)
    ]
    if not far:
        return
    others = [again(near=number) for number in range(3)]
    largest = max(norm(value) for name, value in expected.items() if name != "loss")
    for name in far:
        if found[name].shape != expected[name].shape:
            raise Wrong(f"{what} {name} has shape {found[name].shape}")
        # What is added to a momentum is a gradient, after clipping at most as long as before.
        names = {name, name.replace(".momentum", ".gradient")} & expected.keys()
        spread = max(distance(each, expected, key) for each in others for key in names)
        error, size = distance(found, expected, name), norm(expected[name])
        if error <= limit * size + SPREADS * spread + REMAINDER * largest:
            continue
        exact = again(precision="fp32")
        if not max(norm(found[name]), norm(exact[name])) <= REMAINDER * largest:
            raise Wrong(
                f"{what} {name} is off by {error:.3g} of {size:.3g}, "
                f"and small changes move it by {spread:.3g}"
            )


def reference(
    subject: Subject,
    state: Values,
    samples: tuple[Values, Any],
    step: int,
    options: StepOptions,
    count: int,
    near: int | None = None,
    precision: str = "mxint8",
) -> dict[str, NDArray[Any]]:
    """State after a step of PyTorch with the core's numbers; `near` shakes all values."""
    inputs, labels = samples
    if near is not None:
        state, inputs = shaken(state, near), shaken(inputs, near)
    backend = subject.in_torch(options, count, precision)
    backend.set_state(state)
    with nullcontext() if near is None else backend.disturbed(near):
        return left_behind(backend, backend.step(inputs, labels, scalars(step)))


def left_behind(backend: Any, result: Any) -> dict[str, NDArray[Any]]:
    """Loss, gradients and running statistics after a step."""
    gradients = backend.parameters(".gradient")
    momenta = backend.parameters(".momentum")
    statistics = {n: each for n, each in backend.parameters().items() if ".running_" in n}
    found = {f"{n}.gradient": each for n, each in gradients.items()}
    found |= {f"{n}.momentum": each for n, each in momenta.items()}
    return found | statistics | {"loss": np.array([result.loss])}


def check_model(subject: Subject) -> None:
    """Compare inference and two training steps of the bit-exact model with PyTorch."""
    graph = subject.imported
    check_inference(subject)
    says = coverage_of(graph)
    options = subject.options()
    try:
        pipeline = on_one(subject, options, subject.count)
    except REFUSALS as error:
        if says.trains:
            raise UserError(f"accepted by inspect --hardware, then: {error}") from None
        raise
    if not says.trains:
        raise Wrong("is built, though inspect --hardware says that it does not train")
    samples = subject.batch(subject.count)
    gain = 1 - options.betas[0] if subject.optimiser != "sgd" else 1.0
    check = NumericCheck(subject.in_torch(options, subject.count), gain)
    with ModelBackend(pipeline, subject.weights) as backend:
        for step in range(2):
            before = backend.state()
            result = backend.step(*samples, scalars(step))
            found = left_behind(backend, result)
            difference = check.after(step, backend, result, before, *samples, scalars(step))
            subject.difference = subject.difference or difference
            found = left_behind(backend, result)

            again = partial(reference, subject, before, samples, step, options, subject.count)
            expected = again()
            common = {name: each for name, each in expected.items() if name in found}
            held(f"step {step}:", found, common, again)


def on_one(subject: Subject, options: StepOptions, count: int) -> PipelineProgram:
    """The program of one device."""
    graph = subject.imported
    kind = "1f1b" if options.train else "gpipe"
    schedule = make_schedule(kind, 1, count)
    return build_pipeline(graph, [subject.core], [list(graph.layers)], schedule, options=options)


def check_inference(subject: Subject) -> None:
    """Compare inference of the bit-exact model with PyTorch."""
    graph = subject.imported
    options = subject.options(train=False)
    inputs, _ = subject.batch(1)
    with ModelBackend(on_one(subject, options, 1), subject.weights) as backend:
        found, _ = backend.infer(inputs, scalars())

    def again(near: int | None = None, precision: str = "mxint8") -> Values:
        weights = subject.weights if near is None else shaken(subject.weights, near)
        given = inputs if near is None else shaken(inputs, near)
        other = TorchBackend(graph, weights, options=options, precision=precision, device="cpu")
        with nullcontext() if near is None else other.disturbed(near):
            return other.infer(given, scalars())[0]

    expected = again()
    shaped = {name: each.reshape(expected[name].shape) for name, each in found.items()}
    held("inference:", shaped, expected, again)


def check_numeric(subject: Subject) -> None:
    """A step must have passed what ``run --check torch`` compares."""
    if subject.difference is not None:
        raise Wrong(f"--check torch: {subject.difference}")
