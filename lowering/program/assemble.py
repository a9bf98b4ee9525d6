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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fpgapipe.hw.hls_models.isa.instructions import (
    NUM_SEMAPHORES,
    Instruction,
    Opcode,
    Span,
    semaphores_of_core,
)
from fpgapipe.hw.hls_models.isa.program import Program
from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.lowering.kernels.products import ProductKernel
from fpgapipe.lowering.memory.placed import Placed
from fpgapipe.lowering.program.group import Group, Groups, as_list
from fpgapipe.lowering.program.hazards import Hazards, TooManyPairs
from fpgapipe.lowering.program.last_writer import LastWriters
from fpgapipe.lowering.program.long_order import LongOrder, is_long
from fpgapipe.lowering.tiling.kernel import Kernel, Region, Track, VectorKernel

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
    tasks = tasks or [0] * len(kernels)
    order = np.arange(len(groups))
    waits = None
    if core is not None and num_free and is_long(groups):
        long = LongOrder(groups, num_free, tasks, _asked_in(groups, num_free, tasks))
        order[:num_free] = long.merged(groups.cycles(core)[:num_free], TURNAROUND_CYCLES)
        waits = long.waits(order, before, limit)
    elif core is not None and num_free:
        free = as_list(groups, core, num_free)
        _find_order(free, tasks, _asked_in(groups, num_free, tasks))
        order[:num_free] = [group.number for group in _merged(free)]
    program = groups.program.taken(groups.places(order))
    kernel_of = np.repeat(groups.kernel[order], groups.sizes[order]).tolist()
    if waits is None:
        try:
            waits = Hazards(program, kernel_of, before, limit).waits()
        except TooManyPairs:
            waits = Hazards(program, kernel_of, before, limit, reduces=True).waits()
    return Assembled(Program.joined([program.waiting(waits), END]), kernel_of)


def _find_order(
    order: Sequence[Group], tasks: Sequence[int], asked_in: Mapping[tuple[int, Track], int]
) -> None:
    """Record for each group how many groups of each other track have to come before it.

    If a group overwrites bytes that a group of another track reads or writes, its whole kernel
    comes after that group. All loads and stores of the kernel then come after those of the other
    group. If the overwriting group is a transfer, it comes after the whole other kernel.

    A group that reads data received from another device comes after all groups of earlier tasks.
    Loads keep their order, so a load that waits for another device must hold up neither the work
    that the other device is waiting for nor work that could be done in the meantime.
    """
    tracks = sorted({group.track for group in order})
    reads, writes = ({track: LastWriters() for track in tracks} for _ in range(2))
    count = dict.fromkeys(tracks, 0)
    kernel_end: dict[tuple[Track, int], int] = {}  # number of groups up to the end of a kernel
    counts_of_task: dict[int, dict[Track, int]] = {}  # number of groups when a task begins
    kernel_of: dict[tuple[Track, int], int] = {}
    first = order[0]
    for group in order:
        if group.first:
            first = group
        counts_of_task.setdefault(tasks[group.kernel], dict(count))
        loads, stores = group.reads, group.writes
        is_received = group.track.is_link and bool(stores)
        for other in tracks:
            if other is group.track:
                continue
            needed = _last(writes[other], loads)
            if needed:
                group.comes_after(other, needed)
            if needed and other.is_link:
                for track, before in counts_of_task[tasks[group.kernel]].items():
                    if track is not group.track:
                        group.comes_after(track, before)
            overwritten = max(_last(reads[other], stores), _last(writes[other], stores))
            if overwritten and is_received:
                overwritten = kernel_end[other, kernel_of[other, overwritten]]
            if overwritten:
                first.comes_after(other, overwritten)
            if is_received:
                begin = counts_of_task[asked_in[tasks[group.kernel], group.track]]
                group.comes_after(other, begin[other])
        count[group.track] += 1
        at = count[group.track]
        kernel_end[group.track, group.kernel] = at
        kernel_of[group.track, at] = group.kernel
        for known, spans in ((reads, loads), (writes, stores)):
            for span in spans:
                known[group.track].add(span, at)


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


def _last(last_writers: LastWriters, spans: Sequence[Span]) -> int:
    """Number, from 1, of the last group that accesses one of the spans; 0 if none does."""
    found = 0
    for span in spans:
        found = max(found, last_writers.last(span) or 0)
    return found


def _merged(order: Sequence[Group]) -> Iterator[Group]:
    """Yield the groups of all tracks, ordered by the estimated time at which they can begin."""
    waiting: dict[Track, list[Group]] = {track: [] for track in sorted({g.track for g in order})}
    for group in order:
        waiting[group.track].append(group)
    free = dict.fromkeys(waiting, 0)
    engine_free = dict.fromkeys(Track, 0)
    done: dict[Track, list[int]] = {track: [] for track in waiting}
    for _ in order:
        best: tuple[int, Track] | None = None
        for track, groups in waiting.items():
            index = len(done[track])
            if index == len(groups):
                continue
            group = groups[index]
            begin = free[track] + (TURNAROUND_CYCLES if group.first else 0)
            begin = max(begin, engine_free[track.engine])
            for other, number in group.after.items():
                if number > len(done[other]):
                    break
                if number:
                    begin = max(begin, done[other][number - 1] + TURNAROUND_CYCLES)
            else:
                if best is None or (begin, track) < best:
                    best = begin, track
        assert best is not None, "kernels must come in an order in which they can run"
        begin, track = best
        group = waiting[track][len(done[track])]
        free[track] = engine_free[track.engine] = begin + group.cycles
        done[track].append(free[track])
        yield group


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
        region = kernel.region if isinstance(kernel, VectorKernel) else None
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
