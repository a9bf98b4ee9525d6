"""The build folder: all files that a run needs, and a manifest that reveals damage to them.

The folder has the plan, the network, the cluster, the Verilog of each core with the resources that
it takes on its boards, and the program and initial memory of each device. Equal input gives equal
bytes. A run adds a folder of its own, which the manifest does not list.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from fpgapipe import __version__
from fpgapipe.errors import FileError, UserError, shown
from fpgapipe.files import (
    exchange,
    open_file,
    parse_json,
    read_bytes,
    read_json,
    read_text,
    scratch_folder,
)
from fpgapipe.host.build.build_check import check_design, check_sizes, in_doubt, is_known, remember
from fpgapipe.host.build.build_hardware import core_name
from fpgapipe.host.build.build_parts import (
    CLUSTER,
    CLUSTERS,
    DEVICES,
    HARDWARE,
    MAX_BYTES,
    NETWORK,
    OPTIONS,
    PLAN,
    UNREAD,
    Design,
    initial_values,
    limit_of,
    needed,
    with_unread,
)
from fpgapipe.host.build.device_file import read_device
from fpgapipe.host.data.npz_file import npz_bytes
from fpgapipe.host.terminal.outputs import MANIFEST as MANIFEST
from fpgapipe.host.terminal.outputs import RUN as RUN
from fpgapipe.host.terminal.outputs import no_build
from fpgapipe.lowering.memory.memory_map import joined
from fpgapipe.lowering.program.pipeline import PipelineProgram
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network import graph_json
from fpgapipe.network.graph import NetworkError
from fpgapipe.partition.placed_nodes import PlacedNodes
from fpgapipe.partition.plan import Plan
from fpgapipe.partition.plan_version_3 import is_version_3
from fpgapipe.partition.pricing.machine import lower_plan, price_plan
from fpgapipe.partition.pricing.plan_cores import memory_specs
from fpgapipe.stopwatch import phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.host.build.verilog_ahead import Begun
    from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.lowering.program.device_program import DeviceProgram
    from fpgapipe.network.graph import Graph
    from fpgapipe.sim_tb.native.phy import WireSpec

FORMAT_VERSION = 9

MAX_MANIFEST_BYTES = 1 << 20
"""A larger manifest is not read; a real one has a few hundred bytes for each device."""

logger = logging.getLogger(__name__)

_WHOLE = TypeAdapter(Annotated[int, Field(ge=0, lt=1 << 128, strict=True)])
_TEXT = TypeAdapter(Annotated[str, Field(max_length=1000, strict=True)])
_NAMES = TypeAdapter(list[Annotated[str, Field(strict=True)]])


@dataclass(frozen=True)
class Build:
    """An opened build folder, whose files are read when their contents are first needed.

    Attributes
    ----------
    folder : Path
    plan : Plan
    cluster : ClusterSpec
    options : StepOptions
        Options that its programs were generated with.
    seed : int
        Seed of the initial parameters.
    """

    folder: Path
    plan: Plan
    cluster: ClusterSpec
    options: StepOptions
    seed: int

    @functools.cached_property
    def graph(self) -> Graph:
        """The network for one micro-batch."""
        try:
            graph = graph_json.from_json(read_text(self.folder / NETWORK, MAX_BYTES[NETWORK]))
        except NetworkError as error:
            raise FileError(self.folder / NETWORK, [str(error)]) from None
        path = self.folder / UNREAD
        return with_unread(graph, path) if path.exists() else graph

    @functools.cached_property
    def _devices(self) -> list[tuple[DeviceProgram, dict[str, NDArray[np.float32]]]]:
        return [
            read_device(self.folder / DEVICES / str(index)) for index in range(len(self.plan.nodes))
        ]

    @functools.cached_property
    def pipeline(self) -> PipelineProgram:
        """Programs of all devices."""
        parts = tuple(program for program, _ in self._devices)
        return PipelineProgram(self.graph, parts, PlacedNodes.of(self.plan, self.cluster).placement)

    @functools.cached_property
    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """Initial values of all parameters, under all the names that the network's source has."""
        return self.graph.by_every_name(joined(self._devices))

    @functools.cached_property
    def cores(self) -> list[CoreSpec]:
        """Each device's core; equal ones are one object."""
        return self.plan.cores

    @functools.cached_property
    def memories(self) -> list[MemorySpec]:
        """Memory of each device's board for simulation, in cycles of the core's clock."""
        return memory_specs(self.plan)

    @functools.cached_property
    def wires(self) -> list[WireSpec]:
        """Cables for simulation: for each device but the last, the cable to the next device."""
        from fpgapipe.host.build.wires import wire_specs  # packages need no simulator

        return wire_specs(self.plan, self.cluster)

    @functools.cached_property
    def resources(self) -> list[dict[str, Any]]:
        """Resources that each device's core takes on its board, read from the JSON of that core.

        The keys are ``core``, ``board`` and ``basis``; ``blocks``, the resources of each block;
        ``used``, ``limits`` and ``headroom``; and ``dies``, a list with the name, ``used``,
        ``limits`` and ``headroom`` of each die. Resources are numbers of ``lut``, ``ff``,
        ``bram36``, ``uram`` and ``dsp``.
        """
        found = []
        placed = PlacedNodes.of(self.plan, self.cluster)
        for node, device, core in zip(self.plan.nodes, placed.devices, self.cores, strict=True):
            value = read_json(
                self.folder / HARDWARE / f"{core_name(core)}.json", MAX_BYTES[".json"]
            )
            head = {"core": value["core"], "board": node.board, "basis": value["basis"]}
            found.append(head | value["boards"][device.place])
        return found

    @functools.cached_property
    def memory_use(self) -> list[dict[str, int]]:
        """Bytes of each device's memory by what they are used for; see `MemoryMap.account`."""
        return [part.account for part in self.pipeline.parts]

    def check_hardware(self) -> None:
        """Check that the folder has the cores' Verilog.

        Raises
        ------
        UserError
            If it was built without.
        """
        for core in dict.fromkeys(self.cores):
            if not (self.folder / HARDWARE / f"{core_name(core)}.v").exists():
                raise UserError(
                    f"{self.folder} was built with --no-hardware, so it has no cores to simulate "
                    "or to package; build it again without that option, or use --backend model"
                )

    def check_verilog(self) -> None:
        """Check that the folder's Verilog equals the Verilog generated now, which is simulated.

        Raises
        ------
        UserError
            If it differs, or there is none.
        """
        from fpgapipe.hw.rtl.core_verilog import device_verilog

        self.check_hardware()
        for core in dict.fromkeys(self.cores):
            path = self.folder / HARDWARE / f"{core_name(core)}.v"
            if read_text(path, MAX_BYTES[".v"]) != device_verilog(core):
                raise UserError(
                    f"{path} is not what fpgapipe {__version__} generates for this core and would "
                    "simulate: it was changed, or made by another version; build it again"
                )

    @property
    def run_folder(self) -> Path:
        """Folder for runs, measurements and the report; it may not exist yet.

        Raises
        ------
        UserError
            If there are links in it, through which files would be written elsewhere.
        """
        path = self.folder / RUN
        found = [path] if path.is_symlink() else []
        for folder, folders, files in os.walk(path):
            found += [
                each for name in (*folders, *files) if (each := Path(folder, name)).is_symlink()
            ]
        if found:
            raise UserError(
                f"{found[0]} is a link, and fpgapipe writes through none in a build; remove it"
            )
        return path


