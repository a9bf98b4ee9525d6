"""Networks around one unit, with numbers at the borders that the lowering knows.

`draw` makes the case of a seed and a number: a tiny network with the unit somewhere in it, a core,
and formats. `judge` runs the case in the bit-exact model and in PyTorch with the core's numbers,
and each of its products with operands for which the order of the sums matters (`product_order`).
"""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf, prod
from typing import Any

import numpy as np
from product_order import check, recorded
from shape_units import UNITS, Draw, Unit

from fpgapipe.errors import UserError
from fpgapipe.host.backends.base import StepRunner
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.torch_backend import TorchBackend
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.lowering.program.pipeline import PipelineProgram
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.schedule.tasks import single_device
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
from fpgapipe.network import operators as ops
from fpgapipe.network.graph import Graph
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.losses import Loss
from fpgapipe.network.operators.tensors import DType, ShapeError, Tensor
from fpgapipe.network.zoo.layers import Network

MOST_MACS = 300_000
MOST_ELEMENTS = 12_000
"""Largest work, and largest value or parameter, of a network."""


def _core(
    rows: int,
    cols: int,
    sums: int,
    scratchpad: tuple[int, ...],
    lanes: tuple[int, int] = (16, 4),
    **more: int,
) -> CoreSpec:
    return CoreSpec(
        rows, cols, acc_depth=sums, scratchpad=ScratchpadSpec(*scratchpad),
        vector=VectorSpec(*lanes), **more,
    )  # fmt: skip


CORES = (
    _core(8, 8, 256, (8, 1 << 14), (4, 2)),
    _core(32, 32, 256, (4, 1 << 16)),
    _core(16, 4, 512, (4, 1 << 15, 8), (1, 1)),
    _core(4, 24, 128, (2, 1 << 16, 16), (4, 1)),
    _core(8, 64, 512, (8, 1 << 15), (16, 16)),
    _core(2, 3, 256, (4, 1 << 14, 32), (2, 1)),
    _core(32, 1, 64, (2, 1 << 14), (4, 4)),
    _core(8, 16, 256, (8, 1 << 14), (4, 4), num_engines=2),
    _core(16, 32, 64, (4, 1 << 13), bus_bytes=8),
)
"""Arrays of all kinds of rows and columns, narrow ports, small scratchpads and few accumulators."""

NEAR = 0.045
"""Largest difference by norm. Roundings that fall on the other side cause up to 0.036."""

CANCELLED = {FP32: 2.0**-12, BF16: 2.0**-7}
"""Share of the largest gradient's norm below which another may be what cancelling terms leave."""

LOSS_NEAR = 2.0**-8
"""Largest relative difference of losses."""

ROUGH = 0.6
"""Largest difference by norm from PyTorch in FP32, which shares no code with the lowering.

MXINT8 moves gradients by up to a half where maxima and signs change; a wrong one is further off,
unless small changes of the values move it as far, too."""

NOISE, NUM_NOISY, NOISY_SHARE = 0.01, 8, 3.0
"""Size of such changes relative to a value's norm, that of MXINT8's rounding; how many there are;
and how many times their largest movement a difference may be."""

FAINT = 1 / 32
"""Share of the largest gradient's norm below which PyTorch in MXINT8 is moved so, too.

A sum of gradients behind a normalisation is zero in exact arithmetic, and all of it is rounding:
with two samples a bias of 1.6 % of the weight gradient's norm was off by a fifth of itself."""

LOSS = "loss"

PRODUCTS = ("conv", "grouped conv", "conv_transpose", "linear")
"""Units whose results but loss and biases have the same bits with larger scratchpads, too.

Sums over positions, of losses and of statistics depend on a scratchpad that is too small for their
pieces, and on nothing else of a core but its rows (docs/numbers.md)."""

REFUSALS = (UserError, NotImplementedError)


class WrongError(Exception):
    """A result differs from that of PyTorch."""


