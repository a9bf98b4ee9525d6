"""Assembles kernels into one program.

Kernels are given in an order in which each one finds the data that it reads. On the core, products,
vector operations and transfers over links run at the same time, so the kernels of one engine may
overlap with those of the others as far as the tensors that they share allow. For example, the sums
of a normalisation overlap with the convolution whose results they add up, and a weight gradient
overlaps with the operators that wait for the input gradient. On a core with two GEMM engines,
kernels are divided into two *lanes*, which share the vector engine; it alternates between groups of
the two lanes.

A kernel is a sequence of *groups*: the instructions that load, compute and store one product or one
piece of a vector operation, or one part of a transfer. A *track* is the sequence of groups of one
engine and lane, and each track keeps its order. The groups of all tracks are merged by rough
estimates of their run times. A group that needs the results of another one waits for them
(:mod:`fpgapipe.lowering.program.hazards`).
"""

from collections import ChainMap, Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.isa.instructions import (
    NUM_SEMAPHORES,
    Instruction,
    Opcode,
    semaphores_of_core,
)
from fpgapipe.hw.hls_models.isa.program import WRITES, Program
from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.lowering.kernels.products import ProductKernel
from fpgapipe.lowering.memory.placed import Placed
from fpgapipe.lowering.program import order
from fpgapipe.lowering.program.group import Groups
from fpgapipe.lowering.program.hazards import is_long, new_table, waits_of
from fpgapipe.lowering.sums.on_chip_sum import OnChipSum
from fpgapipe.lowering.tiling.kernel import Kernel, Region, Track, VectorKernel
from fpgapipe.two_speeds import run

TURNAROUND_CYCLES = 300
"""Estimate of the cycles from the end of a group to the start of one that reads its results."""

END = Program.of([Instruction(Opcode.END)])


@dataclass(frozen=True)
class Assembled:
    """A program assembled from kernels.

    Attributes
    ----------
    instructions : Program
        The last one is END.
    kernel_of : list of int
        Number of the kernel of each instruction but END.
    """

    instructions: Program
    kernel_of: list[int]


def assemble(
    kernels: Sequence[Kernel],
    places: Mapping[str, Placed],
    core: CoreSpec | None = None,
    tasks: Sequence[int] | None = None,
    ordered_from: int | None = None,
    moved: Mapping[int, Mapping[str, Placed]] | None = None,
) -> Assembled:
    """Assemble kernels into one program.

    A kernel begins when the kernel before it in its track has written all its results, since both
    use the same part of the scratchpad.

    Parameters
    ----------
    kernels : sequence of Kernel
    places : mapping of str to Placed
        Places of all tensors, each of which begins at a multiple of 64 bytes.
    core : CoreSpec, optional
        The core, for estimates of run times; the kernels of different tracks then overlap. Without
        a core they run one after the other.
    tasks : sequence of int, optional
        Number of the task of each kernel, in non-decreasing order; two tasks that run concurrently,
        each in its own lane, have the same number. The RECEIVE instructions of a task are issued no
        earlier than during the task before it. The queue of a link's receiver therefore always has
        room, and the entries that wait in it do not hold up other instructions.
    ordered_from : int, optional
        Number of the first of the last kernels that keep their order; all keep it without a core.
    moved : mapping of int to mapping of str to Placed, optional
        Places that tensors have for some kernels only, by the numbers of these.

    Raises
    ------
    NotImplementedError
        If the program needs more semaphores than the core has.
    """
    limit = NUM_SEMAPHORES
    if core is not None:
        limit = semaphores_of_core(len(core.links), core.num_engines)
    addresses = {name: place.begin for name, place in places.items()}
    programs = []
    for number, kernel in enumerate(kernels):
        own = {name: place.begin for name, place in (moved or {}).get(number, {}).items()}
        programs.append(kernel.instructions(ChainMap(own, addresses) if own else addresses))
    groups = Groups.of(programs, [kernel.track for kernel in kernels])
    before = _kernels_before(kernels)
    last = len(kernels) if ordered_from is None else ordered_from
    num_free = int(np.searchsorted(groups.kernel, last))
    sequence = np.arange(len(groups))
    if core is not None and num_free:
        sequence[:num_free] = _merged(groups, num_free, tasks or [0] * len(kernels), core)
    program = groups.program.taken(groups.places(sequence))
    kernel_of = np.repeat(groups.kernel[sequence], groups.sizes[sequence])
    waits = waits_of(program, kernel_of, before, limit)
    return Assembled(Program.joined([program.waiting(waits), END]), kernel_of.tolist())


