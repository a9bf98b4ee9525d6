"""The build folder: all that a run needs, and what guards it against damage.

It has the plan, the network, the cluster, the Verilog of each core with what it takes of its
boards, and each device's program and memory. Equal input gives equal bytes. A run adds its own
folder, which the manifest does not list.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from fpgapipe import __version__
from fpgapipe.errors import FileError, UserError
from fpgapipe.files import (
    exchange,
    open_file,
    parse_json,
    read_bytes,
    read_json,
    read_text,
    scratch_folder,
)
from fpgapipe.host.build_hardware import core_name, resources_json
from fpgapipe.host.core_bench import device_verilog
from fpgapipe.host.device_file import read_device, write_device
from fpgapipe.host.pipeline import PipelineProgram, build_pipeline
from fpgapipe.host.plan_cores import core_specs, devices_of, memory_specs, wire_specs
from fpgapipe.host.step_bench import initial_parameters
from fpgapipe.host.step_program import StepOptions
from fpgapipe.hw.hls_models.device import ClusterSpec
from fpgapipe.partition import graph_json
from fpgapipe.partition.plan import Plan
from fpgapipe.partition.schedule_kinds import make_schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from fpgapipe.host.device_program import DeviceProgram
    from fpgapipe.hw.hls_models.core_cycles import MemorySpec
    from fpgapipe.hw.hls_models.core_spec import CoreSpec
    from fpgapipe.partition.graph import Graph
    from fpgapipe.sim_tb.phy import WireSpec

MANIFEST = "manifest.json"
PLAN, NETWORK, CLUSTER = "plan.json", "network.json", "cluster.json"
HARDWARE, DEVICES, RUN = "hardware", "devices", "run"
FORMAT_VERSION = 4

MAX_BYTES = 1 << 30
"""A larger file of JSON is not read."""

logger = logging.getLogger(__name__)

_CLUSTERS = TypeAdapter(ClusterSpec)
_OPTIONS = TypeAdapter(StepOptions)

README = """\
# A build of fpgapipe {version}

`{network}` {purpose} on {devices} of `{cluster}`: a batch of {batch} in {count} micro-batches of
{microbatch}, schedule `{schedule}`.

| file | what it is |
|---|---|
| `plan.json` | which device computes which layers, on which core, and how long that should take |
| `network.json` | the network for one micro-batch: layers, shapes, names of parameters |
| `cluster.json` | the devices and the links between them |
| `hardware/*.v` | Verilog of each core, top module `top`; devices with equal cores share one |
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


@dataclass(frozen=True)
class Build:
    """An opened build folder; what is in its files is read when it is asked for.

    Attributes
    ----------
    folder : Path
    plan : Plan
    cluster : ClusterSpec
    options : StepOptions
        What its programs were made with.
    seed : int
        Of the initial parameters.
    """

    folder: Path
    plan: Plan
    cluster: ClusterSpec
    options: StepOptions
    seed: int

    @functools.cached_property
    def graph(self) -> Graph:
        """The network for one micro-batch."""
        return graph_json.from_json(read_text(self.folder / NETWORK, MAX_BYTES))

    @functools.cached_property
    def _devices(self) -> list[tuple[DeviceProgram, dict[str, NDArray[np.float32]]]]:
        return [
            read_device(self.folder / DEVICES / str(stage))
            for stage in range(len(self.plan.stages))
        ]

    @functools.cached_property
    def pipeline(self) -> PipelineProgram:
        """Programs of all devices."""
        return PipelineProgram(self.graph, tuple(program for program, _ in self._devices))

    @functools.cached_property
    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """Initial values, as the network has them."""
        return {name: value for _, own in self._devices for name, value in own.items()}

    @functools.cached_property
    def cores(self) -> list[CoreSpec]:
        """Of each device; equal ones are one object."""
        return core_specs(self.plan)

    @functools.cached_property
    def memories(self) -> list[MemorySpec]:
        """Of each device, for simulation: the board's memory at the core's clock."""
        return memory_specs(self.plan)

    @functools.cached_property
    def wires(self) -> list[WireSpec]:
        """For each device but the last, the cable to the next, for simulation."""
        return wire_specs(self.plan, self.cluster)

    @functools.cached_property
    def resources(self) -> list[dict[str, Any]]:
        """What each device's core takes of its board, as the JSON beside its Verilog says.

        Keys: ``core``, ``board``, ``basis``; ``blocks`` (numbers by block); ``used``, ``limits``
        and ``headroom``; ``dies``, a list with a name and the last three for each die. Numbers are
        of ``lut``, ``ff``, ``bram36``, ``uram`` and ``dsp``.
        """
        found = []
        for stage, core in zip(self.plan.stages, self.cores, strict=True):
            value = read_json(self.folder / HARDWARE / f"{core_name(core)}.json", MAX_BYTES)
            head = {"core": value["core"], "board": stage.board, "basis": value["basis"]}
            found.append(head | value["boards"][stage.board])
        return found


