"""Compares the programs of a network's layers with PyTorch before they are built.

A verification of an import compares the network with its source, not its programs. Here each group
of layers that run together becomes a network of its own, which the same lowering turns into a
program of the same core. A learned tensor is added to each of its inputs and to its result, so that
gradients of inputs are compared, too, and layouts are those in the middle of a network. One step
with random values runs in the bit-exact model, and is compared with PyTorch with the core's numbers
(`NumericCheck`).

Height and width are reduced, as far as strides and windows at the borders stay as they are. Answers
are kept in files (`fpgapipe.answers`), so that each question is asked once.
"""

from __future__ import annotations

import importlib.util
import json
import time
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.answers import remembered
from fpgapipe.errors import FileError, UserError, counted
from fpgapipe.files import read_json
from fpgapipe.hw.hls_models.native.native_library import library
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.program.array_rows import array_rows
from fpgapipe.lowering.units.network_units import units_of
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
from fpgapipe.network import graph_json
from fpgapipe.network import operators as ops
from fpgapipe.network.graph import Graph, GraphBuilder
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.losses import Loss
from fpgapipe.network.operators.tensors import Tensor
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.units.unit import Unit
    from fpgapipe.partition.plan import Plan


@dataclass(frozen=True)
class Limits:
    """How much is compared.

    Attributes
    ----------
    time_s : float
        Time after which no comparison is begun, s; the model is compiled before it.
    macs : int
        Most multiply-accumulates of a forward pass that is compared.
    elements : int
        Most elements of parameters, and of inputs and results together, that are compared.
    """

    time_s: float = 15.0
    macs: int = 200_000_000
    elements: int = 4_000_000


SAMPLES = 2
"""Most samples, where no layer has their number in its settings."""

SOURCES = ("hw.hls_models", "lowering", "network", "host.backends", "host.runtime")
"""Packages that determine the outcome."""

NOTE = "verification.json"
"""File of a build folder that says what was verified; it is not part of the manifest."""

MAX_NOTE_BYTES = 1 << 20

LIMITS = Limits()
"""How much a build compares."""

SHRINKS = (
    ops.Activation,
    ops.Affine,
    ops.BatchNorm,
    ops.Binary,
    ops.Clamp,
    ops.Conv,
    ops.ConvTranspose,
    ops.Dropout,
    ops.GlobalPool,
    ops.Pool,
    ops.Unary,
)
"""Operators whose settings do not depend on the number of samples, height and width."""


@dataclass(frozen=True)
class Verification:
    """Comparison before a build, as its folder and the report say.

    Attributes
    ----------
    compared : int
        Groups of layers whose programs were compared.
    unverified : dict of str to str
        Layers whose programs were not compared, each with the reason.
    skipped : str
        Why nothing was compared at all; empty if something was.
    """

    compared: int = 0
    unverified: dict[str, str] = field(default_factory=dict)
    skipped: str = ""

    def __str__(self) -> str:
        """The outcome as a line of text."""
        if self.skipped:
            return f"programs not verified: {self.skipped}"
        what = counted(self.compared, "group")
        does = "computes" if self.compared == 1 else "compute"
        text = f"programs verified: {what} of layers {does} what PyTorch computes"
        reasons: dict[str, list[str]] = {}
        for name, reason in self.unverified.items():
            reasons.setdefault(reason, []).append(name)
        for reason, names in reasons.items():
            some = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if names[4:] else "")
            text += f"; not verified: {some} ({reason})"
        return text

    def write(self, folder: Path) -> None:
        """Write the note into a build folder."""
        (folder / NOTE).write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Verification:
        """The note of a build folder; one that has none was not verified."""
        try:
            value = read_json(folder / NOTE, MAX_NOTE_BYTES)
            unverified = {str(name): str(reason) for name, reason in value["unverified"].items()}
            return cls(int(value["compared"]), unverified, str(value["skipped"]))
        except (FileError, UserError, OSError, KeyError, TypeError, ValueError, AttributeError):
            return cls(skipped="its folder does not say that they were compared")


def verify_programs(
    plan: Plan,
    graph: Graph,
    options: StepOptions,
    *,
    limits: Limits = LIMITS,
    clock: Callable[[], float] = time.monotonic,
) -> Verification:
    """Compare the programs of a plan's layers with PyTorch.

    Parameters
    ----------
    plan : Plan
    graph : Graph
        Network for one micro-batch.
    options : StepOptions
        Options of the programs.
    limits : Limits
    clock : callable
        Present time, s.

    Raises
    ------
    UserError
        If the program of a layer computes something else; the message names the layer.
    """
    if importlib.util.find_spec("torch") is None:
        return Verification(skipped="that needs torch (pip install 'fpgapipe[torch]')")
    cores = {
        name: core
        for layers, core in zip(plan.node_layers, plan.cores, strict=True)
        for name in layers
    }
    degrees = plan.division.degrees
    cut = {name for name, parts in degrees.items() if parts.num_devices != parts.sample}
    whole = [unit for unit in units_of(graph) if unit.name not in cut]
    found = verify_units(graph, whole, cores, options, limits=limits, clock=clock)
    names = [unit.name for unit in units_of(graph) if unit.name in cut]
    unverified = dict.fromkeys(names, "cut over devices") | found.unverified
    return replace(found, unverified=unverified)


