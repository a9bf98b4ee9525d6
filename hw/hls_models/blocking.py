"""How to cut a convolution's pass so that it runs fastest: a search over the cycle model."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from fpgapipe.hw.hls_models.address import BLOCK, OperandPattern
from fpgapipe.hw.hls_models.bus_cycles import LOAD_HOLD_CYCLES
from fpgapipe.hw.hls_models.conv import ConvSpec, Pass
from fpgapipe.hw.hls_models.conv_parts import Cut, Formats, Op
from fpgapipe.hw.hls_models.conv_passes import operations
from fpgapipe.hw.hls_models.core_cycles import (
    MemorySpec,
    Prediction,
    predict,
)
from fpgapipe.hw.hls_models.core_spec import CoreSpec
from fpgapipe.hw.hls_models.datapath import ACC_CYCLES
from fpgapipe.hw.hls_models.emit import Rings, emit, loaded, may_fit, rings_of
from fpgapipe.hw.hls_models.instruction_cycles import words_of_transfer
from fpgapipe.hw.hls_models.isa import WORD_BYTES, Instruction, Opcode, words_of
from fpgapipe.hw.hls_models.slab import Slab

FEW_OPERATIONS = 128
"""Cuts with more instructions are tried only if none with fewer fits."""

MANY_OPERATIONS = 1 << 16

ENOUGH_OPERATIONS = 1 << 12
"""Of cuts with more than few instructions, those with the fewest are tried until they have so many
together: a search takes seconds, not minutes."""

CLOSE_LOOKS = 4
"""So many of the cuts that look best are timed by the cycle model."""


@dataclass(frozen=True)
class Blocked:
    """A pass, cut.

    Attributes
    ----------
    cut : Cut
    ops : tuple of Op
    rings : Rings
    prediction : Prediction
        Of its program.
    """

    cut: Cut
    ops: tuple[Op, ...]
    rings: Rings
    prediction: Prediction

    def program(self, tensors: Mapping[str, int]) -> list[Instruction]:
        """Program with the tensors at these byte addresses, multiples of 64."""
        return emit(self.ops, self.rings, tensors)


@lru_cache(maxsize=1 << 12)
def block(
    conv: ConvSpec,
    which: Pass,
    core: CoreSpec,
    formats: Formats,
    memory: MemorySpec,
) -> Blocked:
    """Find a cut.

    Raises
    ------
    NotImplementedError
        If no cut fits the scratchpad.
    """
    choices: list[tuple[float, Cut, tuple[Op, ...], Rings]] = []
    limit = FEW_OPERATIONS
    while not choices:
        finer = limit // FEW_OPERATIONS
        numbered = [(_number(conv, which, core, c), c) for c in _cuts(conv, which, core, finer)]
        if finer > 1:
            numbered.sort(key=lambda each: each[0])
        made = 0  # operations
        for number, cut in numbered:
            if number > limit or (finer > 1 and choices and made > ENOUGH_OPERATIONS):
                continue
            try:
                coming = operations(conv, which, core, cut, formats)
                first = next(coming)
                if not may_fit(first, core.scratchpad):
                    continue
                ops = (first, *coming)
                made += len(ops)
            except ValueError:
                continue  # too many sums for the accumulators
            for rings in rings_of(ops, core.scratchpad, least_slots=1 if finer > 64 else 2):
                choices.append((_estimate(ops, rings, core, memory), cut, ops, rings))
        if limit > MANY_OPERATIONS:
            break
        limit *= 8
    if not choices:
        raise NotImplementedError(
            f"the {which} pass of {conv} needs more than the {core.scratchpad.size_bytes:,} bytes "
            f"of scratchpad or the {core.acc_depth:,} accumulators of this core, however it is "
            "cut; give the core more of them"
        )
    choices.sort(key=lambda choice: choice[0])
    most = max(len(ops) for _, _, ops, _ in choices)
    tensors = dict.fromkeys(("x", "w", "y", "dx", "dy", "dw"), 0)
    blocked = (
        Blocked(cut, ops, rings, predict(emit(ops, rings, tensors), core, memory))
        for _, cut, ops, rings in choices[: min(CLOSE_LOOKS, 1 + ENOUGH_OPERATIONS // most)]
    )
    return min(blocked, key=lambda each: each.prediction.cycles)


def _estimate(ops: tuple[Op, ...], rings: Rings, core: CoreSpec, memory: MemorySpec) -> float:
    """Roughly the cycles: work or traffic, first loads, last store, and a little an instruction.

    A ring of one slot lets nothing overlap.
    """
    work = sum(
        op.n * op.k * max(_reads(op.a_pattern, op.m), _reads(op.b_pattern, core.cols), ACC_CYCLES)
        for op in ops
    )
    per_cycle = min(memory.bytes_per_cycle, core.bus_bytes)
    transfers = [*loaded(ops, rings), *(op.result for op in ops if op.last)]
    traffic = sum(_move_cycles(slab, core, memory) for slab in transfers)
    traffic += len(ops) * words_of(Opcode.GEMM) * WORD_BYTES / per_cycle
    ends = ops[0].a.size_bytes + ops[0].b.size_bytes + ops[-1].result.size_bytes
    alone = any(
        getattr(rings, name).slots == 1 and len({getattr(op, name) for op in ops}) > 1
        for name in ("a", "b", "result")
    )
    together = work + traffic if alone else max(work, traffic)
    return together + ends / per_cycle + 2 * len(ops)


def _reads(pattern: OperandPattern, vectors: int) -> int:
    """Cycles in which an operand's vectors are read, about."""
    words = -(-vectors // BLOCK) * BLOCK if pattern.transposed else vectors
    return words * (2 if pattern.fp32 else 1)


@lru_cache(maxsize=1 << 14)
def _move_cycles(slab: Slab, core: CoreSpec, memory: MemorySpec) -> float:
    """Cycles of a transfer: its words, or its rows, of which so many bursts may be under way."""
    words = rows = 0
    for body in slab.transfers(0, 0):
        some_words, some_rows = words_of_transfer(body, core)
        words, rows = words + some_words, rows + some_rows
    per_cycle = min(memory.bytes_per_cycle, core.bus_bytes)
    waits = rows * (memory.latency_cycles + LOAD_HOLD_CYCLES) / core.outstanding
    return max(words * WORD_BYTES / per_cycle, waits)


def _number(conv: ConvSpec, which: Pass, core: CoreSpec, cut: Cut) -> int:
    """Roughly how many instructions a cut gives."""
    positions = conv.batch * conv.oh * conv.ow
    if which == "weight":
        rows, columns, depth = conv.cout, conv.taps * -(-conv.cin // core.cols), positions
    elif which == "forward":
        rows, columns, depth = positions, -(-conv.cout // core.cols), conv.cin
    else:
        rows, columns, depth = conv.batch * conv.h * conv.w, -(-conv.cin // core.cols), conv.cout
    return -(-rows // cut.m) * -(-columns // cut.n_tiles) * -(-depth // cut.k)


def _cuts(conv: ConvSpec, which: Pass, core: CoreSpec, finer: int) -> Iterator[Cut]:
    """Cuts worth a try: coarse ones move least, fine ones start early.

    With `finer` above 1, those that need little of the scratchpad are among them.
    """
    positions = conv.batch * conv.oh * conv.ow
    if which == "weight":
        rows, tiles, depth = conv.cout, conv.taps * -(-conv.cin // core.cols), positions
    elif which == "forward":
        rows, tiles, depth = positions, -(-conv.cout // core.cols), conv.cin
    else:
        rows = conv.batch * conv.h * conv.w // (conv.stride[0] * conv.stride[1])
        tiles, depth = -(-conv.cin // core.cols), conv.cout
    most = max(min(core.acc_depth, rows), 1)
    sizes = sorted({max(most >> shift, min(BLOCK, most)) for shift in range(5)}, reverse=True)
    shifts = range(5 if finer == 1 else tiles.bit_length())
    widths = sorted({max(-(-tiles >> shift), 1) for shift in shifts} | {1, 2})
    windows = (False, True) if which == "weight" and conv.taps > 1 and finer > 1 else (False,)
    for m in sizes:
        for n_tiles in widths:
            for k in _halves(depth, 8 * finer):
                for n_outer, own_window in product((False, True), windows):
                    yield Cut(m, n_tiles, k, n_outer, own_window)


def _halves(size: int, most_parts: int) -> Iterator[int]:
    """The whole, and a few ways to cut it that are finer."""
    yield size
    parts = 2
    while parts <= most_parts and size > BLOCK * parts:
        yield -(-size // parts)
        parts *= 2