def write_build(
    plan: Plan,
    graph: Graph,
    cluster: ClusterSpec,
    folder: Path,
    *,
    seed: int = 0,
    options: StepOptions | None = None,
    on_part: Callable[[str], object] = lambda what: None,
    begun: Begun | None = None,
    hardware: bool = True,
) -> Build:
    """Generate the programs and hardware of a plan and write the folder, whole or not at all.

    A plan gets the times of its programs, unless it has those of programs with default options.

    Parameters
    ----------
    plan : Plan
    graph : Graph
        Network for one micro-batch. Parameters begin with the values that it has, the others with
        random values.
    cluster : ClusterSpec
    folder : Path
        Folder to write. An earlier build in it is replaced, unless it is the same.
    seed : int
        Seed of the random initial parameters.
    options : StepOptions, optional
        Options of the programs; if not given, the defaults for training or for inference,
        whichever the plan is for.
    on_part : callable
        Function that is called with the name of each part before the part is made.
    begun : Begun, optional
        Verilog that was begun before.
    hardware : bool
        Whether the cores' Verilog is generated; the model needs none.

    Raises
    ------
    UserError
        If a layer does not fit its core or a program its board's memory, or if the folder exists
        and is no earlier build, holds runs of another build, or cannot be written.
    """
    options = options or StepOptions(train=plan.trains)
    if options.train != plan.trains:
        raise UserError(f"a plan to {plan.mode} needs options for it")
    from fpgapipe.host.build.verilog_ahead import LARGE_MACS, verilog_ahead

    check_folder(folder)
    cores = list(dict.fromkeys(plan.cores))
    is_large = sum(node.macs for node in plan.nodes) >= LARGE_MACS
    with contextlib.ExitStack() as stack:
        verilog = begun.take(cores) if begun else None
        if hardware and not verilog:
            verilog = stack.enter_context(verilog_ahead(cores, is_large=is_large))
        on_part("programs")
        with phase("programs"):
            pipeline = lower_plan(plan, graph, cluster, options)
        if plan.predicted.level == "estimate" or options != StepOptions(train=plan.trains):
            on_part("times")
            with phase("times of the programs"):
                plan, _ = price_plan(plan, graph, cluster, pipeline, options)
        design = Design(plan, graph, cluster, options, seed)
        parameters = initial_values(graph, seed)
        texts = dict(design.described())
        if graph.state.unread:
            texts[UNREAD] = npz_bytes(graph.state.unread)
        build = Build(folder, plan, cluster, options, seed)
        build.__dict__["memory_use"] = [part.account for part in pipeline.parts]
        own = sorted(graph.values.keys() & parameters.keys())
        with _writing(folder) as fresh:
            for name, text in texts.items():
                _write(fresh / name, [text])
            parts = ""
            for name, pieces in design.lowered(pipeline, parameters):
                if (part := str(Path(name).parent)) != parts:
                    on_part(parts := part)
                _write(fresh / name, pieces)
            if verilog:  # last, since another process makes it meanwhile
                on_part(HARDWARE)
                with phase("elaboration of the hardware"):
                    for core, made in zip(cores, verilog(), strict=True):
                        _write(fresh / HARDWARE / f"{core_name(core)}.v", [made.encode()])
            on_part(MANIFEST)
            manifest = _manifest(fresh, build, own, hardware=hardware)
            _write(fresh / MANIFEST, [manifest])
    remember(manifest)
    return build


