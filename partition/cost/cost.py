"""Cost of each layer on a device: cycles, seconds, memory and link traffic, bytes to keep.

docs/cost-model.md says what is counted and how. The cycles of matrix products come from
:mod:`fpgapipe.hw.hls_models.cycles.gemm` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fpgapipe.hw.hls_models.cycles.gemm import GemmCost, ProductSpec, gemm_costs
from fpgapipe.hw.hls_models.spec.node import NodeSpec
from fpgapipe.network.graph import Graph
from fpgapipe.network.operators import Measured, Pass
from fpgapipe.partition.cost.cores import (
    Violation,
    candidate_cores,
    core_fits,
    core_of,
)
from fpgapipe.partition.cost.work import LayerWork, PassWork, VectorWork, consumers, network_work
from fpgapipe.partition.cost.work_products import Formats

__all__ = [
    "CostModel",
    "Formats",
    "LayerCost",
    "PassCost",
    "Violation",
    "activation_bytes",
    "candidate_cores",
    "core_fits",
    "core_of",
    "layer_costs",
    "measured_costs",
]

VECTOR_CYCLES = 40
"""Start-up and drain of a vector instruction, in cycles.

They last from the instruction to its first result, and from its last operand to its last result.
This is an estimate for the decoder, the address generators and the longest lane pipeline (a
function by table)."""


@dataclass(frozen=True)
class PassCost:
    """Cost of one pass of a layer over one micro-batch.

    Attributes
    ----------
    seconds : float
        Duration of the pass.
    cycles : int
        Duration in clock cycles; 0 where the seconds were measured.
    gemm_cycles, vector_cycles, memory_cycles : int
        Cycles in which the array, the lanes and the memory are busy. A stage that overlaps its
        layers perfectly takes the largest of the three sums over its layers, not the sum of
        `cycles`.
    memory_bytes : int
        Bytes read and written.
    macs : int
        Multiply-accumulates.
    """

    seconds: float = 0.0
    cycles: int = 0
    gemm_cycles: int = 0
    vector_cycles: int = 0
    memory_cycles: int = 0
    memory_bytes: int = 0
    macs: int = 0


NO_PASS = PassCost()
"""Cost of a pass that a layer does not have."""


@dataclass(frozen=True)
class LayerCost:
    """Cost of one layer on one device.

    Attributes
    ----------
    name : str
        Name of the layer.
    forward, input_gradient, weight_gradient : PassCost
        Cost of each pass over one micro-batch; all zero where the layer does not have the pass.
    update : PassCost
        Cost of the optimiser's step, once per mini-batch.
    output_bytes : int
        Size of the output, which goes over a link if the next layer is on another device.
    gradient_bytes : int
        Size of the output's gradient, which comes back over that link; 0 if no reader computes it.
    weight_bytes : int
        Learned parameters in FP32, which an all-reduce moves. Shared parameters count in the first
        layer that has them.
    optimiser_bytes : int
        Master weights, gradients and momentum in FP32.
    operand_bytes : int
        Room for rounded copies of the weights, and tensors that are not learned. Programs make
        copies where these pay, of twice the bytes that are set aside here for every weight.
    activation_bytes : int
        Activations kept for the backward pass of one micro-batch, without those that an earlier
        layer keeps already.
    kept : tuple of (str, int)
        Names and bytes of all activations that the backward pass needs. The function
        `activation_bytes` adds them up for a set of layers.
    fused_into : str or None
        The layer that does this layer's work along with its own. A cut of the graph between the
        two is not charged for the extra pass that it would need.
    program_bytes : int
        Bytes of the instructions for a mini-batch; formulas, which do not know them, say 0.
    """

    name: str
    forward: PassCost
    input_gradient: PassCost
    weight_gradient: PassCost
    update: PassCost
    output_bytes: int
    gradient_bytes: int
    weight_bytes: int
    optimiser_bytes: int
    operand_bytes: int
    activation_bytes: int
    kept: tuple[tuple[str, int], ...]
    fused_into: str | None = None
    program_bytes: int = 0

    @property
    def state_bytes(self) -> int:
        """Bytes that are needed once, whatever is in flight."""
        return self.optimiser_bytes + self.operand_bytes + self.program_bytes

    @property
    def backward_s(self) -> float:
        """Seconds of both gradient passes of a micro-batch."""
        return self.input_gradient.seconds + self.weight_gradient.seconds

    @property
    def total_s(self) -> float:
        """Seconds of all three passes of a micro-batch."""
        return self.forward.seconds + self.backward_s


def activation_bytes(layers: Iterable[LayerCost]) -> int:
    """Bytes that a set of layers keeps for one micro-batch; shared tensors count once."""
    return sum({name: size for layer in layers for name, size in layer.kept}.values())


def layer_costs(graph: Graph, node: NodeSpec) -> list[LayerCost]:
    """Cost of each layer of a network on a node, in the graph's order.

    Raises
    ------
    ValueError
        If the network is a profile; use `measured_costs` for profiles.
    """
    return CostModel(graph).costs(node)


class CostModel:
    """Costs of one network on many devices and cores.

    Whatever follows from the shapes alone is computed once, in the constructor.

    Parameters
    ----------
    graph : Graph
    formats : Formats, optional
    accumulates : bool
        Whether there are several micro-batches, whose weight gradients are added up.

    Raises
    ------
    ValueError
        If the network is a profile; use `measured_costs` for profiles.
    """

    def __init__(
        self, graph: Graph, formats: Formats | None = None, *, accumulates: bool = False
    ) -> None:
        for layer in graph.layers.values():
            if isinstance(layer.operator, Measured):
                raise ValueError(
                    f"{graph.name}: layer {layer.name!r} has measured times, which hold for the "
                    "device they were measured on; no core's cycles follow from them"
                )
        self.graph = graph
        self.formats = formats or Formats()
        self._work = network_work(graph, self.formats, accumulates=accumulates)
        gradients = _with_gradient(graph)
        kept = zip(self._work, _kept_apart(graph, self._work), strict=True)
        self._sizes = [self._sizes_of(work, each, gradients) for work, each in kept]
        # Equal layers have equal passes, whose costs are found once for each core.
        known: dict[PassWork, PassWork] = {}
        self._passes = [
            (
                {each: known.setdefault(what, what) for each, what in work.passes.items()},
                known.setdefault(update := PassWork(vector=work.update), update),
            )
            for work in self._work
        ]

    def costs(self, node: NodeSpec, *, train: bool = True, as_one: bool = False) -> list[LayerCost]:
        """Cost of each layer, in the graph's order, for training or for inference.

        Each runs on one of the node's engines, or, if `as_one`, on an engine with the columns of
        all: the event simulation expects its times and divides it between two engines by itself.
        """
        distinct = {
            id(what): what for passes, update in self._passes for what in (*passes.values(), update)
        }
        cost_of = gemm_costs(node, as_one=as_one)
        costs = {key: _pass(what, node, cost_of, as_one=as_one) for key, what in distinct.items()}
        found = [
            LayerCost(
                work.layer.name,
                costs[id(passes[Pass.FORWARD])],
                costs.get(id(passes.get(Pass.INPUT_GRADIENT)), NO_PASS),
                costs.get(id(passes.get(Pass.WEIGHT_GRADIENT)), NO_PASS),
                costs[id(update)],
                *sizes,
            )
            for work, sizes, (passes, update) in zip(
                self._work, self._sizes, self._passes, strict=True
            )
        ]
        return found if train else [_forward_only(cost) for cost in found]

    def _sizes_of(self, work: LayerWork, kept: _Kept, gradients: Container[str]) -> tuple[Any, ...]:
        """Costs of a layer in memory and links, on any core: the rest of `LayerCost`."""
        layer = work.layer
        output_bytes = self.formats.tensor_bytes(layer.output)
        state = self.formats.state_bytes
        untrained = sum(p.spec.elements for p in layer.parameters if not p.spec.trainable)
        return (
            output_bytes,
            output_bytes if layer.name in gradients else 0,
            state * work.owned,
            3 * state * work.owned,
            2 * self.formats.operand_bytes(work.operands) + state * untrained,
            kept.apart_bytes,
            kept.tensors,
            work.fused_into,
        )


def _forward_only(cost: LayerCost) -> LayerCost:
    """The layer without backward pass and update; its output has memory of its own."""
    return replace(
        cost,
        input_gradient=NO_PASS,
        weight_gradient=NO_PASS,
        update=NO_PASS,
        gradient_bytes=0,
        optimiser_bytes=cost.weight_bytes,
        activation_bytes=cost.output_bytes,
        kept=((cost.name, cost.output_bytes),),
    )


def _pass(
    work: PassWork, node: NodeSpec, cost_of: Callable[[ProductSpec], GemmCost], *, as_one: bool
) -> PassCost:
    costs = [cost_of(product) for product in work.products]
    vector, vector_bytes = _vector(work.vector, node), _bytes(work.vector)
    memory_bytes = sum(cost.memory_bytes for cost in costs) + vector_bytes
    memory = node.transfer_cycles(memory_bytes, as_one=as_one)
    gemm = sum(cost.cycles for cost in costs)
    fixed = VECTOR_CYCLES + node.memory_latency_cycles
    if costs and work.concurrent:
        cycles = max(gemm, vector, memory)
    else:
        cycles = gemm
        if vector or vector_bytes:
            cycles += max(vector, node.transfer_cycles(vector_bytes, as_one=as_one)) + fixed
    return PassCost(
        cycles / node.clk_hz,
        cycles,
        sum(cost.compute_cycles for cost in costs),
        vector,
        memory,
        memory_bytes,
        sum(product.macs for product in work.products),
    )


def _vector(work: VectorWork, node: NodeSpec) -> int:
    vector = node.core.vector
    assert vector is not None, "a core that runs networks has lanes"
    plain = work.operations - work.functions
    return -(-plain // vector.lanes) + -(-work.functions // vector.function_lanes)


def _bytes(work: VectorWork) -> int:
    return work.read_bytes + work.write_bytes


@dataclass(frozen=True)
class _Kept:
    tensors: tuple[tuple[str, int], ...]
    apart_bytes: int


def _kept_apart(graph: Graph, work: Sequence[LayerWork]) -> list[_Kept]:
    """Tensors that each layer keeps; a reshaped one has the name of that of which it is a view."""
    first: dict[str, str] = {}
    for layer in graph.layers.values():
        if layer.op in ("reshape", "flatten"):
            first[layer.name] = first.get(layer.inputs[0], layer.inputs[0])
    seen: set[str] = set()
    result = []
    for each in work:
        tensors = {first.get(name, name): size for name, size in each.kept}
        apart = sum(size for name, size in tensors.items() if name not in seen)
        seen |= set(tensors)
        result.append(_Kept(tuple(tensors.items()), apart))
    return result


def _with_gradient(graph: Graph) -> frozenset[str]:
    """Layers for whose output at least one reader computes a gradient."""
    return frozenset(
        name
        for name, readers in consumers(graph).items()
        for reader in readers
        if any(reader.inputs[i] == name for i in graph.input_gradients(reader.name))
    )


def measured_costs(graph: Graph) -> list[LayerCost]:
    """Costs of a profile: its measured seconds and bytes, whatever the device.

    The optimiser's step takes no time, since profiles do not list it apart from the passes. A
    layer keeps its inputs for its backward pass, as PipeDream counts. Gradients are as large as
    outputs.

    Raises
    ------
    ValueError
        If a layer has no measured times.
    """
    result, seen = [], set()
    sizes: dict[str, int] = {}
    readers = consumers(graph)
    for layer in graph.layers.values():
        measured = layer.operator
        if not isinstance(measured, Measured):
            raise ValueError(
                f"{graph.name}: layer {layer.name!r} is a {layer.op} without measured times"
            )
        sizes[layer.name] = measured.output_bytes
        kept = tuple((name, sizes[name]) for name in layer.inputs if name in sizes)
        apart = sum(size for name, size in kept if name not in seen)
        seen |= {name for name, _ in kept}
        result.append(
            LayerCost(
                layer.name,
                PassCost(measured.forward_s),
                PassCost(measured.backward_input_s),
                PassCost(measured.backward_weight_s),
                NO_PASS,
                measured.output_bytes,
                measured.output_bytes if readers[layer.name] else 0,
                measured.weight_bytes,
                3 * measured.weight_bytes,
                0,
                apart,
                kept,
            )
        )
    return result