def verify_units(
    graph: Graph,
    units: Iterable[Unit],
    cores: Mapping[str, CoreSpec],
    options: StepOptions,
    *,
    limits: Limits = LIMITS,
    clock: Callable[[], float] = time.monotonic,
) -> Verification:
    """Compare the programs of groups of layers with PyTorch, equal ones once.

    Parameters
    ----------
    graph : Graph
        Network for one micro-batch.
    units : iterable of Unit
        Groups of its layers.
    cores : mapping of str to CoreSpec
        The core of each of them, by its name.
    options, limits, clock
        See `verify_programs`.

    Raises
    ------
    UserError
        If the program of a layer computes something else; the message names the layer.
    """
    unverified: dict[str, str] = {}
    asked: dict[str, tuple[Unit, Graph, CoreSpec]] = {}
    for unit in units:
        try:
            alone = alone_of(graph, unit, limits)
        except (NotImplementedError, ValueError, UserError) as error:
            unverified[unit.name] = str(error)
            continue
        core = cores[unit.name]
        asked.setdefault(f"{graph_json.to_json(alone)}\n{core}", (unit, alone, core))
    until: float | None = None
    compared = 0
    for unit, alone, core in sorted(asked.values(), key=lambda each: each[1].totals.macs):
        own = StepOptions(
            activations=options.activations, train=options.train, loss=Loss("mse"), apart=False
        )

        def find(alone: Graph = alone, core: CoreSpec = core, own: StepOptions = own) -> Any:
            nonlocal until
            if until is None:
                library()  # compiled once on a machine; that is no part of the time
                until = clock() + limits.time_s
            return compare(alone, core, own) if clock() < until else None

        question = {
            "network": graph_json.to_json(alone),
            "core": str(core),
            "options": str(own),
        }
        outcome = remembered("programs", SOURCES, question, find)
        if outcome is None:
            unverified[unit.name] = f"the {limits.time_s:g} s for it were over"
        elif outcome["refused"]:
            unverified[unit.name] = outcome["refused"]
        elif outcome["wrong"]:
            raise UserError(
                f"layer {unit.name!r}: its program computes something else than PyTorch "
                f"({outcome['wrong']}); this is a fault of fpgapipe, please report it; "
                "--no-verify builds it all the same"
            )
        else:
            compared += 1
    return Verification(compared, unverified)


def compare(graph: Graph, core: CoreSpec, options: StepOptions) -> dict[str, str]:
    """Run a network in the bit-exact model and in PyTorch.

    Returns
    -------
    dict of str to str
        ``wrong`` says what differs, ``refused`` why nothing was compared; both may be empty.
    """
    from fpgapipe.host.backends.model import ModelBackend
    from fpgapipe.host.backends.torch_backend import TorchBackend
    from fpgapipe.host.runtime.numeric_check import NumericCheck

    kind = "1f1b" if options.train else "gpipe"
    try:
        schedule = make_schedule(kind, 1, 1)
        pipeline = build_pipeline(graph, [core], [list(graph.layers)], schedule, options=options)
        values = initial_parameters(graph, 0)
        torch = TorchBackend(
            graph, values, options=options, precision="mxint8", device="cpu",
            array_rows=array_rows(pipeline.parts),
        )  # fmt: skip
    except (NotImplementedError, ValueError, UserError) as error:
        return {"wrong": "", "refused": " ".join(str(error).split())[:200]}
    inputs, labels = random_batch(graph, 0, loss=options.loss)
    check = NumericCheck(torch)
    model = ModelBackend(pipeline, values, repeats=True)
    with np.errstate(all="ignore"), model:
        before = model.state()
        if options.train:
            result = model.step(inputs, labels, scalar_bits())
            found = check.after(0, model, result, before, inputs, labels, scalar_bits())
        else:
            results, _ = model.infer(inputs, scalar_bits())
            found = check.after_inference(0, model, results, inputs, scalar_bits())
        if found is None:  # what is not finite differs from itself
            return {"wrong": "", "refused": ""}
        if options.train:
            torch.set_state(before)
            finite = np.isfinite(torch.step(inputs, labels, scalar_bits()).loss)
        else:
            finite = all(np.isfinite(each).all() for each in torch.infer(inputs)[0].values())
    if not finite:
        return {"wrong": "", "refused": "random values are outside of the range of its function"}
    return {"wrong": str(found), "refused": ""}