def _write(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.writelines(pieces)


def _manifest(folder: Path, build: Build, own: list[str], *, hardware: bool) -> bytes:
    value = {
        "format": "fpgapipe-build",
        "version": FORMAT_VERSION,
        "made_by": __version__,
        "seed": build.seed,
        "options": OPTIONS.dump_python(build.options, mode="json"),
        "own_values": own,
        **({} if hardware else {"hardware": False}),
        "files": {
            path.relative_to(folder).as_posix(): {
                "bytes": path.stat().st_size,
                "sha256": _digest(path, path.stat().st_size),
            }
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        },
    }
    return (json.dumps(value, indent=2) + "\n").encode()


def check_folder(folder: Path) -> None:
    """Check, before the work begins, whether a build can be written to a folder.

    Raises
    ------
    UserError
        If the folder exists and is no earlier build, or if it cannot be made.
    """
    try:
        foreign = folder.exists() and not (folder / MANIFEST).is_file() and not _is_empty(folder)
        if not folder.exists() and os.path.lexists(folder):
            raise FileNotFoundError(errno.ENOENT, "it is a link that leads nowhere")
        parent = folder.parent
        while not os.path.lexists(parent):
            parent = parent.parent
        if not foreign and not parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not foreign and not os.access(parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{folder} cannot be written: {reason}") from None
    if foreign:
        raise UserError(f"{folder} is there and is no build of fpgapipe; name another with -o")


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[Path]:
    """Give an empty folder to fill, and then give it the name of the build folder.

    If the build folder already has the same build, that is left as it is, with its runs. If it has
    runs of another build, an error is raised, since they would be lost. Leftovers of a build that
    was killed are removed.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(folder) as scratch:
            fresh = scratch / "new"
            fresh.mkdir()
            yield fresh
            with holding(folder):
                if folder.exists():
                    if _is_same(folder, fresh):
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
    """Lock a build folder, so that one process at a time uses or replaces it; others wait.

    The kernel frees the lock of a process that was killed. A folder that does not exist is not
    locked.
    """
    descriptor = None
    with contextlib.suppress(OSError):  # there is no such folder, or no locks on its file system
        while True:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.info("waiting for another process that uses %s", folder)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                break
            os.close(descriptor)  # the folder was replaced meanwhile
            descriptor = None
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


@dataclass(frozen=True)
class _Manifest:
    """Contents of ``manifest.json``; `own` are the parameters whose values came with the network.

    `hardware` says whether there is Verilog. `files` has the size in bytes and the SHA-256 of each
    file.
    """

    options: StepOptions
    seed: int
    made_by: str
    own: frozenset[str]
    hardware: bool
    files: Mapping[str, tuple[int, str]]


def open_build(folder: Path | str) -> Build:
    """Open a build folder.

    Its files are checked against the manifest. If the build was neither made nor opened on this
    machine before, all of it but the Verilog is also made again and compared byte by byte, so that
    nothing in it has to be trusted.

    Raises
    ------
    UserError
        If the folder is no build, is damaged, is of another version, or is not what fpgapipe makes
        of its plan.
    """
    if not isinstance(folder, Path | str):
        raise UserError(f"a build folder must be a path, not {type(folder).__name__}")
    folder = Path(folder)
    data, manifest = _read_manifest(folder)
    files = manifest.files
    inputs = (PLAN, NETWORK, CLUSTER, *([UNREAD] if UNREAD in files else []))
    _refuse_damage(folder, [f"{MANIFEST} without {name}" for name in inputs if name not in files])
    _refuse_damage(folder, _damaged(folder, {name: files[name] for name in inputs}))
    with in_doubt(folder):
        plan = Plan.read(folder / PLAN)
        try:
            cluster = CLUSTERS.validate_json(read_bytes(folder / CLUSTER, MAX_BYTES[CLUSTER]))
        except ValidationError:
            raise FileError(folder / CLUSTER, ["is no cluster of a build"]) from None
        names = needed(plan, hardware=manifest.hardware, unread=UNREAD in files)
        missing = sorted(names - files.keys())
        _refuse_damage(folder, [f"{MANIFEST} without {name}" for name in missing])
        _refuse_damage(folder, [f"{MANIFEST} with {name}" for name in sorted(files.keys() - names)])
        build = Build(folder, plan, cluster, manifest.options, manifest.seed)
        _ = build.run_folder  # raises if there are links in it
        if is_known(data):
            _refuse_damage(folder, _damaged(folder, files))
            return build
        text = read_bytes(folder / PLAN, MAX_BYTES[PLAN])
        old = text if is_version_3(text) else None
        design = Design(plan, build.graph, cluster, manifest.options, manifest.seed, old)
        check_sizes(design, files, folder)
        _refuse_damage(folder, _damaged(folder, files))
        logger.debug("%s was not made here: making it anew to compare", folder)
        pipeline, parameters = check_design(design, files, folder, manifest.own, manifest.made_by)
    # The cached properties are set, so that the files are not read again.
    every = build.graph.by_every_name(parameters)
    build.__dict__.update(pipeline=pipeline, parameters=every)
    remember(data)
    return build


def _read_manifest(folder: Path) -> tuple[bytes, _Manifest]:
    try:
        if _has_links(folder, MANIFEST):
            raise FileError(folder / MANIFEST, ["is a link, not a file"])
        data = read_bytes(folder / MANIFEST, MAX_MANIFEST_BYTES)
    except FileError as error:
        raise no_build(folder, error.faults[0]) from None
    try:
        value = parse_json(data)
        if value["format"] != "fpgapipe-build":
            raise KeyError("format")
        version = value["version"]
        if version != FORMAT_VERSION:
            raise UserError(
                f"{folder} has format version {shown(version)}, not {FORMAT_VERSION}; build it "
                "again"
            )
        return data, _Manifest(
            OPTIONS.validate_python(value["options"]),
            _WHOLE.validate_python(value["seed"]),
            _TEXT.validate_python(value["made_by"]),
            frozenset(_NAMES.validate_python(value["own_values"])),
            value.get("hardware") is not False,
            {
                _TEXT.validate_python(name): (
                    _WHOLE.validate_python(each["bytes"]),
                    _TEXT.validate_python(each["sha256"]),
                )
                for name, each in value["files"].items()
            },
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FileError(folder / MANIFEST, ["is no manifest of a build"]) from None


def _refuse_damage(folder: Path, damaged: list[str]) -> None:
    if damaged:
        names = ", ".join(damaged[:5]) + (", ..." if len(damaged) > 5 else "")
        raise UserError(f"{folder} is damaged ({names}); build it again")


def _damaged(folder: Path, files: Mapping[str, tuple[int, str]]) -> list[str]:
    return [
        name
        for name, (size, digest) in files.items()
        if size > limit_of(name)
        or _has_links(folder, name)
        or _digest(folder / name, size) != digest
    ]


def _has_links(folder: Path, name: str) -> bool:
    """Whether a file of a build, or one of the folders above it in the build, is a link."""
    path = Path(name)
    return any((folder / each).is_symlink() for each in (path, *path.parents) if each.name)


def _is_same(folder: Path, other: Path) -> bool:
    """Whether a folder is an undamaged build with the same manifest as another folder."""
    try:
        data, manifest = _read_manifest(folder)
    except UserError:
        return False
    return data == (other / MANIFEST).read_bytes() and not _damaged(folder, manifest.files)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _digest(path: Path, size_bytes: int) -> str:
    """SHA-256 of a file; empty if the file has another size or cannot be read."""
    try:
        with open_file(path, size_bytes) as file:
            if os.fstat(file.fileno()).st_size == size_bytes:
                return hashlib.file_digest(file, "sha256").hexdigest()
    except (FileError, OSError):
        pass
    return ""
