"""Puts kernels together to a program.

Kernels come in an order in which each finds what it reads. On the core, products, vectors and
transfers over links run at the same time, so the kernels of one engine may go on beside those of
the others, as far as tensors allow: a normalisation's sums beside the convolution whose results
they add up, a weight gradient beside the operators that wait for the input gradient. On a core of
two GEMM engines kernels have two *lanes*, which share the vector engine by groups.

A kernel is a sequence of *groups*: what one product, or one piece, loads, computes and stores, or a
part of a transfer. Each track, the groups of one engine, keeps its order. Groups of all tracks are
merged by a rough timing, and what needs the results of another waits for them
(:mod:`fpgapipe.lowering.program.hazards`).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fpgapipe.hw.hls_models.cycles.instruction_cycles import gemm_timing
from fpgapipe.hw.hls_models.cycles.vector_cycles import vector_cycles
from fpgapipe.hw.hls_models.isa.instructions import Instruction, Opcode, Span, span_of
from fpgapipe.hw.hls_models.isa.vector_op import VectorOp
from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.lowering.memory.placed import Placed
from fpgapipe.lowering.program.hazards import READS, WRITES, Hazards
from fpgapipe.lowering.program.last_writer import LastWriters
from fpgapipe.lowering.tiling.kernel import Kernel, Track

TURN_CYCLES = 300
"""From the end of a group to the beginning of one that reads its results, about."""

LINK_BYTES_PER_CYCLE = 16
"""Of a transfer over a link, about."""


@dataclass(frozen=True)
class Assembled:
    """A program of kernels.

    Attributes
    ----------
    instructions : list of Instruction
        END is the last.
    kernel_of : list of int
        For each instruction but END, the number of the kernel it belongs to.
    """

    instructions: list[Instruction]
    kernel_of: list[int]


@dataclass
class _Group:
    """Instructions that belong together.

    Attributes
    ----------
    kernel : int
    track : Track
    first : bool
        Whether it is the first of its kernel.
    instructions : list of Instruction
    after : dict of Track to int
        Number of groups of each other track that come before it.
    """

    kernel: int
    track: Track
    first: bool
    instructions: list[Instruction] = field(default_factory=list)
    after: dict[Track, int] = field(default_factory=dict)

    def spans(self, opcodes: frozenset[Opcode]) -> list[Span]:
        """Bytes of memory that its reads or writes touch."""
        return [span_of(each) for each in self.instructions if each.opcode in opcodes]

    def comes_after(self, track: Track, number: int) -> None:
        """Let so many groups of a track come before it."""
        self.after[track] = max(self.after.get(track, 0), number)

    def cycles(self, core: CoreSpec, known: dict[int, int]) -> int:
        """For which its engine works, about; `known` are cycles of bodies, by their identity."""
        total = 0
        for instruction in self.instructions:
            if instruction.opcode in (Opcode.GEMM, Opcode.VECTOR):
                body = instruction.body
                if id(body) not in known:
                    known[id(body)] = _work(instruction, core)
                total += known[id(body)]
            elif self.track.is_link:
                begin, end = span_of(instruction)
                total += (end - begin) // LINK_BYTES_PER_CYCLE
        return total


def _work(instruction: Instruction, core: CoreSpec) -> int:
    """Cycles of a product or of an instruction of the vector engine, about."""
    if instruction.opcode is Opcode.GEMM:
        return gemm_timing(instruction.body, core).stream_cycles
    assert core.vector is not None, "a vector kernel needs a vector engine"
    return vector_cycles(VectorOp.decoded(instruction.body), core.vector)


def assemble(
    kernels: Sequence[Kernel],
    places: Mapping[str, Placed],
    core: CoreSpec | None = None,
    tasks: Sequence[int] | None = None,
) -> Assembled:
    """Make one program of kernels.

    A kernel begins when the one before it in its track has written all that it writes, since both
    use the same part of the scratchpad.

    Parameters
    ----------
    kernels : sequence of Kernel
    places : mapping of str to Placed
        Of all tensors, which begin at multiples of 64 bytes.
    core : CoreSpec, optional
        Lets the kernels of different tracks overlap; without one they run one after the other.
    tasks : sequence of int, optional
        For each kernel the number of its task, which never falls; two tasks that run side by side,
        each in its lane, have one. What a task receives over links is asked for while the task
        before it runs, not earlier: so the queue of a link's receiver always has room, and whatever
        waits in it holds nothing up.

    Raises
    ------
    ValueError
        If the program needs more semaphores than there are.
    """
    addresses = {name: place.begin for name, place in places.items()}
    order: list[_Group] = []
    for number, kernel in enumerate(kernels):
        order += _groups(number, kernel, addresses)
    if core is not None and order:
        _find_order(order, tasks or [0] * len(kernels))
        order = list(_merged(order, core))
    tagged = [(group.kernel, each) for group in order for each in group.instructions]
    kernel_of = [number for number, _ in tagged]
    waits = Hazards([each for _, each in tagged], kernel_of, _kernels_before(kernels))
    return Assembled([*waits.add(), Instruction(Opcode.END)], kernel_of)


def _groups(number: int, kernel: Kernel, addresses: Mapping[str, int]) -> Iterator[_Group]:
    """Cut a kernel where something new is loaded, or computed; a transfer, into its parts."""
    group = _Group(number, kernel.track, first=True)
    moves = (Opcode.LOAD, Opcode.STORE)
    for instruction in kernel.instructions(addresses):
        before = group.instructions[-1].opcode if group.instructions else None
        begins = {
            Opcode.LOAD: before not in (None, Opcode.LOAD),
            Opcode.STORE: False,
            Opcode.GEMM: before not in (None, Opcode.LOAD),
            Opcode.VECTOR: before is Opcode.STORE,
            Opcode.SEND: before is not None,
            Opcode.RECEIVE: before is not None,
        }[instruction.opcode]
        if begins:
            yield group
            group = _Group(number, kernel.track, first=False)
        group.instructions.append(instruction)
    if not kernel.track.is_link:
        assert group.instructions[-1].opcode in moves, "a kernel must end with a store"
    yield group


def _find_order(order: Sequence[_Group], tasks: Sequence[int]) -> None:
    """Say of each group how many of the other tracks have to come before it.

    A group that overwrites what another reads, or wrote, comes behind it with its whole kernel:
    the kernel's loads are then behind those of the other, and all it writes behind them. What
    overwrites by a transfer comes behind the whole of the other kernel.

    What reads what another device has sent comes behind all groups of the tasks before: loads keep
    their order, and one that waits for another device must not hold up what that waits for, nor
    work that could be done meanwhile.
    """
    reads, writes = ({track: LastWriters() for track in Track} for _ in range(2))
    count = dict.fromkeys(Track, 0)
    kernel_end: dict[tuple[Track, int], int] = {}  # groups up to the end of a kernel
    counts_of_task: dict[int, dict[Track, int]] = {}  # when a task begins
    kernel_of: dict[tuple[Track, int], int] = {}
    asked_in = _asked_in(order, tasks)
    first = order[0]
    for group in order:
        if group.first:
            first = group
        counts_of_task.setdefault(tasks[group.kernel], dict(count))
        loads, stores = group.spans(READS), group.spans(WRITES)
        is_received = group.track.is_link and bool(stores)
        for other in Track:
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


def _asked_in(order: Sequence[_Group], tasks: Sequence[int]) -> dict[tuple[int, Track], int]:
    """For each task and link, the task in which what the first receives is asked for.

    That is the one before, unless what both receive is more than the receiver's queue has room for.
    """
    count = Counter((tasks[group.kernel], group.track) for group in order if group.track.is_link)
    known = sorted({tasks[group.kernel] for group in order})
    before = dict(zip(known[1:], known, strict=False))
    found = {}
    for task, track in count:
        earlier = before.get(task, task)
        fits = count[task, track] + count[earlier, track] <= SequencerSpec().receive_words
        found[task, track] = earlier if fits else task
    return found


def _last(last_writers: LastWriters, spans: Sequence[Span]) -> int:
    """Number of the last group, from 1, that touched one of some spans; 0 if none did."""
    return max((last_writers.last(span) or 0 for span in spans), default=0)


def _merged(order: Sequence[_Group], core: CoreSpec) -> Iterator[_Group]:
    """Groups of all tracks by the time at which they can begin."""
    waiting = {track: [group for group in order if group.track is track] for track in Track}
    free = dict.fromkeys(Track, 0)
    engine_free = dict.fromkeys(Track, 0)
    known: dict[int, int] = {}  # cycles of bodies, many of which groups share
    done: dict[Track, list[int]] = {track: [] for track in Track}
    for _ in order:
        choices = []
        for track, groups in waiting.items():
            index = len(done[track])
            if index == len(groups):
                continue
            group = groups[index]
            if any(number > len(done[other]) for other, number in group.after.items()):
                continue
            begin = free[track] + (TURN_CYCLES if group.first else 0)
            begin = max(begin, engine_free[track.engine])
            for other, number in group.after.items():
                if number:
                    begin = max(begin, done[other][number - 1] + TURN_CYCLES)
            choices.append((begin, track, group))
        assert choices, "kernels must come in an order in which they can run"
        begin, track, group = min(choices, key=lambda each: each[:2])
        free[track] = engine_free[track.engine] = begin + group.cycles(core, known)
        done[track].append(free[track])
        yield group


def _kernels_before(kernels: Sequence[Kernel]) -> list[int | None]:
    """For each kernel the one before it in its track, which leaves it its part of the chip."""
    latest: dict[Track, int] = {}
    found: list[int | None] = []
    for number, kernel in enumerate(kernels):
        found.append(latest.get(kernel.track))
        latest[kernel.track] = number
    return found
