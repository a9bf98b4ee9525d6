"""Puts kernels together to a program.

Kernels come in an order in which each finds what it reads. On the core, products and vectors run at
the same time, so the kernels of one engine may go on beside those of the other, as far as tensors
allow: a normalisation's sums beside the convolution whose results they add up, a weight gradient
beside the operators that wait for the input gradient.

A kernel is a sequence of *groups*: what one product, or one piece, loads, computes and stores. Each
track, the groups of one engine, keeps its order. Groups of the two are merged by a rough timing of
both, and a load waits for the store that it needs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.core_spec import CoreSpec
from fpgapipe.hw.hls_models.instruction_cycles import gemm_timing
from fpgapipe.hw.hls_models.isa import Instruction, Opcode
from fpgapipe.hw.hls_models.kernels.kernel import Kernel, Track
from fpgapipe.hw.hls_models.vector_cycles import vector_cycles
from fpgapipe.hw.hls_models.vector_op import VectorOp

STORED = 10
"""Semaphore by which a STORE lets a LOAD of another kernel begin."""

PAGE_BYTES = 4096
"""Tensors begin at multiples of this, so that their bursts cross no boundary they need not."""

TURN_CYCLES = 300
"""From the end of a group to the beginning of one that reads its results, about."""


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


def page(address: int) -> int:
    """Round up to a page."""
    return -(-address // PAGE_BYTES) * PAGE_BYTES


@dataclass(frozen=True)
class Placed:
    """A tensor's place in memory: its first byte and the byte behind its last."""

    begin: int
    end: int


Spans = NDArray[np.int64]
"""First bytes and the bytes behind the last ones, shape (n, 2)."""


@dataclass
class _Group:
    """Instructions that belong together.

    Attributes
    ----------
    kernel : int
    first : bool
        Whether it is the first of its kernel.
    instructions : list of Instruction
    after : int
        Number of groups of the other track that come before it.
    """

    kernel: int
    first: bool
    instructions: list[Instruction] = field(default_factory=list)
    after: int = 0

    def spans(self, opcode: Opcode) -> Spans:
        """Bytes of memory that its loads or stores touch."""
        found = [_span(each) for each in self.instructions if each.opcode is opcode]
        return np.array(found, np.int64).reshape(-1, 2)

    def cycles(self, core: CoreSpec) -> int:
        """For which its engine works, about."""
        total = 0
        for instruction in self.instructions:
            if instruction.opcode is Opcode.GEMM:
                total += gemm_timing(instruction.body, core).stream_cycles
            elif instruction.opcode is Opcode.VECTOR:
                assert core.vector is not None, "a vector kernel needs a vector engine"
                total += vector_cycles(VectorOp.decoded(instruction.body), core.vector)
        return total


