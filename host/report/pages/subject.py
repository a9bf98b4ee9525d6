"""The subject of a report: a build with its runs and measurements."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError, counted
from fpgapipe.host.report.pages.inputs import MEASURED, Measured, Run, read_measured, read_runs
from fpgapipe.lowering.units.network_units import units_of
from fpgapipe.partition.explore.plan_timeline import timeline_of_plan
from fpgapipe.partition.placed_nodes import PlacedNodes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fpgapipe.host.build.build import Build
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.partition.plan import Plan
    from fpgapipe.partition.timeline.timeline import Timeline


@dataclass(frozen=True)
class Subject:
    """A build with its measurements and runs.

    Attributes
    ----------
    build : Build
    measured : Measured or None
    measured_fault : str
        Reason why there are no measurements although there is a file of them, else "".
    runs : tuple of Run
    trace : str
        Address of the trace relative to the page; "" if there is none.
    """

    build: Build
    measured: Measured | None
    measured_fault: str
    runs: tuple[Run, ...]
    trace: str = ""

    @classmethod
    def of(cls, build: Build) -> Subject:
        """Read what lies in the build's ``run`` folder."""
        path = build.folder / "run" / MEASURED
        measured, why = read_measured(path)
        num_devices = len(build.plan.nodes)
        if measured and measured.devices and len(measured.devices) != num_devices:
            why = f"{path} has {counted(len(measured.devices), 'device')}, the plan {num_devices}."
            measured = None
        elif measured and any(
            not {link.source, link.destination} <= set(range(num_devices))
            for link in measured.links
        ):
            measured, why = None, f"{path} has a link of a device that the plan has not."
        return cls(build, measured, why, read_runs(build.folder / "run"))

    @property
    def plan(self) -> Plan:
        """Plan of the build."""
        return self.build.plan

    @property
    def cluster(self) -> ClusterSpec:
        """Cluster of the build."""
        return self.build.cluster

    @cached_property
    def names(self) -> list[str]:
        """Names of the devices, in the order of the chain."""
        return [node.device for node in self.plan.nodes]

    @cached_property
    def placed(self) -> PlacedNodes:
        """The devices of the plan's nodes, and the links that join them."""
        return PlacedNodes.of(self.plan, self.cluster)

    @property
    def clk_hz(self) -> float:
        """Clock frequency of the measurement, or else of the plan, as runs have it, Hz."""
        return self.measured.clk_hz if self.measured else self.plan.clk_hz

    @property
    def simulated_cycles(self) -> float | None:
        """Cycles of a simulated mini-batch: measured, or those of a simulated run's last."""
        if self.measured and self.measured.minibatch_cycles.rtl:
            return self.measured.minibatch_cycles.rtl
        counts = [step.cycles for run in self.runs for step in run.steps if step.cycles]
        return counts[-1] if counts else None

    @property
    def samples_per_s(self) -> float:
        """Samples a second: simulated if there is a simulation, else predicted."""
        predicted = self.plan.predicted.minibatch_s * self.clk_hz
        return self.plan.batch * self.clk_hz / (self.simulated_cycles or predicted)

    @property
    def measure_command(self) -> str:
        """The command line that measures the build."""
        return f"fpgapipe report {self.build.folder} --measure"

    def run_command(self, backend: str) -> str:
        """A command line that trains with a backend."""
        return f"fpgapipe run {self.build.folder} --backend {backend} --epochs 10"

    @cached_property
    def operators(self) -> Mapping[str, str]:
        """Operator of each layer, by its name; empty if the network cannot be read."""
        try:
            return {name: layer.op for name, layer in self.build.graph.layers.items()}
        except UserError:
            return {}

    @cached_property
    def units(self) -> Mapping[str, tuple[str, ...]]:
        """Layers that run together, in order, by the name of the last; empty if not known."""
        try:
            units = list(units_of(self.build.graph))
        except UserError:
            return {}
        return {unit.name: tuple(layer.name for layer in unit.layers) for unit in units}

    @cached_property
    def planned(self) -> Timeline:
        """The event simulation of the plan, with the times of the plan."""
        return timeline_of_plan(self.plan, self.cluster)


def array_words(core: CoreSpec) -> str:
    """Write a core's arrays: ``8x8``, ``2 of 8x8``."""
    array = f"{core.rows}x{core.cols}"
    return array if core.num_engines == 1 else f"{core.num_engines} of {array}"
