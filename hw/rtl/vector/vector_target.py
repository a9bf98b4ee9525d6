"""Gateware that writes the results of VECTOR instructions from the lanes to the scratchpad."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.instructions import ErrorCode
from fpgapipe.hw.hls_models.isa.vector_fields import VECTOR, Format
from fpgapipe.hw.hls_models.isa.vector_op import LANES
from fpgapipe.hw.hls_models.numerics.mx import BLOCK_BYTES
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.rtl.arith.fp32 import Bf16Rounder
from fpgapipe.hw.rtl.arith.mx import HalfQuantiser
from fpgapipe.hw.rtl.dma.scratchpad import GRANULES, WritePort, written
from fpgapipe.hw.rtl.lib.layouts import layout_of
from fpgapipe.hw.rtl.vector.vector_nest import Lanes, VectorNest, moving, reduced_loops

_DATA_BITS = 16 * GRANULES
_BLOCK_BITS = 8 * BLOCK_BYTES


def place_layout(address_bits):
    """Layout of where a vector of results goes.

    `mask` has one bit per granule of two bytes, or one per lane if the vector is half of a block.
    Bit 0 of the address then says which half it is.
    """
    return data.StructLayout(
        {"address": address_bits, "mask": GRANULES, "outside": 1, "is_last": 1}
    )


class VectorPlaces(wiring.Component):
    """Computes where results go, in the order of the loops that are not reduced.

    The throughput is one place per cycle, and the latency from `take` to the first one is
    `latency_cycles`.

    Members
    -------
    take : In(1)
        A pulse for a new instruction, after the last place of the one before has left.
    body : In(layout_of(VECTOR))
        The instruction, while `take` is high.
    o : Out(stream.Signature(place_layout(address_bits)))
        Places.
    """

    latency_cycles = 6

    def __init__(self, spec: CoreSpec) -> None:
        assert spec.vector is not None
        self.spec, self._vector = spec, spec.vector
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
        valid = Signal(self.latency_cycles)  # one bit per stage; the last stage is `place`
        advance = Signal()
        m.submodules.nest = nest = VectorNest()
        ends = Signal()
        _, reduced = reduced_loops(body["inner"], body["reduced"])
        m.d.comb += [
            advance.eq(self.o.ready | ~self.o.valid),
            self.o.payload.eq(place),
            self.o.valid.eq(valid[-1]),
            nest.advance.eq(self.o.ready | ~self.o.valid | take),
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
        is_block = Signal(reset_less=True)
        with m.If(take):
            m.d.sync += [u_limit.eq(target["u_limit"]), fp32.eq(target["format"] == Format.FP32)]
            if self._vector.mx:
                m.d.sync += is_block.eq(target["format"] == Format.MXINT8)

        # Stage 3 has the distances of lane 0 from both limits, stage 4 the granules to be written.
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
        first, last = low << 1, (high << 1) - 1
        if self._vector.mx:
            # A block is written as a whole, even if only one half has valid lanes.
            end = Mux(address4[0], BLOCK_BYTES - 2, BLOCK_BYTES - 1)
            first, last = Mux(is_block, 0, first), Mux(is_block, end, last)
        m.d.comb += [start.eq(address4 + first), stop.eq(address4 + last)]
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
                # The bytes between are inside if both ends are: a vector is shorter than a bank.
                place.outside.eq((low < high) & (start[bits:].any() | stop[bits:].any())),
                place.is_last.eq(is_last[-1]),
            ]
        return m


class VectorWriter(wiring.Component):
    """Gathers the lanes' results to vectors, rounds or quantises them if needed, and writes them.

    The latency from a vector's last beat to its write is `latency_cycles`; if two vectors make a
    block of MXINT8, the latency of `HalfQuantiser` is added. The throughput is one beat per cycle.
    There is full backpressure; ``write.ready`` reaches other ports only through registers.

    Members
    -------
    take : In(1)
        A pulse for a new instruction, after the one before is done.
    index : In(32)
    body : In(layout_of(VECTOR))
        The instruction's number and fields, while `take` is high.
    i : In(stream.Signature(ArrayLayout(32, lanes)))
        Results as FP32, in the order of the loops that are not reduced.
    write : Out(WritePort(address_bits))
        Write port of the scratchpad.
    halt : In(1)
        While this is high, nothing moves to the port; up to two writes that are there already still
        happen.
    done : Out(1)
        A pulse in the cycle after the instruction's last write was accepted. Invalid lanes count as
        written.
    error_valid, error_code, error_index : Out(1), Out(8), Out(32)
        A pulse for an element that lies outside the scratchpad, with `ErrorCode.SCRATCHPAD_RANGE`.
        Neither its vector nor any later one is written, and nothing is done any more until reset.
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
        is_exact = Signal(reset_less=True)
        m.d.comb += [places.take.eq(self.take), places.body.eq(self.body)]
        with m.If(self.take):
            m.d.sync += [
                is_exact.eq(self.body["target"]["format"] != Format.BF16),
                self.error_index.eq(self.index),
            ]
        failed = Signal()
        has_skid = Signal()
        # This is ~has_skid & ~failed; it is a register of its own, since its way is long.
        is_open = Signal(init=1)
        moves = Signal()  # results go on
        m.d.comb += moves.eq(is_open & ~self.halt)

        # A beat waits here, exact or rounded. The last one of a vector goes on once its place is
        # known.
        beats = LANES // lanes
        beat = Signal(range(beats))
        has_beat, goes, completes = Signal(), Signal(), Signal()
        exact = Signal(32 * lanes, reset_less=True)
        enters = Signal()
        m.d.comb += [
            completes.eq(beat == beats - 1),
            goes.eq(has_beat & moves & (~completes | places.o.valid)),
            places.o.ready.eq(has_beat & moves & completes),
            self.i.ready.eq(~has_beat | goes),
            enters.eq(self.i.valid & self.i.ready),
        ]
        rounded = []
        for lane in range(lanes):
            m.submodules[f"rounder{lane}"] = rounder = Bf16Rounder()
            m.d.comb += [
                rounder.advance.eq(enters & ~is_exact),
                rounder.i.eq(self.i.payload[lane]),
            ]
            rounded.append(rounder.o)
        with m.If(enters):
            m.d.sync += has_beat.eq(1)
            with m.If(is_exact):
                m.d.sync += exact.eq(self.i.payload.as_value())
        with m.Elif(goes):
            m.d.sync += has_beat.eq(0)
        short = Cat(rounded)
        if beats > 1:
            # Earlier beats are gathered, those of BF16 in the lower half, so that a vector's first
            # element gets to bit 0.
            gathered = Signal(_DATA_BITS - 32 * lanes, reset_less=True)
            with m.If(goes):
                m.d.sync += beat.eq(Mux(completes, 0, beat + 1))
                with m.If(is_exact):
                    m.d.sync += gathered.eq(Cat(gathered, exact)[32 * lanes :])
                with m.Else():
                    below = gathered[: 16 * (LANES - lanes)]
                    m.d.sync += below.eq(Cat(below, short)[16 * lanes :])
            exact = Cat(gathered, exact)
            short = Cat(below, short)
        place, vector = places.o.payload, Mux(is_exact, exact, short)
        leaves = goes & completes
        if self._vector.mx:
            place, vector, leaves = self._quantise(m, place, vector, leaves, moves)
        self._write(m, place, vector, leaves, has_skid, failed, is_open)
        return m

    def _quantise(self, m, place, vector, enters, moves):
        """Make blocks of pairs of vectors if the target's format is MXINT8; pass others unchanged.

        Parameters
        ----------
        place, vector : Value
            Place of a vector, and its elements.
        enters : Value
            Whether there is a vector that goes on; only while `moves` is high.
        moves : Value
            Whether results may go on.

        Returns
        -------
        place, vector, leaves : Value
            Place and data of a vector or block to be written, and whether there is one.
        """
        m.submodules.quantiser = quantiser = HalfQuantiser()
        is_block = Signal(reset_less=True)
        with m.If(self.take):
            m.d.sync += is_block.eq(self.body["target"]["format"] == Format.MXINT8)
        first_there = Signal(reset_less=True)
        first_outside = Signal(reset_less=True)
        lacks_second = Signal()
        enters_half = Signal()
        enters_second = Signal()
        valid = Signal(quantiser.latency_cycles)  # second halves, one bit per stage
        # A first half waits in the pipeline until its second half follows directly. All that is
        # ahead of it waits too, which costs nothing, since more is to come.
        m.d.comb += [
            enters_half.eq(enters & is_block),
            enters_second.eq(enters_half & place.address[0]),
            quantiser.second.eq(enters_second),
            quantiser.advance.eq(moves & (enters_half | (valid.any() & ~lacks_second))),
        ]
        for lane in range(LANES):
            word = vector.word_select(lane, 32)
            m.d.comb += [
                quantiser.i[lane].eq(word[16:] & place.mask[lane].replicate(16)),
                quantiser.more[lane].eq(word[:16].any() & place.mask[lane]),
            ]
        there, outside = place.mask.any(), place.outside
        with m.If(enters_half):
            m.d.sync += [
                lacks_second.eq(~place.address[0]),
                first_there.eq(there),
                first_outside.eq(outside),
            ]
        tag = Cat(place.address[1:], there | first_there, outside | first_outside, place.is_last)
        lower = Signal(8 * LANES, reset_less=True)
        with m.If(quantiser.advance):
            m.d.sync += [valid.eq(Cat(enters_second, valid)), lower.eq(Cat(quantiser.o))]
        for stage in range(quantiser.latency_cycles):
            held = Signal(len(tag), name=f"tag{stage + 1}", reset_less=True)
            with m.If(quantiser.advance):
                m.d.sync += held.eq(tag)
            tag = held

        leaving = Signal(place_layout(self.spec.scratchpad.address_bits))
        block = Cat(lower, quantiser.o, quantiser.code, Const(0, 8))
        address_bits = len(place.address) - 1
        m.d.comb += leaving.eq(place)
        with m.If(is_block):
            m.d.comb += [
                leaving.address.eq(Cat(Const(0, 1), tag[:address_bits])),
                leaving.mask.eq(tag[address_bits].replicate(BLOCK_BYTES // 2)),
                Cat(leaving.outside, leaving.is_last).eq(tag[address_bits + 1 :]),
            ]
        vector = Cat(Mux(is_block, block, vector[:_BLOCK_BITS]), vector[_BLOCK_BITS:])
        return leaving, vector, Mux(is_block, quantiser.advance & valid[-1], enters)

    def _write(self, m, place, vector, goes, has_skid, failed, is_open):
        """Write a vector; one that still waits when the next one comes goes to the skid buffer."""
        bits = self.spec.scratchpad.address_bits

        def register(name, width):
            return [
                Signal(width, name=f"{kind}_{name}", reset_less=True) for kind in ("write", "aside")
            ]

        (word, skid), (mask, skid_mask) = register("data", _DATA_BITS), register("mask", GRANULES)
        address, skid_address = register("address", bits)
        valid, last = Signal(name="write_valid"), Signal(name="write_last")
        skid_last = Signal(reset_less=True)
        leaves = Signal()
        m.d.comb += [
            self.write.valid.eq(has_skid | valid),
            self.write.data.eq(written(m, self.write.address, has_skid, [word, skid], "data")),
            self.write.mask.eq(written(m, self.write.address, has_skid, [mask, skid_mask], "mask")),
            self.write.address.eq(Mux(has_skid, skid_address, address)),
            leaves.eq(~valid | self.write.ready),
        ]
        m.d.sync += [self.done.eq(0), self.error_valid.eq(0)]
        with m.If(has_skid):
            m.d.sync += [
                has_skid.eq(~self.write.ready),
                is_open.eq(self.write.ready & ~failed),
                self.done.eq(skid_last & self.write.ready),
            ]
        with m.Else():
            m.d.sync += self.done.eq(last & leaves)
            with m.If(leaves):
                m.d.sync += [valid.eq(0), last.eq(0)]
            with m.Elif(goes):
                m.d.sync += [has_skid.eq(1), is_open.eq(0)]
            with m.If(goes):
                m.d.sync += [
                    valid.eq(place.mask.any() & ~place.outside),
                    last.eq(place.is_last & ~place.outside),
                    skid.eq(word),
                    skid_mask.eq(mask),
                    skid_address.eq(address),
                    skid_last.eq(last),
                ]
                with m.If(place.outside):
                    m.d.sync += [failed.eq(1), is_open.eq(0), self.error_valid.eq(1)]
                with m.Else():
                    m.d.sync += [word.eq(vector), mask.eq(place.mask), address.eq(place.address)]