def _merged(
    groups: Groups, num_free: int, tasks: Sequence[int], core: CoreSpec
) -> NDArray[np.int64]:
    """Numbers of the first groups, ordered by the estimated time at which they can begin."""
    program = groups.program
    kernel = groups.kernel[:num_free]
    of_kernel = groups.tracks[: int(kernel[-1]) + 1]
    tracks = sorted(set(of_kernel))
    number = {track: index for index, track in enumerate(tracks)}
    known = {task: index for index, task in enumerate(sorted(set(tasks)))}
    asked_in = _asked_in(groups, num_free, tasks)
    own = list(zip(tasks, of_kernel, strict=False))
    task = np.array([known[each] for each, _ in own], np.int64)
    asked = np.array([known[asked_in.get(each, each[0])] for each in own], np.int64)
    begin, end = program.spans
    moves = np.flatnonzero(begin[: groups.begins[num_free]] >= 0)
    begin, end = begin[moves], end[moves]
    stores = np.isin(program.opcodes[moves], list(WRITES))
    found = order.Groups(
        np.array([number[track] for track in of_kernel], np.int64)[kernel],
        kernel,
        task[kernel],
        asked[kernel],
        groups.is_first[:num_free],
        groups.cycles(core)[:num_free],
        np.searchsorted(moves, groups.begins[: num_free + 1]).astype(np.int64),
        begin,
        end,
        stores,
        np.array([track.is_link for track in tracks], np.bool_),
        np.array([number.get(track.engine, number[track]) for track in tracks], np.int64),
    )
    count = len(tracks)
    reads, writes = (new_table(count, begin[which], end[which], end) for which in (~stores, stores))
    before = order.Before(
        after=_zeros(num_free * count),
        count=_zeros(count),
        kernel_end=_zeros(len(groups.tracks)),
        kernel_of=_zeros(count * (num_free + 1)),
        counts=np.full(len(known) * count, -1, np.int64),
    )
    compiles = is_long(program)
    run(order.find_order, found, reads, writes, before, compiles=compiles)
    merge = order.Merge(
        order=_zeros(num_free),
        numbers=_zeros(count * num_free),
        ends=_zeros(num_free),
        counts=_zeros(count),
        done=_zeros(count),
        free=_zeros(count),
        engine_free=_zeros(count),
    )
    done = run(order.merge, found, before.after, TURNAROUND_CYCLES, merge, compiles=compiles)
    assert done == num_free, "kernels must come in an order in which they can run"
    result: NDArray[np.int64] = merge.order
    return result


def _zeros(size: int) -> NDArray[np.int64]:
    return np.zeros(size, np.int64)


def _asked_in(groups: Groups, count: int, tasks: Sequence[int]) -> dict[tuple[int, Track], int]:
    """For each task and link, the task during which its RECEIVE instructions may first be issued.

    This is the task before it, unless the receiver's queue has no room for those of both tasks.
    Only the first `count` groups are meant.
    """
    sizes: Counter[tuple[int, Track]] = Counter()
    kernels, counts = np.unique(groups.kernel[:count], return_counts=True)
    for kernel, size in zip(kernels.tolist(), counts.tolist(), strict=True):
        if groups.tracks[kernel].is_link:
            sizes[tasks[kernel], groups.tracks[kernel]] += size
    known = sorted({tasks[kernel] for kernel in kernels.tolist()})
    before = dict(zip(known[1:], known, strict=False))
    found = {}
    for task, track in sizes:
        earlier = before.get(task, task)
        fits = sizes[task, track] + sizes[earlier, track] <= SequencerSpec().receive_words
        found[task, track] = earlier if fits else task
    return found


def _kernels_before(kernels: Sequence[Kernel]) -> list[int | None]:
    """For each kernel, the last one before it in its track whose part of the chip it takes over.

    Kernels store in their order, so those before that one have stored their results too.
    """
    latest: dict[Track, dict[Region | None, int]] = {}
    found: list[int | None] = []
    last: dict[Track, Kernel] = {}
    for number, kernel in enumerate(kernels):
        if isinstance(kernel, ProductKernel) and kernel.is_repeat:
            assert kernel.follows(last.get(kernel.track)), (
                "another kernel took the place of a weight"
            )
        last[kernel.track] = kernel
        region = kernel.region if isinstance(kernel, VectorKernel | OnChipSum) else None
        known = latest.setdefault(kernel.track, {})
        found.append(
            max((at for other, at in known.items() if _overlap(region, other)), default=None)
        )
        known[region] = number
    return found


def _overlap(one: Region | None, other: Region | None) -> bool:
    """Whether two parts of the scratchpad overlap; None is all of it."""
    if one is None or other is None:
        return True
    return one.base < other.base + other.size_bytes and other.base < one.base + one.size_bytes
