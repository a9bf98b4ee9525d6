"""The parts of a build and their files; the same design always gives the same bytes."""

from __future__ import annotations

import functools
import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np
from pydantic import TypeAdapter

from fpgapipe import __version__
from fpgapipe.errors import FileError
from fpgapipe.host.build.build_hardware import core_name, resources_json
from fpgapipe.host.build.device_file import DEVICE, IMAGE, PROGRAM, device_files
from fpgapipe.host.data.npz_file import NpzFile
from fpgapipe.hw.hls_models.spec.device import ClusterSpec
from fpgapipe.lowering.program.pipeline import PipelineProgram
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network import graph_json
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.partition.placed_nodes import PlacedNodes
from fpgapipe.partition.pricing.machine import lower_plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.plan import Plan

PLAN, NETWORK, CLUSTER, README = "plan.json", "network.json", "cluster.json", "README.md"
UNREAD = "unread.npz"
HARDWARE, DEVICES = "hardware", "devices"

MAX_BYTES = {
    PLAN: 1 << 24,
    NETWORK: 1 << 25,
    CLUSTER: 1 << 24,
    ".v": 1 << 28,
    ".json": 1 << 28,
    PROGRAM: 1 << 30,
    ".bin": 1 << 36,
    ".md": 1 << 20,
    UNREAD: 1 << 32,
}
"""Most bytes of a file with this name, or else with this suffix; a larger one is not read."""

CLUSTERS = TypeAdapter(ClusterSpec)

_README = """\
# A build of fpgapipe {version}

`{network}` {purpose} on {devices} of `{cluster}`: a batch of {batch} in {count} micro-batches of
{microbatch}, schedule `{schedule}`.

| file | what it is |
|---|---|
| `plan.json` | which device computes which layers, on which core, and how long that should take |
| `network.json` | the network for one micro-batch: layers, shapes, names of parameters |
| `cluster.json` | the devices and the links between them |{unread}
| `hardware/*.v` | Verilog of each core, top `top`; equal cores share one; none with --no-hardware |
| `hardware/*.json` | what the core takes of its board, by block, and the limits of board and dies |
| `devices/N/device.json` | core, memory map, kernels, tasks and register settings of stage N |
| `devices/N/program.bin` | its program, as it lies in its memory |
| `devices/N/image.bin` | what else is not zero there at first: parameters and constants |
| `manifest.json` | SHA-256 of every file |

{cores}

Run it with `fpgapipe run` and the name of this folder: `--backend sim` simulates the devices cycle
by cycle, `--backend model` runs the bit-exact model, `--backend torch` the same network in PyTorch.
`fpgapipe report` makes a page of what came out. Both write to `run/`, which has no digests.
"""


OPTIONS = TypeAdapter(StepOptions)
"""Options of a step as JSON, in the manifest and in digests."""


@dataclass(frozen=True)
class Design:
    """The input of a build, which determines all of its files.

    Attributes
    ----------
    plan : Plan
    graph : Graph
        The network for the samples of one micro-batch.
    cluster : ClusterSpec
    options : StepOptions
    seed : int
        Seed of the initial parameters.
    plan_text : bytes, optional
        Text of the plan in the build, if the build has that of an older version.
    """

    plan: Plan
    graph: Graph
    cluster: ClusterSpec
    options: StepOptions
    seed: int
    plan_text: bytes | None = None

    @functools.cached_property
    def cores(self) -> list[CoreSpec]:
        """Each device's core; equal ones are one object."""
        return self.plan.cores

    @functools.cached_property
    def inputs(self) -> dict[str, bytes]:
        """Names and contents of the files that determine all others."""
        return {
            PLAN: self.plan_text or self.plan.to_json().encode(),
            NETWORK: graph_json.to_json(self.graph).encode(),
            CLUSTER: CLUSTERS.dump_json(self.cluster, indent=1) + b"\n",
        }

    @property
    def digest(self) -> str:
        """SHA-256 of all that determines the programs: options, plan, network and cluster."""
        digest = hashlib.sha256(OPTIONS.dump_json(self.options))
        for data in self.inputs.values():
            digest.update(b"\n" + data)
        return digest.hexdigest()

    def pipeline(self) -> PipelineProgram:
        """Generate the programs of all devices.

        Raises
        ------
        UserError
            If a layer does not fit its core, or a program its board's memory.
        """
        return lower_plan(self.plan, self.graph, self.cluster, self.options)

    def described(self) -> Iterator[tuple[str, bytes]]:
        """Names and contents of the files that need no program, but for the Verilog."""
        plan = self.plan
        yield from self.inputs.items()
        devices = PlacedNodes.of(plan, self.cluster).devices
        for core in dict.fromkeys(self.cores):
            pairs = zip(devices, self.cores, strict=True)
            boards = [device for device, each in pairs if each == core]
            yield f"{HARDWARE}/{core_name(core)}.json", resources_json(core, boards).encode()
        yield README, _readme(plan, self.cores, unread=bool(self.graph.state.unread)).encode()

    def lowered(
        self, pipeline: PipelineProgram, parameters: Mapping[str, NDArray[np.float32]]
    ) -> Iterator[tuple[str, list[bytes | memoryview]]]:
        """Names and contents of the files of all devices, made one after the other.

        Parameters
        ----------
        pipeline : PipelineProgram
            Result of the method `pipeline`.
        parameters : mapping of str to array
            Initial values of all parameters.
        """
        digest = self.digest
        for part in pipeline.parts:
            for name, pieces in device_files(part, parameters, digest):
                yield f"{DEVICES}/{part.index}/{name}", pieces