def assemble(
    kernels: Sequence[Kernel], places: Mapping[str, Placed], core: CoreSpec | None = None
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
        Lets the kernels of the two tracks overlap; without one they run one after the other.
    """
    addresses = {name: place.begin for name, place in places.items()}
    tracks: dict[Track, list[_Group]] = {track: [] for track in Track}
    order: list[tuple[Track, int]] = []
    for number, kernel in enumerate(kernels):
        for group in _groups(number, kernel.instructions(addresses)):
            order.append((kernel.track, len(tracks[kernel.track])))
            tracks[kernel.track].append(group)
    if core is not None:
        _find_order(tracks, order)
        order = list(_merged(tracks, core))
    tagged = [
        (tracks[track][index].kernel, instruction)
        for track, index in order
        for instruction in tracks[track][index].instructions
    ]
    return _waiting(kernels, tagged)


def _groups(number: int, instructions: Sequence[Instruction]) -> Iterator[_Group]:
    """Cut a kernel where something new is loaded, or computed."""
    group = _Group(number, first=True)
    moves = (Opcode.LOAD, Opcode.STORE)
    for instruction in instructions:
        before = group.instructions[-1].opcode if group.instructions else None
        begins = {
            Opcode.LOAD: before not in (None, Opcode.LOAD),
            Opcode.STORE: False,
            Opcode.GEMM: before not in (None, Opcode.LOAD),
            Opcode.VECTOR: before is Opcode.STORE,
        }[instruction.opcode]
        if begins:
            yield group
            group = _Group(number, first=False)
        group.instructions.append(instruction)
    assert group.instructions[-1].opcode in moves, "a kernel must end with a store"
    yield group


def _span(instruction: Instruction) -> tuple[int, int]:
    """First byte of memory that a transfer touches, and the one behind the last."""
    body = instruction.body
    rows, planes = body["rows"] * body["row_memory"], body["planes"] * body["plane_memory"]
    begin = body["memory"] + min(rows, 0) + min(planes, 0)
    return begin, body["memory"] + max(rows, 0) + max(planes, 0) + body["row_bytes"]


def _find_order(tracks: Mapping[Track, list[_Group]], order: Sequence[tuple[Track, int]]) -> None:
    """Say of each group how many of the other track have to come before it.

    A group that overwrites what another reads, or wrote, comes behind it with its whole kernel:
    the kernel's loads are then behind those of the other, and all it writes behind them.
    """
    spans = {
        (track, opcode): _Spans(
            [group.spans(opcode) for group in groups],
        )
        for track, groups in tracks.items()
        for opcode in (Opcode.LOAD, Opcode.STORE)
    }
    num_before = dict.fromkeys(Track, 0)
    begins = dict.fromkeys(Track, 0)
    for track, index in order:
        (other,) = set(Track) - {track}
        group = tracks[track][index]
        if group.first:
            begins[track] = index
        limit = num_before[other]
        loads, stores = (spans[track, opcode].of(index) for opcode in (Opcode.LOAD, Opcode.STORE))
        group.after = max(group.after, spans[other, Opcode.STORE].last(loads, limit))
        overwrites = max(
            spans[other, opcode].last(stores, limit) for opcode in (Opcode.LOAD, Opcode.STORE)
        )
        first = tracks[track][begins[track]]
        first.after = max(first.after, overwrites)
        num_before[track] += 1


class _Spans:
    """Spans of the groups of a track, to be searched."""

    def __init__(self, spans: Sequence[Spans]) -> None:
        self._all = np.concatenate([*spans, np.empty((0, 2), np.int64)])
        self._ends = np.cumsum([0, *(len(each) for each in spans)])
        self._group = np.repeat(np.arange(len(spans)), np.diff(self._ends))

    def of(self, index: int) -> Spans:
        """Those of a group."""
        return self._all[self._ends[index] : self._ends[index + 1]]

    def last(self, spans: Spans, limit: int) -> int:
        """One more than the last group, of the first `limit`, that shares a byte with these."""
        end = self._ends[limit]
        found = 0
        for begin, behind in spans:
            touching = (self._all[:end, 0] < behind) & (begin < self._all[:end, 1])
            if touching.any():
                found = max(found, int(self._group[:end][touching][-1]) + 1)
        return found


def _merged(
    tracks: Mapping[Track, Sequence[_Group]], core: CoreSpec
) -> Iterator[tuple[Track, int]]:
    """Groups of both tracks by the time at which they can begin."""
    free = dict.fromkeys(Track, 0)
    done: dict[Track, list[int]] = {track: [] for track in Track}
    while any(len(done[track]) < len(tracks[track]) for track in Track):
        choices = []
        for track in Track:
            (other,) = set(Track) - {track}
            index = len(done[track])
            if index == len(tracks[track]):
                continue
            group = tracks[track][index]
            if group.after > len(done[other]):
                continue
            begin = free[track] + (TURN_CYCLES if group.first else 0)
            if group.after:
                begin = max(begin, done[other][group.after - 1] + TURN_CYCLES)
            choices.append((begin, track, index))
        assert choices, "kernels must come in an order in which they can run"
        begin, track, index = min(choices)
        free[track] = begin + tracks[track][index].cycles(core)
        done[track].append(free[track])
        yield track, index


def _waiting(kernels: Sequence[Kernel], tagged: Sequence[tuple[int, Instruction]]) -> Assembled:
    """Let loads wait for the stores that they need.

    Loads, and stores, each end in the order of the program: a load waits for the latest of its
    stores alone, and only if no load before it has waited for that, or a later one.
    """
    last_store = {
        number: at for at, (number, each) in enumerate(tagged) if each.opcode is Opcode.STORE
    }
    same = _kernels_before(kernels)
    instructions = [instruction for _, instruction in tagged]
    stores: list[tuple[int, int]] = []
    store_at: list[int] = []
    store_of: list[int] = []
    begun: set[int] = set()
    waited_for = -1
    for at, (number, instruction) in enumerate(tagged):
        if instruction.opcode is Opcode.STORE:
            stores.append(_span(instruction))
            store_at.append(at)
            store_of.append(number)
        if instruction.opcode is not Opcode.LOAD:
            continue
        needed = -1
        before = same[number]
        if number not in begun and before is not None:
            needed = last_store[before]
        begun.add(number)
        begin, behind = _span(instruction)
        for earlier in range(len(stores) - 1, -1, -1):
            if store_at[earlier] <= max(needed, waited_for):
                break
            low, high = stores[earlier]
            if low < behind and begin < high and store_of[earlier] != number:
                needed = store_at[earlier]
                break
        assert needed < at, "a kernel must stand behind what it waits for"
        if needed > waited_for:
            waited_for = needed
            signals = instructions[needed]
            instructions[needed] = replace(signals, signal=(*signals.signal, STORED))
            instructions[at] = replace(instruction, wait=(*instruction.wait, STORED))
    end = Instruction(Opcode.END)
    return Assembled([*instructions, end], [number for number, _ in tagged])


def _kernels_before(kernels: Sequence[Kernel]) -> list[int | None]:
    """For each kernel the one before it in its track, which leaves it its part of the chip."""
    latest: dict[Track, int] = {}
    found: list[int | None] = []
    for number, kernel in enumerate(kernels):
        found.append(latest.get(kernel.track))
        latest[kernel.track] = number
    return found