@dataclass(frozen=True)
class Case:
    """A network around a unit, and what it runs on.

    Attributes
    ----------
    unit : str
        Operator of the unit.
    text : str
        The unit and its place in the network.
    graph : Graph
    core : CoreSpec
    options : StepOptions
    num_microbatches : int
    """

    unit: str
    text: str
    graph: Graph
    core: CoreSpec
    options: StepOptions
    num_microbatches: int


# ------------------------------------------------------------------------------- networks

PLACES = ("first", "images", "features", "activated", "skip", "last")
"""Where the unit is: its inputs are the network's or come from layers that give channels last or
the network's order, another layer reads them as well, or the result is that of the network."""


def _front(
    net: Network, draw: Draw, place: str, shape: tuple[int, ...], name: str, *, is_positive: bool
) -> str:
    """A value of a shape, as the place says."""
    if place == "first":
        x = net.input(name, Tensor((net.batch, *shape)))
    elif 2 <= len(shape) <= 4 and place in ("images", "activated"):
        image = net.input(name, Tensor((net.batch, 2, *shape[1:])))
        x = net.conv(image, shape[0], 1, bias=draw.likely())
    else:
        given = net.input(name, Tensor((net.batch, 3)))
        x = net.linear(given, prod(shape), bias=draw.likely())
        if len(shape) > 1:
            x = net.reshape(x, net.batch, *shape)
    if place == "activated":
        x = net.activation(x, "leaky_relu", alpha=0.25)
    if is_positive:
        x = net.add(f"{name}.positive", ops.Affine(1.0, 0.5), net.activation(x, "softplus"))
    return x


def _network(draw: Draw, drawn: Unit, place: str) -> Graph:
    """The network around a unit."""
    net = Network("shapes", draw.choice((1, 2, 2, 3, 5)))
    if drawn.tokens:
        values = [net.tokens("tokens", drawn.shapes[0][0])]
    else:
        values = [
            _front(net, draw, place, shape, f"input{number}", is_positive=drawn.is_positive)
            for number, shape in enumerate(drawn.shapes)
        ]
    y = drawn.add(net, values)
    if len(net.tensor(y).shape) == 1:  # a number for each sample
        y = net.reshape(y, net.batch, 1)
    if place == "last" and 2 <= len(net.tensor(y).shape) <= 4:
        return net.build([y])
    flat = [y, *values] if place == "skip" and not drawn.tokens else [y]
    if len(flat) > 1 and net.tensor(flat[0]).shape == net.tensor(flat[1]).shape:
        flat = [net.plus(flat[0], flat[1]), *flat[2:]]
    flat = [net.flatten(each) if len(net.tensor(each).shape) > 2 else each for each in flat]
    x = net.concat(flat) if len(flat) > 1 else flat[0]
    net.linear(x, 3)
    return net.build()


def _is_small(graph: Graph) -> bool:
    sizes = [prod(each.output.shape) for each in graph.layers.values()]
    sizes += [each.spec.elements for one in graph.layers.values() for each in one.parameters]
    return sum(each.macs for each in graph.layers.values()) <= MOST_MACS and (
        max(sizes) <= MOST_ELEMENTS
    )


def draw(seed: int, number: int, only: str = "") -> Case:
    """The case of a seed and a number; units whose names have the word `only` take turns."""
    names = [name for name in UNITS if only in name]
    name = names[number % len(names)]
    for attempt in range(1000):
        rng = Draw(f"{seed}:{name}:{number}:{attempt}")
        place = rng.choice(PLACES)
        try:
            drawn = UNITS[name](rng)
            graph = _network(rng, drawn, place)
        except (UserError, ShapeError):
            continue  # no window fits, for example
        if not _is_small(graph):
            continue
        train = rng.likely(0.8)
        output = graph.layers[graph.outputs[0]]
        options = StepOptions(
            activations=rng.choice((FP32, BF16)),
            train=train,
            loss=Loss("mse") if place == "last" or rng.likely(0.2) else Loss(),
            rounded_weights=rng.likely(0.7),
        )
        assert output.output.dtype is DType.FLOAT32
        text = f"{place}: {drawn.text}, {graph.batch} samples"
        return Case(name, text, graph, rng.choice(CORES), options, rng.choice((1, 1, 1, 2)))
    raise AssertionError(f"no small case of {name} was found")


