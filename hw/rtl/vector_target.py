"""Gateware of a VECTOR instruction's way from the lanes to the scratchpad."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.core_spec import CoreSpec
from fpgapipe.hw.hls_models.isa import ErrorCode
from fpgapipe.hw.hls_models.vector_fields import VECTOR
from fpgapipe.hw.hls_models.vector_op import LANES
from fpgapipe.hw.rtl.fp32 import Bf16Rounder
from fpgapipe.hw.rtl.layouts import layout_of
from fpgapipe.hw.rtl.scratchpad import GRANULES, WritePort
from fpgapipe.hw.rtl.vector_nest import Lanes, VectorNest, moving, reduced_loops

_DATA_BITS = 16 * GRANULES


def place_layout(address_bits):
    """Layout of where a vector of results goes: `mask` counts granules of two bytes."""
    return data.StructLayout(
        {"address": address_bits, "mask": GRANULES, "outside": 1, "is_last": 1}
    )


class VectorPlaces(wiring.Component):
    """Where results go, in the order of the loops that are not reduced.

    A place a cycle; latency `latency_cycles` from `take` to the first.

    Members
    -------
    take : In(1)
        Pulse: a new instruction; not before the last place of the one before has left.
    body : In(layout_of(VECTOR))
        The instruction, while `take` is high.
    o : Out(stream.Signature(place_layout(address_bits)))
    """

    latency_cycles = 6

    def __init__(self, spec: CoreSpec) -> None:
        self.spec = spec
        layout = place_layout(spec.scratchpad.address_bits)
        super().__init__(
            {
                "take": In(1),
                "body": In(layout_of(VECTOR)),
                "o": Out(stream.Signature(layout)),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        body, take = self.body, self.take
        bits = self.spec.scratchpad.address_bits
        place = Signal(place_layout(bits), reset_less=True)
        valid = Signal(self.latency_cycles)  # of all stages, the last is `place`
        advance = Signal()
        m.submodules.nest = nest = VectorNest()
        ends = Signal()
        _, reduced = reduced_loops(body["inner"], body["reduced"])
        m.d.comb += [
            advance.eq(self.o.ready | ~self.o.valid),
            self.o.payload.eq(place),
            self.o.valid.eq(valid[-1]),
            nest.advance.eq(advance | take),
            nest.take.eq(take),
            nest.step.eq(valid[0]),
            ends.eq(nest.at_last.all()),
            *(
                nest.counts[k].eq(Mux(reduced[k], 0, loop["count"]))
                for k, loop in enumerate(body["loops"])
            ),
        ]
        with m.If(take):
            m.d.sync += valid[0].eq(1)
        with m.Elif(advance & ends):
            m.d.sync += valid[0].eq(0)
        target = body["target"]
        address, u = (
            moving(m, part, target[field], [jump[part] for jump in target["jumps"]], nest, take)
            for part, field in (("address", "base"), ("u", "u"))
        )
        u_limit = Signal.like(target["u_limit"], name="u_limit", reset_less=True)
        fp32 = Signal(reset_less=True)
        with m.If(take):
            m.d.sync += [u_limit.eq(target["u_limit"]), fp32.eq(target["fp32"])]

        # Stage 3: how far lane 0 is from either limit. Stage 4: granules that are written.
        lanes = Lanes(m, "lanes", advance, u, u_limit)
        address3, address4 = (
            Signal.like(address, name=f"address{stage}", reset_less=True) for stage in (3, 4)
        )
        is_last = Signal(4, reset_less=True)
        low, high = (
            Signal(GRANULES.bit_length(), name=name, reset_less=True) for name in ("low", "high")
        )
        start, stop = (Signal.like(address, name=name) for name in ("start", "stop"))
        ones = Const((1 << GRANULES) - 1, GRANULES)
        m.d.comb += [
            start.eq(address4 + (low << 1)),
            stop.eq(address4 + (high << 1) - 1),
        ]
        with m.If(advance):
            m.d.sync += [
                valid[1:].eq(valid),
                is_last.eq(Cat(ends, is_last)),
                address3.eq(address),
                address4.eq(address3),
                low.eq(Mux(fp32, lanes.first << 1, lanes.first)),
                high.eq(Mux(fp32, lanes.end << 1, lanes.end)),
                place.address.eq(address4),
                place.mask.eq((ones << low)[:GRANULES] & ~(ones << high)[:GRANULES]),
                # The bytes between are inside if both ends are: there are fewer than in a bank.
                place.outside.eq((low < high) & (start[bits:].any() | stop[bits:].any())),
                place.is_last.eq(is_last[-1]),
            ]
        return m


class VectorWriter(wiring.Component):
    """Results of the lanes, gathered to vectors, rounded to BF16 if asked for, and written.

    Latency `latency_cycles` from a vector's last beat to its write; throughput a beat a cycle.
    Full backpressure; ``write.ready`` reaches no other port except through registers.

    Members
    -------
    take : In(1)
        Pulse: a new instruction; not before the one before is done.
    index : In(32)
    body : In(layout_of(VECTOR))
        The instruction's number and fields, while `take` is high.
    i : In(stream.Signature(ArrayLayout(32, lanes)))
        Results as FP32, in the order of the loops that are not reduced.
    write : Out(WritePort(address_bits))
        To the scratchpad.
    halt : In(1)
        While high, nothing moves to the port; the two writes that may be there still happen.
    done : Out(1)
        A pulse in the cycle after the instruction's last write was accepted. Lanes that are not
        there count as written.
    error_valid, error_code, error_index : Out(1), Out(8), Out(32)
        A pulse: an element lies outside the scratchpad, `ErrorCode.SCRATCHPAD_RANGE`. Its vector is
        not written, nor is any later one, and nothing is done any more until reset.
    """

    latency_cycles = 2

    def __init__(self, spec: CoreSpec) -> None:
        assert spec.vector is not None
        self.spec, self._vector = spec, spec.vector
        results = data.ArrayLayout(32, self._vector.lanes)
        super().__init__(
            {
                "take": In(1),
                "index": In(32),
                "body": In(layout_of(VECTOR)),
                "i": In(stream.Signature(results)),
                "write": Out(WritePort(spec.scratchpad.address_bits)),
                "halt": In(1),
                "done": Out(1),
                "error_valid": Out(1),
                "error_code": Out(8, init=ErrorCode.SCRATCHPAD_RANGE),
                "error_index": Out(32),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        m.submodules.places = places = VectorPlaces(self.spec)
        lanes = self._vector.lanes
        fp32 = Signal(reset_less=True)
        m.d.comb += [places.take.eq(self.take), places.body.eq(self.body)]
        with m.If(self.take):
            m.d.sync += [fp32.eq(self.body["target"]["fp32"]), self.error_index.eq(self.index)]
        failed = Signal()
        has_aside = Signal()
        moves = Signal()  # results go on
        m.d.comb += moves.eq(~has_aside & ~self.halt & ~failed)

        # A beat in both formats. The last of a vector goes on once it is known where to.
        beats = LANES // lanes
        beat = Signal(range(beats))
        has_beat, goes, completes = Signal(), Signal(), Signal()
        exact = Signal(32 * lanes, reset_less=True)
        enters = Signal()
        m.d.comb += [
            completes.eq(beat == beats - 1),
            goes.eq(has_beat & moves & (~completes | places.o.valid)),
            places.o.ready.eq(goes & completes),
            self.i.ready.eq(~has_beat | goes),
            enters.eq(self.i.valid & self.i.ready),
        ]
        rounded = []
        for lane in range(lanes):
            m.submodules[f"rounder{lane}"] = rounder = Bf16Rounder()
            m.d.comb += [
                rounder.advance.eq(enters & ~fp32),
                rounder.i.eq(self.i.payload[lane]),
            ]
            rounded.append(rounder.o)
        with m.If(enters):
            m.d.sync += has_beat.eq(1)
            with m.If(fp32):
                m.d.sync += exact.eq(self.i.payload.as_value())
        with m.Elif(goes):
            m.d.sync += has_beat.eq(0)
        short = Cat(rounded)
        if beats > 1:
            # Earlier beats; BF16 in the lower half, so that a vector's first element is at bit 0.
            gathered = Signal(_DATA_BITS - 32 * lanes, reset_less=True)
            with m.If(goes):
                m.d.sync += beat.eq(Mux(completes, 0, beat + 1))
                with m.If(fp32):
                    m.d.sync += gathered.eq(Cat(gathered, exact)[32 * lanes :])
                with m.Else():
                    below = gathered[: 16 * (LANES - lanes)]
                    m.d.sync += below.eq(Cat(below, short)[16 * lanes :])
            exact = Cat(gathered, exact)
            short = Cat(below, short)
        self._write(
            m, places.o.payload, Mux(fp32, exact, short), goes & completes, moves, has_aside, failed
        )
        return m

    def _write(self, m, place, vector, goes, moves, has_aside, failed):
        """Write a vector; one that is not accepted at once steps aside."""
        bits = self.spec.scratchpad.address_bits

        def register(name, width):
            return [
                Signal(width, name=f"{kind}_{name}", reset_less=True) for kind in ("write", "aside")
            ]

        (word, aside), (mask, aside_mask) = register("data", _DATA_BITS), register("mask", GRANULES)
        address, aside_address = register("address", bits)
        valid, last = Signal(name="write_valid"), Signal(name="write_last")
        aside_last = Signal(reset_less=True)
        leaves = Signal()
        m.d.comb += [
            self.write.valid.eq(has_aside | valid),
            self.write.data.eq(Mux(has_aside, aside, word)),
            self.write.mask.eq(Mux(has_aside, aside_mask, mask)),
            self.write.address.eq(Mux(has_aside, aside_address, address)),
            leaves.eq(~valid | self.write.ready),
        ]
        m.d.sync += [self.done.eq(0), self.error_valid.eq(0)]
        with m.If(has_aside):
            m.d.sync += [
                has_aside.eq(~self.write.ready),
                self.done.eq(aside_last & self.write.ready),
            ]
        with m.Else():
            m.d.sync += self.done.eq(last & leaves)
            with m.If(leaves):
                m.d.sync += [valid.eq(0), last.eq(0)]
            with m.Elif(moves):
                m.d.sync += has_aside.eq(1)
            with m.If(moves & valid):
                m.d.sync += [
                    aside.eq(word),
                    aside_mask.eq(mask),
                    aside_address.eq(address),
                    aside_last.eq(last),
                ]
            with m.If(moves):
                m.d.sync += [
                    valid.eq(goes & place.mask.any() & ~place.outside),
                    last.eq(goes & place.is_last & ~place.outside),
                ]
            with m.If(goes):
                with m.If(place.outside):
                    m.d.sync += [failed.eq(1), self.error_valid.eq(1)]
                with m.Else():
                    m.d.sync += [word.eq(vector), mask.eq(place.mask), address.eq(place.address)]