# ---------------------------------------------------------------------- a unit as a network


def alone_of(graph: Graph, unit: Unit, limits: Limits = LIMITS) -> Graph:
    """A network of the layers of a unit, with a learned tensor added before and behind.

    Raises
    ------
    ValueError
        If the layers do not run together there, or are too large.
    """
    for function in ("add", "mul"):
        found = _alone(graph, unit, function)
        kinds = [layer.op for layer in unit.layers]
        if any([layer.op for layer in each.layers] == kinds for each in units_of(found)):
            break
    else:
        raise ValueError("it cannot be taken out alone")
    sizes = [each.output.elements for each in found.layers.values()]
    elements = found.totals.parameters + sum(sizes)
    if found.totals.macs > limits.macs or elements > limits.elements:
        raise ValueError("too large to compare")
    return found


def _alone(graph: Graph, unit: Unit, function: str) -> Graph:
    ranks = {len(tensor.shape) for layer in unit.layers for tensor in layer.input_tensors}
    small = len(ranks) == 1 and all(isinstance(each.operator, SHRINKS) for each in unit.layers)
    assert graph.batch is not None
    batch = min(graph.batch, SAMPLES) if small else graph.batch
    builder = GraphBuilder("program", batch)
    names: dict[str, str] = {}

    def add(name: str) -> str:
        """A value with a learned tensor added to it, or multiplied by it."""
        constant = builder.add(
            f"{name}.value", ops.Constant(builder.tensor(name).shape, trainable=True)
        )
        return builder.add(f"{name}.changed", ops.Binary(function), name, constant)

    def given(name: str, tensor: Tensor) -> None:
        if name in names:
            return
        source = graph.layers.get(name)
        learned = source is not None and isinstance(source.operator, ops.Constant)
        shape = _smaller(unit, tensor.shape) if small else tensor.shape
        if learned and tensor.dtype.is_float:  # it has no samples
            names[name] = builder.add(f"c{len(names)}", ops.Constant(shape, trainable=True))
            return
        own = builder.input(f"x{len(names)}", tensor.with_shape(shape))
        names[name] = add(own) if tensor.dtype.is_float else own
        if any(name in each.inputs and _is_of_positive(each.operator) for each in unit.layers):
            names[name] = builder.add(f"{own}.positive", ops.Unary("exp"), names[name])

    # All inputs come before the first layer, since layers run together if nothing is in between.
    inner = {layer.name for layer in unit.layers}
    for layer in unit.layers:
        for name, tensor in zip(layer.inputs, layer.input_tensors, strict=True):
            if name not in inner:
                given(name, tensor)
    shared: dict[str, str] = {}
    for number, layer in enumerate(unit.layers):
        inputs = [names[name] for name in layer.inputs]
        own = {
            each.spec.role: shared.setdefault(each.name, f"p{len(shared)}")
            for each in layer.parameters
        }
        frozen = layer.frozen
        names[layer.name] = builder.add(
            f"l{number}", layer.operator, *inputs, shared=own, frozen=frozen
        )
    result = add(names[unit.name])
    tensor = builder.tensor(result)
    if tensor.shape[0] == batch and len(tensor.shape) > 1:
        return builder.build([result])
    # The loss needs samples.
    if tensor.elements % batch == 0:
        shape = (batch, tensor.elements // batch)
        return builder.build([builder.add("samples", ops.Reshape(shape), result)])
    flat = builder.add("flat", ops.Reshape((tensor.elements,)), result)
    samples = builder.input("samples", tensor.with_shape((batch, tensor.elements)))
    return builder.build([builder.add("product", ops.Binary("mul"), samples, flat)])


def _is_of_positive(operator: ops.Operator) -> bool:
    """Whether an operator computes numbers of positive numbers only."""
    if isinstance(operator, ops.Power):
        return not float(operator.exponent).is_integer()
    return isinstance(operator, ops.Unary) and operator.function in ("log", "sqrt", "rsqrt")


def _smaller(unit: Unit, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with fewer samples and positions, and with the same windows at its borders."""
    sizes = list(shape[2:])
    for axis, size in enumerate(sizes):
        least, period = 8, 4
        for layer in unit.layers:
            operator = layer.operator
            if isinstance(operator, ops.Conv | ops.ConvTranspose | ops.Pool):
                stride = operator.stride[axis]
                reach = (operator.kernel[axis] - 1) * operator.dilation[axis] + 1
                least, period = max(least, reach + 3 * stride), max(period, 4 * stride)
        if size > least:
            sizes[axis] = least + (size - least) % period
    return (min(shape[0], SAMPLES), *shape[1:2], *sizes)