# --------------------------------------------------------------------------------- judging


def values_of(case: Case, seed: int) -> tuple[Mapping[str, Any], Mapping[str, Any], Any]:
    """Parameters, inputs and labels."""
    parameters = initial_parameters(case.graph, seed)
    rng = np.random.default_rng(seed)
    for name, value in parameters.items():
        # Scales of 1 and shifts of 0 would hide that they are not read.
        if value.size and np.ptp(value) == 0 and not name.endswith("running_var"):
            parameters[name] = (value + rng.uniform(-0.5, 0.5, value.shape)).astype(np.float32)
    inputs, labels = random_batch(case.graph, seed, case.num_microbatches, case.options.loss)
    return parameters, inputs, labels


def of_model(case: Case, seed: int, core: CoreSpec) -> dict[str, Any]:
    """Loss and changes of parameters and statistics, or results of inference, in the model."""
    tasks = single_device(case.num_microbatches, train=case.options.train)
    program = build_step(case.graph, core, options=case.options, tasks=tasks)
    parameters, *batch = values_of(case, seed)
    with ModelBackend(PipelineProgram(case.graph, (program,)), parameters) as backend:
        return _ran(case, backend, parameters, *batch)


def of_torch(case: Case, seed: int, precision: str, noise: int | None = None) -> dict[str, Any]:
    """The same in PyTorch; `noise` is the seed of small changes of all values."""
    parameters, inputs, labels = values_of(case, seed)
    if noise is not None:
        rng = np.random.default_rng(noise)
        parameters, inputs = (_noisy(each, rng) for each in (parameters, inputs))
    batch = inputs, labels
    with TorchBackend(
        case.graph, parameters, num_microbatches=case.num_microbatches, options=case.options,
        precision=precision, device="cpu",
    ) as backend:  # fmt: skip
        return _ran(case, backend, parameters, *batch)


