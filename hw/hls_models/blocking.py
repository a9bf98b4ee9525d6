"""How to cut a convolution's pass so that it runs fastest: a search over the cycle model."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from fpgapipe.hw.hls_models.address import BLOCK
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
from fpgapipe.hw.hls_models.emit import Rings, emit, loaded_bytes, may_fit, rings_of
from fpgapipe.hw.hls_models.isa import Instruction

FEW_OPERATIONS = 128
"""Cuts with more instructions are tried only if none with fewer fits."""

MANY_OPERATIONS = 1 << 16

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
        for cut in _cuts(conv, which, core):
            if _number(conv, which, core, cut) > limit:
                continue
            try:
                coming = operations(conv, which, core, cut, formats)
                first = next(coming)
                if not may_fit(first, core.scratchpad):
                    continue
                ops = (first, *coming)
            except ValueError:
                continue  # too many sums for the accumulators
            for rings in rings_of(ops, core.scratchpad):
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
    tensors = dict.fromkeys(("x", "w", "y", "dx", "dy", "dw"), 0)
    blocked = (
        Blocked(cut, ops, rings, predict(emit(ops, rings, tensors), core, memory))
        for _, cut, ops, rings in choices[:CLOSE_LOOKS]
    )
    return min(blocked, key=lambda each: each.prediction.cycles)


def _estimate(ops: tuple[Op, ...], rings: Rings, core: CoreSpec, memory: MemorySpec) -> float:
    """Roughly the cycles: work or traffic, first loads, last store, and a little an instruction."""
    work = sum(op.n * op.k * max(op.m, core.cols, ACC_CYCLES) for op in ops)
    per_cycle = min(memory.bytes_per_cycle, core.bus_bytes)
    stored = sum(op.result.size_bytes for op in ops if op.last)
    traffic = (loaded_bytes(ops, rings) + stored) / per_cycle
    ends = ops[0].a.size_bytes + ops[0].b.size_bytes + ops[-1].result.size_bytes
    return max(work, traffic) + ends / per_cycle + 2 * len(ops)


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


def _cuts(conv: ConvSpec, which: Pass, core: CoreSpec) -> Iterator[Cut]:
    """Cuts worth a try: coarse ones move least, fine ones start early."""
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
    widths = sorted({max(-(-tiles >> shift), 1) for shift in (0, 1, 2, 3, 4)} | {1, 2})
    for m in sizes:
        for n_tiles in widths:
            for k in _halves(depth):
                for n_outer in (False, True):
                    yield Cut(m, n_tiles, k, n_outer)


def _halves(size: int) -> Iterator[int]:
    """The whole, and a few ways to cut it that are finer."""
    yield size
    for parts in (2, 4, 8):
        if size > BLOCK * parts:
            yield -(-size // parts)
