"""Checks that a build folder is what this version of fpgapipe makes of the plan in it.

Digests reveal damage, but not intent: whoever changes a file can also write a new digest. But a
build is determined by its plan, network, cluster, options and seed. A folder that comes from
elsewhere is therefore made again and compared, and the programs that run are those made here. The
folder's manifest is remembered after this check, or when the build is made on this machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from typing import TYPE_CHECKING

from fpgapipe import __version__
from fpgapipe.cache import cache_dir
from fpgapipe.errors import UserError, shown
from fpgapipe.files import size_text
from fpgapipe.host.build.build_parts import DEVICES, initial_values
from fpgapipe.host.build.device_file import DEVICE, IMAGE, PROGRAM, device_files, read_values
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.host.build.build_parts import Design
    from fpgapipe.lowering.program.pipeline import PipelineProgram

    Files = Mapping[str, tuple[int, str]]
    """Size in bytes and SHA-256 of each file, from the manifest."""

MAX_SCRATCHPAD_BYTES = 1 << 28
"""Most bytes of a scratchpad; no device has more on-chip memory."""

MIN_BYTES_PER_CYCLE, MAX_LATENCY_CYCLES = 2.0**-10, 1 << 20
"""Least bandwidth and greatest latency that a plan may state for a device's memory.

Times are predicted event by event with these values of the plan.
"""

SLACK_BYTES = 1 << 22
"""Allowance, in bytes, for constants and for parameters that begin as zero."""


# ---------------------------------------------------------------------- what is known


def is_known(manifest: bytes) -> bool:
    """Whether the build with this manifest was made or checked on this machine."""
    with contextlib.suppress(UserError, OSError):
        return (cache_dir() / "builds" / _digest([manifest])).is_file()
    return False


def remember(manifest: bytes) -> None:
    """Note that the build with this manifest need not be checked; without a cache, it will be."""
    with contextlib.suppress(UserError, OSError):
        folder = cache_dir() / "builds"
        folder.mkdir(exist_ok=True)
        (folder / _digest([manifest])).touch()


# ---------------------------------------------------------------------- before it is made anew


@contextlib.contextmanager
def in_doubt(folder: Path) -> Iterator[None]:
    """Report every exception of the body as a fault of the build folder.

    A folder that comes from elsewhere may break any rule that the lowering takes for granted.

    Raises
    ------
    UserError
        If the body raises anything.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        text = " ".join(f"{type(error).__name__} {error}".split())[:300]
        raise UserError(f"{folder} is no build of its plan ({text})") from error


def check_sizes(design: Design, files: Files, folder: Path) -> None:
    """Compare a design's size with the sizes of its files, before any of it is made.

    The time and memory that making the design takes are thereby bounded by the folder's size.

    Raises
    ------
    UserError
        If the files have sizes that such a design cannot have.
    """
    faults = _faults(design, files)
    if faults:
        raise UserError(f"{folder} is no build of its plan ({'; '.join(faults[:5])})")