def _noisy(values: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {
        name: each
        if each.dtype.kind in "iub" or name.endswith("running_var")
        else each
        + (NOISE * np.sqrt(np.mean(np.square(each))) * rng.standard_normal(each.shape)).astype(
            each.dtype
        )
        for name, each in values.items()
    }


def _ran(
    case: Case, backend: StepRunner, parameters: Mapping[str, Any], inputs: Any, labels: Any
) -> dict[str, Any]:
    scalars = scalar_bits(learning_rate=0.1)
    if not case.options.train:
        results, _ = backend.infer(inputs, scalars)
        return {name: np.array(value).reshape(-1) for name, value in results.items()}
    result = backend.step(inputs, labels, scalars)
    state = backend.state()
    found = {name: np.array(state[name]) - parameters[name] for name in parameters}
    return {LOSS: np.float32(result.loss)} | found


def compare(
    found: Mapping[str, Any],
    expected: Mapping[str, Any],
    *,
    near: float,
    floor: float,
    noisy: Callable[[int], Mapping[str, Any]],
    noisy_below: float,
) -> float:
    """Largest difference as a share of what is allowed.

    Parameters
    ----------
    found, expected : mapping of str to array
    near : float
        Largest difference by norm, as a share of the expected value's norm.
    floor : float
        Share of the largest norm from which on a value has a tolerance of its own; smaller ones
        may be remainders of terms that cancel.
    noisy : callable
        Gives what is expected of values with small changes, by the seed of these.
    noisy_below : float
        Share of the largest norm below which a difference that such changes cause is allowed.

    Raises
    ------
    WrongError
        If a difference is above what is allowed, or not a number; the text names the value.
    """
    norms = {name: float(np.linalg.norm(np.float64(each))) for name, each in expected.items()}
    largest = max((norm for name, norm in norms.items() if name != LOSS), default=0.0)
    worst = 0.0
    for name, value in expected.items():
        error = float(np.linalg.norm(np.float64(found[name]) - value))
        if name == LOSS:
            limit = LOSS_NEAR * near / NEAR * max(1.0, norms[name])
        else:
            limit = near * max(norms[name], floor * largest)
        share = error / limit if error else 0.0
        if share > 1 and norms[name] < noisy_below * largest:
            others = [np.float64(noisy(each)[name]) for each in range(NUM_NOISY)]
            moved = max(float(np.linalg.norm(each - value)) for each in others)
            share = min(share, error / (NOISY_SHARE * moved)) if moved else share
        if not share <= 1:  # NaN neither
            raise WrongError(f"{name} is off by {share:.3g} times what is allowed")
        worst = max(worst, share)
    return worst


def judge(case: Case, seed: int = 0, *, twin: bool = False) -> dict[str, Any]:
    """The verdict about a case: right, refused, WRONG or TRACEBACK.

    With `twin`, another core with as many rows, which must give the same bits, runs the case, too.
    """
    begin = time.perf_counter()
    found: dict[str, Any] = {"unit": case.unit, "case": case.text}
    try:
        with recorded() as tiled:
            one = of_model(case, seed, case.core)
        floor = CANCELLED[case.options.activations]
        for key, precision, bounds in (
            ("worst", "mxint8", {"near": NEAR, "floor": floor, "noisy_below": FAINT}),
            ("rough", "fp32", {"near": ROUGH, "floor": 0.1, "noisy_below": inf}),
        ):
            torch = partial(of_torch, case, seed, precision)
            found[key] = compare(one, torch(), noisy=torch, **bounds)
        for product, tiling in tiled.items():
            if reason := check(product, tiling, case.core, seed):
                raise WrongError(reason)
        found["verdict"] = "right"
        if twin:
            _check_twin(case, seed, one)
    except REFUSALS as error:
        found |= {"verdict": "refused", "reason": str(error)}
    except WrongError as error:
        found |= {"verdict": "WRONG", "reason": f"{error} ({settings_of(case)})"}
    except Exception:  # any error but a refusal is a defect
        reason = f"{traceback.format_exc(limit=-4)} ({settings_of(case)})"
        found |= {"verdict": "TRACEBACK", "reason": reason}
    return found | {"seconds": round(time.perf_counter() - begin, 3)}


def _check_twin(case: Case, seed: int, one: Mapping[str, Any]) -> None:
    """Raise `WrongError` if a core of other columns, lanes and sizes gives other bits."""
    own = case.core
    is_product = case.unit in PRODUCTS
    scratchpad = ScratchpadSpec(4, 1 << 16) if is_product else own.scratchpad
    lanes = min(8, scratchpad.port_bytes // 4)
    core = CoreSpec(
        own.rows, 16 if own.cols != 16 else 32, acc_depth=1024, scratchpad=scratchpad,
        vector=VectorSpec(lanes, lanes),
    )  # fmt: skip
    other = of_model(case, seed, core)
    apart = [
        name
        for name, value in one.items()
        if not (is_product and name.endswith((LOSS, ".bias")))
        and value.tobytes() != other[name].tobytes()
    ]
    if apart:
        raise WrongError(f"{', '.join(apart)} has other bits on another core")


def settings_of(case: Case) -> str:
    """Machine that a case runs on, as a text."""
    core, options = case.core, case.options
    return (
        f"core {core.rows}x{core.cols} number {CORES.index(core)}, {options.activations.name}, "
        f"{'training' if options.train else 'inference'}, {case.num_microbatches} micro-batches, "
        f"rounded weights {options.rounded_weights}, loss {options.loss.kind}"
    )


def plain(reason: str) -> str:
    """A reason without numbers and names."""
    return re.sub(r"\d[\d,.]*", "N", re.sub(r"'[^']*'", "...", reason))
