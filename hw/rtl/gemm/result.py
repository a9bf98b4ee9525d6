"""Gateware that writes results as a `hls_models.isa.address.ResultPattern` says."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.address import COORDINATE_BITS
from fpgapipe.hw.hls_models.isa.gemm_fields import NUM_LOOPS, RESULT
from fpgapipe.hw.hls_models.isa.instructions import (
    ErrorCode,
)
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.rtl.arith.fp32 import Bf16Rounder
from fpgapipe.hw.rtl.dma.scratchpad import GRANULES, WritePort, written
from fpgapipe.hw.rtl.gemm.address import LoopNestCounter, LoopNestOffset
from fpgapipe.hw.rtl.gemm.datapath import results_layout
from fpgapipe.hw.rtl.lib.layouts import layout_of
from fpgapipe.hw.rtl.lib.rotator import selected

_DATA_BITS = 16 * GRANULES
_ADDRESS_BITS, _U_BITS = COORDINATE_BITS["address"], COORDINATE_BITS["u"]


class _Tags:
    """Registers for the data that goes along with a vector or with a part of it."""

    def __init__(self, stage, cols):
        bound_bits = cols.bit_length()
        self.valid = Signal(name=f"{stage}_valid")
        self.index = Signal(32, name=f"{stage}_index", reset_less=True)
        self.fp32 = Signal(name=f"{stage}_fp32", reset_less=True)
        self.last = Signal(name=f"{stage}_last", reset_less=True)
        self.address = Signal(_ADDRESS_BITS, name=f"{stage}_address", reset_less=True)
        # Columns from `first` to `end`, less one, are written.
        self.first = Signal(bound_bits, name=f"{stage}_first", reset_less=True)
        self.end = Signal(bound_bits, name=f"{stage}_end", reset_less=True)

    def take(self, other):
        """Assignments that move all registers but `valid` from another stage."""
        names = ("index", "fp32", "last", "address", "first", "end")
        return [getattr(self, name).eq(getattr(other, name)) for name in names]


class ResultWriter(wiring.Component):
    """Gateware of :class:`~fpgapipe.hw.hls_models.isa.address.ResultPattern`.

    The latency from a vector to its first write is `latency_cycles`. A vector takes one cycle for
    each word of 64 bytes that its elements fill, masked ones included: with 32 columns, 1 cycle in
    BF16 and 2 in FP32. No cycle is lost between vectors or instructions. There is full
    backpressure; ``write.ready`` reaches other ports only through registers.

    Addresses and coordinates have `COORDINATE_BITS` and wrap beyond them.

    Members
    -------
    i : In(stream.Signature(StructLayout({"index": 32, "body": layout_of(RESULT)})))
        The number of an instruction, and the pattern of its results.
    i_results : In(stream.Signature(results_layout(cols)))
        FP32 vectors, in the order of the instructions and of their patterns.
    write : Out(WritePort(address_bits))
        Write port of the scratchpad.
    halt : In(1)
        While this is high, nothing moves to the port; up to two writes that are there already still
        happen.
    done : Out(1)
        A pulse for each instruction, in order, in the cycle after its last write was accepted.
        Masked elements count as written.
    idle : Out(1)
        High while there is no instruction here and none is done in this cycle.
    error_valid : Out(1)
        A pulse for an element that lies outside the scratchpad. Neither its write nor any later one
        happens; nothing is accepted or done any more until reset.
    error_code : Out(8)
        SCRATCHPAD_RANGE.
    error_index : Out(32)
        The instruction's number.
    """

    latency_cycles = 3

    def __init__(self, spec: CoreSpec) -> None:
        self.spec = spec
        body = layout_of(RESULT)
        super().__init__(
            {
                "i": In(stream.Signature(data.StructLayout({"index": 32, "body": body}))),
                "i_results": In(stream.Signature(results_layout(spec.cols))),
                "write": Out(WritePort(spec.scratchpad.address_bits)),
                "halt": In(1),
                "done": Out(1),
                "idle": Out(1),
                "error_valid": Out(1),
                "error_code": Out(8, init=ErrorCode.SCRATCHPAD_RANGE),
                "error_index": Out(32),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        cols = self.spec.cols
        failed = Signal()
        has_skid = Signal()
        moves = Signal()  # the stages with data go on
        m.d.comb += moves.eq(~has_skid & ~self.halt & ~failed)

        taken = Signal()
        position, under_way = self._positions(m, taken)

        # The parts of a vector, of 64 bytes each, move on one after the other.
        part_cols = Signal(6)
        vector = Signal(32 * cols, reset_less=True)
        tags = _Tags("vector", cols)
        left = Signal(range(-(-cols // 16) + 1), reset_less=True)  # parts after this one
        is_free = Signal()
        m.d.comb += [
            part_cols.eq(Mux(tags.fp32, 16, 32)),
            is_free.eq(~tags.valid | (moves & (left == 0))),
            taken.eq(position.valid & self.i_results.valid & is_free),
            self.i_results.ready.eq(position.valid & is_free),
        ]
        with m.If(is_free):
            m.d.sync += tags.valid.eq(taken)
        # The next vector, or what is left of this one, is one of four.
        results = self.i_results.payload
        number = Signal(2)
        m.d.comb += number.eq(Cat(Mux(taken, results.is_aside, tags.fp32), taken))
        parts = [vector[2 * _DATA_BITS :], vector[_DATA_BITS:]]
        values = [*parts, results.sums.as_value(), results.aside.as_value()]
        with m.If(taken | (moves & tags.valid)):
            m.d.sync += vector.eq(selected(number, values))
        with m.If(taken):
            m.d.sync += [
                *tags.take(position),
                left.eq(Mux(position.fp32, -(-cols // 16) - 1, -(-cols // 32) - 1)),
            ]
        if cols > 16:
            with m.Elif(moves & tags.valid):
                m.d.sync += [
                    left.eq(left - 1),
                    tags.address.eq(tags.address + 2 * GRANULES),
                    tags.first.eq(Mux(tags.first > part_cols, tags.first - part_cols, 0)),
                    tags.end.eq(Mux(tags.end > part_cols, tags.end - part_cols, 0)),
                ]

        # The part in both formats, with the bytes it begins and ends with.
        part = _Tags("part", cols)
        rounded = []
        rounds = Signal()
        m.d.comb += rounds.eq(moves & tags.valid & ~tags.fp32)
        for lane in range(min(cols, 32)):
            m.submodules[f"rounder{lane}"] = rounder = Bf16Rounder()
            m.d.comb += [
                rounder.advance.eq(rounds),
                rounder.i.eq(vector[32 * lane : 32 * (lane + 1)]),
            ]
            rounded.append(rounder.o)
        exact = Signal(_DATA_BITS, name="part_exact", reset_less=True)
        low, high = (Signal(7, name=name) for name in ("part_low", "part_high"))  # granules
        mask = Signal(GRANULES, name="part_mask", reset_less=True)
        writes = Signal(name="part_writes", reset_less=True)
        start = Signal(_ADDRESS_BITS, name="part_start", reset_less=True)
        stop = Signal(_ADDRESS_BITS, name="part_stop", reset_less=True)
        ones = Const((1 << GRANULES) - 1, GRANULES)
        m.d.comb += [
            low.eq(_granules(tags.first, tags.fp32)),
            high.eq(_granules(tags.end, tags.fp32)),
        ]
        with m.If(moves):
            m.d.sync += part.valid.eq(tags.valid)
            with m.If(tags.valid):
                m.d.sync += [
                    *part.take(tags),
                    part.last.eq(tags.last & (left == 0)),
                    mask.eq((ones << low)[:GRANULES] & ~(ones << high)[:GRANULES]),
                    writes.eq(low < high),
                    start.eq(tags.address + (low << 1)),
                    stop.eq(tags.address + (high << 1) - 1),
                ]
                with m.If(tags.fp32):
                    m.d.sync += exact.eq(vector[:_DATA_BITS])

        # A write that is not accepted at once goes to the skid buffer. So `ready` has no long path.
        bits = self.spec.scratchpad.address_bits
        is_outside = Signal()
        word = Signal(_DATA_BITS, name="write_data", reset_less=True)
        word_mask = Signal(GRANULES, name="write_mask", reset_less=True)
        address = Signal(bits, name="write_address", reset_less=True)
        valid, last = Signal(name="write_valid"), Signal(name="write_last")
        skid = Signal(_DATA_BITS, name="aside_data", reset_less=True)
        skid_mask = Signal(GRANULES, name="aside_mask", reset_less=True)
        skid_address = Signal(bits, name="aside_address", reset_less=True)
        skid_last = Signal(reset_less=True)
        if 32 * cols > _DATA_BITS // 2:
            leaving = written(m, self.write.address, has_skid, [word, skid], "data")
        else:
            # Both halves may have what belongs to one of them, since the mask says which one.
            leaving = Mux(has_skid, skid, word)[: _DATA_BITS // 2].replicate(2)
        leaves = Signal()
        m.d.comb += [
            # The bytes between are inside if both ends are: a part is shorter than a scratchpad.
            is_outside.eq(writes & (start[bits:].any() | stop[bits:].any())),
            self.write.valid.eq(has_skid | valid),
            self.write.data.eq(leaving),
            self.write.mask.eq(
                written(m, self.write.address, has_skid, [word_mask, skid_mask], "mask")
            ),
            self.write.address.eq(Mux(has_skid, skid_address, address)),
            leaves.eq(~valid | self.write.ready),
        ]
        m.d.sync += [self.done.eq(0), self.error_valid.eq(0)]
        with m.If(has_skid):
            m.d.sync += has_skid.eq(~self.write.ready)
            m.d.sync += self.done.eq(skid_last & self.write.ready)
        with m.Else():
            m.d.sync += self.done.eq(last & leaves)
            with m.If(leaves):
                m.d.sync += [valid.eq(0), last.eq(0)]
            with m.Elif(moves):
                m.d.sync += has_skid.eq(1)
            with m.If(moves & valid):
                m.d.sync += [
                    skid.eq(word),
                    skid_mask.eq(word_mask),
                    skid_address.eq(address),
                    skid_last.eq(last),
                ]
            with m.If(moves):
                m.d.sync += [
                    valid.eq(part.valid & writes & ~is_outside),
                    last.eq(part.valid & part.last & ~is_outside),
                ]
                with m.If(part.valid & writes):
                    m.d.sync += [
                        word.eq(Mux(part.fp32, exact, Cat(rounded))),
                        word_mask.eq(mask),
                        address.eq(part.address),
                    ]
                with m.If(part.valid & is_outside):
                    m.d.sync += [
                        failed.eq(1),
                        self.error_valid.eq(1),
                        self.error_index.eq(part.index),
                    ]
        m.d.comb += self.idle.eq(
            ~(under_way | tags.valid | part.valid | valid | last | has_skid | self.done)
        )
        return m

    def _positions(self, m, taken):
        """Positions of the patterns, one in every cycle with `taken`.

        Returns
        -------
        position : _Tags
        under_way : Signal
            There is a position, or there will be.
        """
        cols = self.spec.cols
        position = _Tags("position", cols)
        advance = Signal()
        take, finished = Signal(), Signal()
        active = Signal(3)  # the loops, what they moved, its sum
        m.d.comb += [
            advance.eq(taken | ~position.valid),
            self.i.ready.eq(advance & (~active[0] | finished)),
            take.eq(self.i.valid & (~active[0] | finished)),
        ]
        body = self.i.payload.body
        with m.If(advance):
            m.d.sync += [
                active.eq(Cat(take | (active[0] & ~finished), active)),
                position.valid.eq(active[2]),
            ]

        # The loops: positions follow each other, the outer ones as the inner begin anew.
        base = Signal(_ADDRESS_BITS, name="base", reset_less=True)
        along = data.StructLayout({"index": 32, "u_limit": _U_BITS, "fp32": 1})
        side = [Signal(along, name=f"side{stage}", reset_less=True) for stage in range(3)]
        counters, offsets = {}, {}
        for name in ("outer", "pos"):
            m.submodules[f"{name}_counter"] = counter = LoopNestCounter()
            m.submodules[f"{name}_offset"] = offset = LoopNestOffset()
            counters[name], offsets[name] = counter, offset
            m.d.comb += [
                counter.advance.eq(advance),
                counter.take.eq(take),
                offset.advance.eq(advance),
                offset.move.eq(counter.move),
            ]
            for k in range(NUM_LOOPS):
                loop = body[name][k]
                m.d.comb += counter.counts[k].eq(loop.count)
                for part in ("address", "u") if name == "outer" else ("address",):
                    jump = Signal(COORDINATE_BITS[part], name=f"{name}{k}_{part}", reset_less=True)
                    with m.If(advance & take):
                        m.d.sync += jump.eq(loop[part])
                    m.d.comb += getattr(offset.jumps[k], part).eq(jump)
        m.d.comb += [
            counters["pos"].step.eq(1),
            counters["outer"].step.eq(counters["pos"].last),
            finished.eq(counters["pos"].last & counters["outer"].last),
            offsets["outer"].start.address.eq(base),
        ]
        with m.If(advance & take):
            m.d.sync += [
                base.eq(body.base),
                side[0].index.eq(self.i.payload.index),
                side[0].u_limit.eq(body.u_limit),
                side[0].fp32.eq(body.fp32),
            ]

        # Their sum, and how far it is from either limit.
        address = Signal(_ADDRESS_BITS, name="sum_address", reset_less=True)
        below = Signal(signed(_U_BITS + 1), name="sum_below", reset_less=True)
        above = Signal(signed(_U_BITS + 2), name="sum_above", reset_less=True)
        last = Signal(2, name="lasts", reset_less=True)
        u = offsets["outer"].o.u.as_signed()
        with m.If(advance):
            m.d.sync += [
                side[1].eq(side[0]),
                side[2].eq(side[1]),
                last.eq(Cat(finished, last)),
                address.eq(offsets["outer"].o.address + offsets["pos"].o.address),
                below.eq(-u),
                above.eq(side[1].u_limit - u),
                position.index.eq(side[2].index),
                position.fp32.eq(side[2].fp32),
                position.last.eq(last[1]),
                position.address.eq(address),
                position.first.eq(_clamped(below, cols)),
                position.end.eq(_clamped(above, cols)),
            ]
        return position, active.any() | position.valid


def _granules(columns, fp32):
    """Granules that a number of columns takes, at most those of a word."""
    return Mux(
        fp32,
        Mux(columns > GRANULES // 2, GRANULES, columns << 1),
        Mux(columns > GRANULES, GRANULES, columns),
    )


def _clamped(value, limit):
    """A signed value as one in ``0..limit``."""
    return Mux(value < 0, 0, Mux(value > limit, limit, value.as_unsigned()))
