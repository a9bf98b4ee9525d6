"""Gateware that computes where the operands of VECTOR instructions lie."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.vector_fields import COUNTER_BITS, VECTOR
from fpgapipe.hw.hls_models.isa.vector_op import LANES, MAX_SUMS
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.rtl.lib.layouts import layout_of
from fpgapipe.hw.rtl.vector.vector_nest import Lanes, VectorNest, is_within, moving, reduced_loops

SOURCES = ("x", "y")

FLAGS = {
    "counter": COUNTER_BITS,
    "bank": 1,
    "first": 1,
    "last": 1,
    "sum": (MAX_SUMS - 1).bit_length(),
}
"""Widths of the data of a vector that the lanes get besides its elements, bits."""


def position_layout(address_bits):
    """Layout of where a vector is read; without a valid lane, the address has no meaning."""
    parts = {"address": address_bits, "mask": LANES, "used": 1, "outside": 1}
    return data.StructLayout(
        {
            **{f"{name}_{part}": bits for name in SOURCES for part, bits in parts.items()},
            "renews": 1,  # coefficients are read before it
            "is_last": 1,
            **FLAGS,
        }
    )


class VectorPositions(wiring.Component):
    """Computes where the vectors of X and Y are read, in the order of the loops.

    The throughput is one vector per cycle, and the latency from `take` to the first one is
    `latency_cycles`. ``o.ready`` reaches other ports only through registers.

    Members
    -------
    take : In(1)
        A pulse for a new instruction, after the last position of the one before has left.
    body : In(layout_of(VECTOR))
        The instruction, while `take` is high.
    o : Out(stream.Signature(position_layout(address_bits)))
        Positions.
    """

    latency_cycles = 5

    def __init__(self, spec: CoreSpec) -> None:
        self.spec = spec
        layout = position_layout(spec.scratchpad.address_bits)
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
        # One enable, which comes from a register, moves all stages. A position that is not accepted
        # at once goes to the skid buffer.
        layout = position_layout(self.spec.scratchpad.address_bits)
        position = Signal(layout, reset_less=True)
        skid = Signal(layout, reset_less=True)
        has_skid = Signal()
        advance = Signal()
        valid = Signal(self.latency_cycles)  # one bit per stage; the last stage is `position`
        m.d.comb += [
            advance.eq(~has_skid),
            self.o.valid.eq(has_skid | valid[-1]),
            self.o.payload.eq(Mux(has_skid, skid.as_value(), position.as_value())),
        ]
        with m.If(advance):
            m.d.sync += has_skid.eq(valid[-1] & ~self.o.ready)
            with m.If(valid[-1]):
                m.d.sync += skid.eq(position)
        with m.Elif(self.o.ready):
            m.d.sync += has_skid.eq(0)

        # Stage 0 is the position in the loops. The loop that stepped to reach it moves all numbers.
        m.submodules.nest = nest = VectorNest()
        is_last = Signal()
        # A take moves the nest even if a position waits; it is then the last of its instruction.
        m.d.comb += [
            nest.advance.eq(advance | take),
            nest.take.eq(take),
            nest.step.eq(valid[0]),
            is_last.eq(nest.at_last.all()),
            *(nest.counts[k].eq(loop["count"]) for k, loop in enumerate(body["loops"])),
        ]
        with m.If(take):
            m.d.sync += valid[0].eq(1)
        with m.Elif(advance & is_last):
            m.d.sync += valid[0].eq(0)
        with m.If(advance):
            m.d.sync += valid[1:].eq(valid)

        flags = self._flags(m, nest, advance, is_last)
        with m.If(advance):
            for name, value in flags.items():
                m.d.sync += position[name].eq(value)
        self._numbers(m, nest, advance, position)
        return m

    def _flags(self, m, nest, advance, is_last):
        """Make the flags of a position; return those of stage 3, by name."""
        body, take = self.body, self.take
        inner = Signal(6, name="inner_loops", reset_less=True)
        reduced = Signal(6, name="reduced_loops", reset_less=True)
        with m.If(take):
            m.d.sync += Cat(inner, reduced).eq(Cat(reduced_loops(body["inner"], body["reduced"])))
        ends = Signal()
        sum_number = Signal(FLAGS["sum"], reset_less=True)
        bank = Signal(reset_less=True)
        m.d.comb += ends.eq((nest.at_last | ~inner).all())
        with m.If(take):
            m.d.sync += [sum_number.eq(0), bank.eq(0)]
        with m.Elif(advance):
            m.d.sync += bank.eq(bank ^ nest.steps[-1])
            with m.If(ends):
                m.d.sync += sum_number.eq(0)
            with m.Else():
                m.d.sync += sum_number.eq(sum_number + 1)
        now = {
            "bank": bank,
            "first": (nest.at_first | ~reduced).all(),
            "last": (nest.at_last | ~reduced).all(),
            "sum": sum_number,
            "renews": nest.outer[1],
            "is_last": is_last,
        }
        for stage in (1, 2, 3):
            later = {}
            for name, value in now.items():
                later[name] = Signal(len(value), name=f"{name}{stage}", reset_less=True)
                with m.If(advance):
                    m.d.sync += later[name].eq(value)
            now = later
        return now

    def _numbers(self, m, nest, advance, position):
        """Make address, coordinates and counter by stage 2, and compare with limits in stage 3."""
        body, take = self.body, self.take
        bits = self.spec.scratchpad.address_bits
        counter = moving(
            m,
            "counter",
            body["counter"]["base"],
            [jump["step"] for jump in body["counter"]["jumps"]],
            nest,
            take,
        )
        counter3 = Signal(COUNTER_BITS, reset_less=True)
        with m.If(advance):
            m.d.sync += [counter3.eq(counter), position.counter.eq(counter3)]
        for name, field in (("x", "x"), ("y", "source_y")):
            source = body[field]
            address, y, u = (
                moving(
                    m,
                    f"{name}_{part}",
                    source["base" if part == "address" else part],
                    [jump[part] for jump in source["jumps"]],
                    nest,
                    take,
                )
                for part in ("address", "y", "u")
            )
            u_limit = Signal.like(source["u_limit"], name=f"{name}_u_limit", reset_less=True)
            y_limit = Signal.like(source["y_limit"], name=f"{name}_y_limit", reset_less=True)
            is_used = Signal(name=f"{name}_is_used", reset_less=True)
            with m.If(take):
                m.d.sync += [
                    u_limit.eq(source["u_limit"]),
                    y_limit.eq(source["y_limit"]),
                    is_used.eq(body["uses_y"] if name == "y" else 1),
                ]
            lanes = Lanes(m, name, advance, u, u_limit)
            row_there = Signal(name=f"{name}_row_there", reset_less=True)
            address3 = Signal.like(address, name=f"{name}_address3", reset_less=True)
            used = Signal(name=f"{name}_used")
            m.d.comb += used.eq(row_there & (lanes.first < lanes.end))
            with m.If(advance):
                m.d.sync += [
                    row_there.eq(is_within(y, y_limit) & is_used),
                    address3.eq(address),
                    position[f"{name}_address"].eq(address3),
                    position[f"{name}_mask"].eq(Mux(used, lanes.mask(), 0)),
                    position[f"{name}_used"].eq(used),
                    position[f"{name}_outside"].eq(used & address3[bits:].any()),
                ]