def write_build(
    plan: Plan,
    graph: Graph,
    cluster: ClusterSpec,
    folder: Path,
    *,
    seed: int = 0,
    options: StepOptions | None = None,
    on_part: Callable[[str], object] = lambda what: None,
) -> Build:
    """Make programs and hardware of a plan and write the folder, whole or not at all.

    Parameters
    ----------
    plan : Plan
    graph : Graph
        Of one micro-batch; its initial values are taken, as far as it has some.
    cluster : ClusterSpec
    folder : Path
        Where it is to be. A build that is there is replaced, unless it is the same.
    seed : int
        Of the initial parameters.
    options : StepOptions, optional
        Those of training or of inference, as the plan has it, if not given.
    on_part : callable
        Called with the name of each part before it is made.

    Raises
    ------
    UserError
        If a layer does not fit its core, a program its board's memory, the folder is there and is
        no earlier build, holds runs of another one, or cannot be written.
    """
    options = options or StepOptions(train=plan.trains)
    if options.train != plan.trains:
        raise UserError(f"a plan to {plan.mode} needs options for it")
    _refuse_foreign(folder)
    cores = core_specs(plan)
    places = devices_of(plan, cluster)
    memories = memory_specs(plan)
    on_part("programs")
    pipeline = _programs(plan, graph, cores, memories, options)
    for part, place, stage in zip(pipeline.parts, places, plan.stages, strict=True):
        room = cluster.devices[place].memory_bytes
        if part.memory_bytes > room:
            raise UserError(
                f"stage {part.index} needs {part.memory_bytes:,} bytes of memory, {stage.device} "
                f"has {room:,}; more micro-batches, a smaller batch or more devices need less"
            )
    parameters = initial_values(graph, seed)
    texts = {PLAN: plan.to_json(), NETWORK: graph_json.to_json(graph)}
    texts[CLUSTER] = _CLUSTERS.dump_json(cluster, indent=1).decode() + "\n"
    for core in dict.fromkeys(cores):
        name = f"{HARDWARE}/{core_name(core)}"
        on_part(f"{name}.v")
        texts[f"{name}.v"] = device_verilog(core)
        boards = [
            cluster.devices[at] for at, each in zip(places, cores, strict=True) if each == core
        ]
        texts[f"{name}.json"] = resources_json(core, boards)
    texts["README.md"] = _readme(plan, cores)
    build = Build(folder, plan, cluster, options, seed)
    with _writing(folder) as fresh:
        for name, text in texts.items():
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            (fresh / name).write_text(text)
        for part in pipeline.parts:
            name = f"{DEVICES}/{part.index}"
            on_part(name)
            (fresh / name).mkdir(parents=True)
            write_device(fresh / name, part, parameters)
        on_part(MANIFEST)
        (fresh / MANIFEST).write_text(_manifest(fresh, build))
    return build


def initial_values(graph: Graph, seed: int) -> dict[str, NDArray[np.float32]]:
    """Values to begin with: the network's own, as far as it has some, random ones for the rest."""
    values = initial_parameters(graph, seed)
    own = {
        name: np.asarray(graph.values[name], np.float32) for name in values if name in graph.values
    }
    return values | own


def _programs(
    plan: Plan,
    graph: Graph,
    cores: list[CoreSpec],
    memories: list[MemorySpec],
    options: StepOptions,
) -> PipelineProgram:
    layers = [stage.layers for stage in plan.stages]
    schedule = make_schedule(plan.schedule, len(layers), plan.num_microbatches)
    try:
        return build_pipeline(graph, cores, layers, schedule, memories[0], options)
    except NotImplementedError as error:
        raise UserError(str(error)) from error


def _readme(plan: Plan, cores: list[CoreSpec]) -> str:
    used: dict[str, list[str]] = {}
    for index, core in enumerate(cores):
        used.setdefault(core_name(core), []).append(f"stage {index} on {plan.stages[index].device}")
    count = len(plan.stages)
    return README.format(
        version=__version__,
        network=plan.network,
        purpose="in training" if plan.trains else "for inference",
        devices=f"{count} device{'s' * (count != 1)}",
        cluster=plan.cluster,
        batch=plan.batch,
        count=plan.num_microbatches,
        microbatch=plan.microbatch,
        schedule=plan.schedule,
        cores="\n".join(f"* `{HARDWARE}/{name}.v`: {', '.join(of)}" for name, of in used.items()),
    )