def limit_of(name: str) -> int:
    """Most bytes that a file of a build may have; 0 if a build has no such file."""
    path = PurePath(name)
    return MAX_BYTES.get(path.name) or MAX_BYTES.get(path.suffix, 0)


def needed(plan: Plan, *, hardware: bool, unread: bool) -> set[str]:
    """Names of all files that a build has, but for the manifest.

    Parameters
    ----------
    plan : Plan
    hardware : bool
        Whether it has Verilog.
    unread : bool
        Whether the network's source keeps tensors that no layer has.
    """
    cores = {f"{HARDWARE}/{core_name(core)}" for core in plan.cores}
    ends = ("v", "json") if hardware else ("json",)
    return (
        {PLAN, NETWORK, CLUSTER, README}
        | ({UNREAD} if unread else set())
        | {f"{core}.{end}" for core in cores for end in ends}
        | {
            f"{DEVICES}/{index}/{name}"
            for index in range(len(plan.nodes))
            for name in (DEVICE, PROGRAM, IMAGE)
        }
    )


def with_unread(graph: Graph, path: Path) -> Graph:
    """The network with the values of a build's file of what no layer has.

    Raises
    ------
    FileError
        If the file is damaged, claims more than it holds, or has what the source does not keep.
    """
    own = {each.name for layer in graph.layers.values() for each in layer.parameters}
    with NpzFile(path) as archive:
        names = sorted(archive.names)
        headers = [archive.header(name) for name in names]
        size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in headers)
        if size > path.stat().st_size:
            raise FileError(path, ["claims more values than it holds"])
        kept = set(graph.state.names) - own - graph.aliases.keys()
        if foreign := [name for name in names if name not in kept]:
            raise FileError(path, [f"has {foreign[0]}, which {graph.name} keeps in no such file"])
        unread = {name: archive.array(name) for name in names}
    return replace(graph, state=replace(graph.state, unread=unread))


def initial_values(graph: Graph, seed: int) -> dict[str, NDArray[np.float32]]:
    """Initial values of all parameters: the network's own where it has some, else random ones."""
    values = initial_parameters(graph, seed)
    own = {
        name: np.asarray(graph.values[name], np.float32) for name in values if name in graph.values
    }
    return values | own


def _readme(plan: Plan, cores: list[CoreSpec], *, unread: bool) -> str:
    used: dict[str, list[str]] = {}
    for stage, node, core in zip(plan.stage_numbers, plan.nodes, cores, strict=True):
        used.setdefault(core_name(core), []).append(f"stage {stage} on {node.device}")
    count = len(plan.nodes)
    return _README.format(
        version=__version__,
        network=plan.network,
        purpose="in training" if plan.trains else "for inference",
        devices=f"{count} device{'s' * (count != 1)}",
        cluster=plan.cluster,
        batch=plan.batch,
        count=plan.num_microbatches,
        microbatch=plan.microbatch,
        schedule=plan.order_name,
        unread="\n| `unread.npz` | counters, and what else the module keeps and no layer has |"
        if unread
        else "",
        cores="\n".join(f"* `{HARDWARE}/{name}.v`: {', '.join(of)}" for name, of in used.items()),
    )
