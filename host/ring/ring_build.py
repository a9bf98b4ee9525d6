"""A ring of models as it is built: programs of all devices, and what a run needs of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.host.build.build_parts import initial_values
from fpgapipe.lowering.ring.ring_program import build_ring
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.partition.pricing.machine import lower_plan
from fpgapipe.partition.pricing.plan_cores import memory_specs
from fpgapipe.partition.strategies.plan_ring import hop_cycles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.host.ring.devices import RingBackend, RingDevices
    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.lowering.program.device_program import DeviceProgram
    from fpgapipe.lowering.ring.ring_program import RingProgram
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.strategies.plan_ring import RingPlan


@dataclass(frozen=True)
class RingBuild:
    """The programs of all models, in groups of at most as many as there are devices.

    Attributes
    ----------
    plan : RingPlan
    cluster : ClusterSpec
    graphs : tuple of Graph
        Network of each model, for one micro-batch.
    programs : tuple of DeviceProgram
        Training step of each model on one device; models of one network share it.
    groups : tuple of RingProgram
    seed : int
        Seed of the first model's initial parameters; each further model has the next one.
    """

    plan: RingPlan
    cluster: ClusterSpec
    graphs: tuple[Graph, ...]
    programs: tuple[DeviceProgram, ...]
    groups: tuple[RingProgram, ...]
    seed: int

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        return len(self.cluster.devices)

    @cached_property
    def parameters(self) -> list[dict[str, NDArray[np.float32]]]:
        """Initial parameters of each model."""
        return [initial_values(graph, self.seed + k) for k, graph in enumerate(self.graphs)]

    def members(self, group: int) -> range:
        """Numbers of the models of a group."""
        first = group * self.num_devices
        return range(first, min(first + self.num_devices, len(self.graphs)))

    def open(self, group: int, backend: RingBackend, threads: int | None = None) -> RingDevices:
        """The devices of a group, with its models' initial parameters."""
        from fpgapipe.host.ring.devices import ModelDevices, SimulatorDevices

        parameters = [self.parameters[model] for model in self.members(group)]
        if backend == "model":
            return ModelDevices(self.groups[group], parameters)
        from fpgapipe.host.build.wires import wire_specs

        wires = wire_specs(self.plan.spread, self.cluster)
        return SimulatorDevices(
            self.groups[group], parameters, memory_specs(self.plan.spread), wires, threads=threads
        )

    def predicted_hop(self, group: int, rounds: int) -> int:
        """Cycles of the hop after a round, by the cycle model."""
        codes = self.groups[group].hop_of(rounds)
        return hop_cycles(self.plan, self.cluster, [code.instructions for code in codes])

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all memories before the first round, which identifies the build."""
        digest = hashlib.sha256()
        for group, ring in enumerate(self.groups):
            for image in ring.images([self.parameters[model] for model in self.members(group)]):
                digest.update(image.data)
        return digest.hexdigest()


def check_one_output(graph: Graph) -> None:
    """Refuse a network with several outputs: models that travel have one loss each.

    Raises
    ------
    UserError
        If the network has several.
    """
    if len(graph.outputs) > 1:
        raise UserError(
            f"each model of a ring must be a network with one output, and {graph.name} has "
            f"{len(graph.outputs)}: train it with 'fpgapipe build' and 'fpgapipe run'"
        )


def make_ring_build(
    plan: RingPlan,
    loads: Sequence[Callable[[int], Graph]],
    cluster: ClusterSpec,
    *,
    seed: int = 0,
) -> RingBuild:
    """Make the programs of a plan.

    Parameters
    ----------
    plan : RingPlan
    loads : sequence of callable
        Function that loads each model's network for a number of samples.
    cluster : ClusterSpec
    seed : int

    Raises
    ------
    UserError
        If a layer does not fit the core, all models together do not fit a device's memory, or a
        network has several outputs.
    """
    options = StepOptions()
    known: dict[str, tuple[Graph, DeviceProgram]] = {}
    for name, each, load in zip(plan.networks, plan.plans, loads, strict=True):
        if name not in known:
            graph = load(each.microbatch)
            check_one_output(graph)
            known[name] = graph, lower_plan(each, graph, cluster, options).parts[0]
    found = [known[name] for name in plan.networks]
    count = len(cluster.devices)
    core = plan.spread.cores[0]
    groups = tuple(
        build_ring([program for _, program in found[first : first + count]], core, count)
        for first in range(0, len(found), count)
    )
    for ring in groups:
        room = cluster.devices[0].memory_bytes
        if ring.memory_bytes > room:
            raise UserError(
                f"{len(ring.models)} models need {ring.memory_bytes:,} bytes of each device's "
                f"memory, {cluster.device_names[0]} has {room:,}; take fewer models at once"
            )
    return RingBuild(
        plan,
        cluster,
        tuple(graph for graph, _ in found),
        tuple(program for _, program in found),
        groups,
        seed,
    )