def _faults(design: Design, files: Files) -> list[str]:
    plan, graph = design.plan, design.graph
    if graph.batch != plan.microbatch:
        return [f"its network is for {graph.batch} samples, its plan for {plan.microbatch}"]
    faults = []
    programs = [files[f"{DEVICES}/{index}/{PROGRAM}"][0] for index in range(len(plan.nodes))]
    moved = 0
    for index, node in enumerate(plan.nodes):
        rate, latency = node.spec.memory_bytes_per_cycle, node.spec.memory_latency_cycles
        if not rate >= MIN_BYTES_PER_CYCLE or latency > MAX_LATENCY_CYCLES:
            faults.append(f"the memory of device {index} is slower than any board's")
    for index, (core, size) in enumerate(zip(design.cores, programs, strict=True)):
        if core.scratchpad.size_bytes > MAX_SCRATCHPAD_BYTES:
            faults.append(f"the scratchpad of device {index} is larger than any device's")
        # A micro-batch takes at least one instruction, and an instruction moves at most as many
        # bytes as the scratchpad has.
        if size < plan.rounds * WORD_BYTES:
            faults.append(f"the program of device {index} is too short for its micro-batches")
        moved += size // WORD_BYTES * core.scratchpad.size_bytes
    parameters = sum(
        4 * math.prod(parameter.spec.shape)
        for layer in graph.layers.values()
        for parameter in layer.parameters
    )
    values = sum(
        4 * math.prod(tensor.shape)
        for tensor in (*graph.inputs.values(), *(each.output for each in graph.layers.values()))
    )
    images = sum(files[f"{DEVICES}/{index}/{IMAGE}"][0] for index in range(len(plan.nodes)))
    copies = plan.replicas * max(plan.division.sizes)  # of a parameter, at most
    if not images // (4 * copies) - SLACK_BYTES <= parameters <= 4 * images + SLACK_BYTES:
        faults.append("its images are not of the size of the network's parameters")
    if values * plan.num_microbatches > 8 * moved:
        faults.append("its programs are too short for the network's values")
    return faults


# ---------------------------------------------------------------------- made anew


def check_design(
    design: Design, files: Files, folder: Path, own: frozenset[str], made_by: str
) -> tuple[PipelineProgram, dict[str, NDArray[np.float32]]]:
    """Make all of a build but its Verilog again, and compare.

    Parameters
    ----------
    design : Design
    files : mapping
        Size and SHA-256 of all files of the build; the files are known to have these digests.
    folder : Path
    own : frozenset of str
        Parameters whose initial values came with the network; they are read from the memory images.
    made_by : str
        Version of fpgapipe that the manifest names.

    Returns
    -------
    pipeline : PipelineProgram
    parameters : dict of str to array
        Initial values.

    Raises
    ------
    UserError
        If files differ; the message names them.
    """
    try:
        different = [name for name, data in design.described() if _digest([data]) != files[name][1]]
        if not different:
            pipeline = design.pipeline()
            _refuse_memory(pipeline, folder)
            parameters = initial_values(design.graph, design.seed)
            if own:
                _take(own, pipeline, parameters, folder)
            different = [
                name
                for name, pieces in design.lowered(pipeline, parameters)
                if _digest(pieces) != files[name][1]
            ]
            if not different:
                return pipeline, parameters
    except UserError as error:
        raise UserError(f"{folder} is no build of its plan ({error})") from None
    by = "" if made_by == __version__ else f" by fpgapipe {shown(made_by)}"
    raise UserError(
        f"{folder} is not what fpgapipe {__version__} makes of its plan: {', '.join(different[:5])}"
        f"{', ...' if len(different) > 5 else ''} would differ; it was changed, or made{by} in "
        "another way; build it again"
    )


def _take(
    own: frozenset[str],
    pipeline: PipelineProgram,
    parameters: dict[str, NDArray[np.float32]],
    folder: Path,
) -> None:
    """Replace the random initial values of `own` by those in the build's memory images."""
    if not own <= parameters.keys():
        raise UserError(f"its network has no parameter {shown(min(own - parameters.keys()))}")
    for part in pipeline.parts:
        drawn = dict(device_files(part, parameters, ""))
        limit_bytes = 2 * len(drawn[DEVICE][0]) + SLACK_BYTES
        found = read_values(folder / DEVICES / str(part.index), part, limit_bytes)
        for name in own & found.keys():
            parameters[name] = parameters[name].copy()
            part.stored[name].put(parameters[name], found[name])


def _refuse_memory(pipeline: PipelineProgram, folder: Path) -> None:
    """Refuse devices that have more memory together than this machine."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    asked = sum(part.memory_bytes for part in pipeline.parts)
    if asked > there:
        raise UserError(
            f"its devices use {size_text(asked)} of memory, of which this machine has "
            f"{size_text(there)}"
        )


def _digest(pieces: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()