def _manifest(folder: Path, build: Build) -> str:
    value = {
        "format": "fpgapipe-build",
        "version": FORMAT_VERSION,
        "made_by": __version__,
        "seed": build.seed,
        "options": dataclasses.asdict(build.options),
        "files": {
            path.relative_to(folder).as_posix(): {
                "bytes": path.stat().st_size,
                "sha256": _digest(path, path.stat().st_size),
            }
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        },
    }
    return json.dumps(value, indent=2) + "\n"


def _refuse_foreign(folder: Path) -> None:
    try:
        foreign = folder.exists() and not (folder / MANIFEST).is_file() and not _is_empty(folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from None
    if foreign:
        raise UserError(f"{folder} is there and is no build of fpgapipe; name another with -o")


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[Path]:
    """Give an empty folder, and put it where it belongs when it is full.

    The same build is left as it is, with its runs; runs of another one are not thrown away. What a
    build that was killed has left is removed.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(folder) as scratch:
            fresh = scratch / "new"
            fresh.mkdir()
            yield fresh
            with holding(folder):
                if folder.exists():
                    if _is_whole(folder) and _same(folder / MANIFEST, fresh / MANIFEST):
                        return
                    if (folder / RUN).exists():
                        raise UserError(
                            f"{folder} holds runs of another build; move or remove {folder / RUN}, "
                            "or name another folder with -o"
                        )
                    exchange(fresh, folder)
                else:
                    fresh.replace(folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Let one process at a time use a build or replace it; others wait.

    The kernel frees the lock of a process that was killed. A folder that is not there is not held.
    """
    descriptor = None
    with contextlib.suppress(OSError):  # not there, or on a file system without locks
        while True:
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.info("waiting for another process that uses %s", folder)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                break
            os.close(descriptor)  # it was replaced meanwhile
            descriptor = None
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def open_build(folder: Path) -> Build:
    """Open a build folder, its files checked against the manifest.

    Raises
    ------
    UserError
        If it is no build, of another version, or damaged.
    """
    try:
        text = read_text(folder / MANIFEST, MAX_BYTES)
    except FileError as error:
        hint = "" if os.path.lexists(folder) else f"; 'fpgapipe build -o {folder}' makes one"
        why = f"{MANIFEST}: {error.faults[0]}"
        raise UserError(f"{folder} is no build folder ({why}){hint}") from None
    try:
        manifest = parse_json(text)
        if manifest["format"] != "fpgapipe-build":
            raise KeyError("format")
        version = manifest["version"]
        if version != FORMAT_VERSION:
            raise UserError(
                f"{folder} has format version {version}, not {FORMAT_VERSION}; build it again"
            )
        options, seed = _OPTIONS.validate_python(manifest["options"]), int(manifest["seed"])
        files = {
            str(name): (int(each["bytes"]), str(each["sha256"]))
            for name, each in manifest["files"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FileError(folder / MANIFEST, ["is no manifest of a build"]) from None
    damaged = _damaged(folder, files)
    if not damaged:
        plan = Plan.read(folder / PLAN) if PLAN in files else None
        missing = sorted(_needed(plan) - set(files)) if plan else [PLAN]
        damaged = [f"{MANIFEST} without {name}" for name in missing]
        if plan and not missing:
            try:
                cluster = _CLUSTERS.validate_json(read_bytes(folder / CLUSTER, MAX_BYTES))
            except ValidationError:
                raise FileError(folder / CLUSTER, ["is no cluster of a build"]) from None
            return Build(folder, plan, cluster, options, seed)
    names = ", ".join(damaged[:5]) + (", ..." if len(damaged) > 5 else "")
    raise UserError(f"{folder} is damaged ({names}); build it again")


def _needed(plan: Plan) -> set[str]:
    """Files that a build cannot do without."""
    cores = {f"{HARDWARE}/{core_name(core)}" for core in core_specs(plan)}
    return (
        {PLAN, NETWORK, CLUSTER}
        | {f"{core}.{end}" for core in cores for end in ("v", "json")}
        | {
            f"{DEVICES}/{stage}/{name}"
            for stage in range(len(plan.stages))
            for name in ("device.json", "program.bin", "image.bin")
        }
    )


def _damaged(folder: Path, files: dict[str, tuple[int, str]]) -> list[str]:
    return [
        name for name, (size, digest) in files.items() if _digest(folder / name, size) != digest
    ]


def _is_whole(folder: Path) -> bool:
    try:
        open_build(folder)
    except UserError:
        return False
    return True


def _same(one: Path, other: Path) -> bool:
    return read_bytes(one, MAX_BYTES) == read_bytes(other, MAX_BYTES)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _digest(path: Path, size_bytes: int) -> str:
    """SHA-256 of a file; empty if it is not of this size, or cannot be read."""
    try:
        with open_file(path, size_bytes) as file:
            if os.fstat(file.fileno()).st_size == size_bytes:
                return hashlib.file_digest(file, "sha256").hexdigest()
    except (FileError, OSError):
        pass
    return ""
