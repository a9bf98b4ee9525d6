"""Gateware of `hls_models.isa.address.OperandPattern`, which makes one address per cycle."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.address import BLOCK, COORDINATE_BITS
from fpgapipe.hw.hls_models.isa.fields import Field
from fpgapipe.hw.hls_models.isa.gemm_fields import NUM_LOOPS, OPERAND
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.rtl.lib.layouts import layout_of
from fpgapipe.hw.rtl.lib.rotator import selected

START_FIELDS = ("pos0_left", "pos1_left")
NUM_STARTS = len(START_FIELDS)
"""Number of loops of an operand's `pos` that may begin in the middle."""

MOVE_LAYOUT = data.StructLayout(
    {"moves": 1, "number": range(NUM_LOOPS + 1), "restart": 1, "restore": 1, "save": 1}
)
"""Layout of a move, by which a loop nest has reached its position.

Unless `moves` is low, `restart` says that the nest went to its first position, `restore` that it
went back to the checkpoint, and otherwise `number` is that of the loop that has stepped; it is the
number of loops where the nest went back. With `save`, this position becomes the new checkpoint.
"""


def descriptor_layout():
    """Layout of a descriptor: the instruction's number, and its fields for the operand."""
    return data.StructLayout({"index": 32, "body": layout_of(OPERAND)})


def request_layout(spec: CoreSpec):
    """Layout of the request of a word, as `AddressGenerator` describes it."""
    return data.StructLayout(
        {
            "address": spec.scratchpad.address_bits,
            "mask": BLOCK,
            "empty": 1,
            "out_of_range": 1,
            "sub": 5,
            "emit": 6,
            "transposed": 1,
            "fp32": 1,
            "first": 1,
            "last": 1,
            "index": 32,
        }
    )


class LoopNestCounter(wiring.Component):
    """Position of a loop nest, kept as the number of iterations that each loop has left.

    Commands take effect in cycles with ``advance`` high. If several would move the nest, the first
    in the list below does.

    Parameters
    ----------
    has_checkpoint : bool
        Whether ``restore``, ``stays``, ``save`` and ``lefts`` are used.

    Members
    -------
    advance : In(1)
        Clock enable.
    take : In(1)
        A new instruction, with `counts`, begins at its first position.
    restart, restore : In(1)
        Go to the first position, or to the checkpoint.
    step, stays : In(1)
        With `step`, go to the next position. After the last one comes the first one. With `stays`,
        however, none comes, and ``exhausted`` is high until one of the other commands.
    save : In(1)
        Make the position that this cycle's command leads to the checkpoint; ``restore`` may follow
        from the second cycle after.
    counts : In(16).array(3)
        Iterations less one, innermost loop first.
    lefts : In(16).array(2)
        Iterations left of the inner two loops at the first position, which may lie within them.
    last, inner_last : Out(1)
        Whether all loops, or the innermost, are in their last iteration.
    exhausted : Out(1)
        Whether the nest has stepped beyond its last position.
    move : Out(MOVE_LAYOUT)
        Move by which the position was reached.
    """

    def __init__(self, *, has_checkpoint=False):
        self._has_checkpoint = has_checkpoint
        super().__init__(
            {
                **dict.fromkeys(
                    ("advance", "take", "restart", "restore", "step", "stays", "save"), In(1)
                ),
                "counts": In(16).array(NUM_LOOPS),
                "lefts": In(16).array(NUM_STARTS),
                **dict.fromkeys(("last", "inner_last", "exhausted"), Out(1)),
                "move": Out(MOVE_LAYOUT),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        loops = range(NUM_LOOPS)
        # Flags say which loops are in their last iteration, since a comparison would be slower.
        count = [Signal(16, name=f"count{k}", reset_less=True) for k in loops]
        once = [Signal(name=f"once{k}", reset_less=True) for k in loops]
        left = [Signal(16, name=f"left{k}", reset_less=True) for k in loops]
        done = [Signal(name=f"done{k}", reset_less=True) for k in loops]
        exhausted = Signal(reset_less=True)
        move = Signal(MOVE_LAYOUT, reset_less=True)
        jump = Signal(NUM_LOOPS)  # the loop that steps

        # These signals say which command takes effect. Loops that begin anew then have `begin`
        # iterations left.
        wraps, restarts, restores, steps, new = (
            Signal(name=name) for name in ("wraps", "restarts", "restores", "steps", "new")
        )
        m.d.comb += [
            self.last.eq(done[0] & done[1] & done[2]),
            self.inner_last.eq(done[0]),
            self.exhausted.eq(exhausted),
            self.move.eq(move),
            wraps.eq(self.step & self.last),
            restarts.eq(~self.take & (self.restart | (wraps & ~self.stays))),
            restores.eq(~self.take & ~restarts & self.restore),
            new.eq(self.take | restarts | restores),
            steps.eq(self.step & ~new),
            jump.eq(
                Cat(
                    steps & ~done[0],
                    steps & done[0] & ~done[1],
                    steps & done[0] & done[1] & ~done[2],
                )
            ),
        ]
        begin, begin_once = list(count), list(once)
        take_left = list(self.counts)
        if self._has_checkpoint:
            for k in range(NUM_STARTS):
                take_left[k] = self.lefts[k]
                first = Signal(16, name=f"first{k}", reset_less=True)
                first_once = Signal(name=f"first_once{k}", reset_less=True)
                with m.If(self.advance & self.take):
                    m.d.sync += [first.eq(take_left[k]), first_once.eq(take_left[k] == 0)]
                begin[k] = Mux(restarts, first, count[k])
                begin_once[k] = Mux(restarts, first_once, once[k])
            saved = [Signal(16, name=f"saved{k}", reset_less=True) for k in loops]
            saved_done = [Signal(name=f"saved_done{k}", reset_less=True) for k in loops]
            saved_exhausted = Signal(reset_less=True)
            with m.If(self.advance & move.save):
                m.d.sync += [
                    *(saved[k].eq(left[k]) for k in loops),
                    *(saved_done[k].eq(done[k]) for k in loops),
                    saved_exhausted.eq(exhausted),
                ]
            begin = [Mux(restores, saved[k], begin[k]) for k in loops]
            begin_once = [Mux(restores, saved_done[k], begin_once[k]) for k in loops]
            with m.If(self.advance & (new | wraps)):
                m.d.sync += exhausted.eq(Mux(new, restores & saved_exhausted, 1))

        with m.If(self.advance):
            m.d.sync += [
                move.moves.eq(new | jump.any()),
                move.number.eq(jump[1:] | new.replicate(2)),
                move.restart.eq(self.take | restarts),
                move.restore.eq(restores),
                move.save.eq(self.save),
            ]
        with m.If(self.advance & self.take):
            m.d.sync += [count[k].eq(self.counts[k]) for k in loops]
            m.d.sync += [once[k].eq(self.counts[k] == 0) for k in loops]
        for k in loops:
            # A loop begins anew when all loops do, or when a loop outside it steps. Otherwise it
            # has one iteration less. Without a checkpoint, the choice shares its LUTs with the
            # addition of 0 or -1; with one, it is known too late in the cycle for that.
            begins = Signal(name=f"begins{k}")
            m.d.comb += begins.eq(new | jump[k + 1 :].any())
            first_left = Mux(self.take, take_left[k], begin[k])
            if self._has_checkpoint:
                following = Mux(begins, first_left, left[k] - 1)
            else:
                following = (~begins).replicate(16) + Mux(begins, first_left, left[k])
            first_done = Mux(self.take, take_left[k] == 0, begin_once[k])
            with m.If(self.advance & (begins | jump[k])):
                m.d.sync += [
                    left[k].eq(following),
                    done[k].eq(Mux(begins, first_done, left[k] == 1)),
                ]
        return m


class LoopNestOffset(wiring.Component):
    """Address and coordinates that a loop nest moves, one cycle after its position.

    Parameters
    ----------
    has_checkpoint : bool
        Whether moves may save and restore positions. Then, the numbers begin with 0.

    Members
    -------
    advance : In(1)
        Clock enable.
    move : In(MOVE_LAYOUT)
        Move of the loop nest, from its `LoopNestCounter`.
    jumps : In({"address": 32, "y": 16, "u": 24}).array(3)
        Changes of address and coordinates when each loop steps.
    start, o : In, Out
        Address and coordinates at the first position, which a nest with a checkpoint ignores, and
        at the present one.
    """

    def __init__(self, *, has_checkpoint=False):
        self._has_checkpoint = has_checkpoint
        # Separate numbers simulate faster than a structure.
        numbers = wiring.Signature({name: In(bits) for name, bits in COORDINATE_BITS.items()})
        super().__init__(
            {
                "advance": In(1),
                "move": In(MOVE_LAYOUT),
                "jumps": In(numbers).array(NUM_LOOPS),
                "start": In(numbers),
                "o": Out(numbers.flip()),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        move = self.move
        saving = Signal(reset_less=True)
        with m.If(self.advance):
            m.d.sync += saving.eq(move.save)
        for name, bits in COORDINATE_BITS.items():
            value = Signal(bits, name=name, reset_less=True)
            # What is added is a jump, or the number to return to, which is added to 0.
            back = getattr(self.start, name)
            if self._has_checkpoint:
                back = Signal(bits, name=f"{name}_saved", reset_less=True)
                # The position that the move in the cycle before led to is here now.
                with m.If(self.advance & saving):
                    m.d.sync += back.eq(value)
            jump = [getattr(self.jumps[k], name) for k in range(NUM_LOOPS)]
            added = selected(move.number, [*jump, back])
            m.d.comb += getattr(self.o, name).eq(value)
            with m.If(self.advance & move.moves):
                m.d.sync += value.eq(added + Mux(move.number.all(), 0, value))
                if self._has_checkpoint:
                    with m.If(move.restart):
                        m.d.sync += value.eq(0)
        return m


class _Registers:
    """Fields of a descriptor, each in its own register; this simulates faster than a single one."""

    def __getattr__(self, name):
        """Tell type checkers that any other attribute is a field."""
        raise AttributeError(name)


class AddressGenerator(wiring.Component):
    """Makes the requests for the words of operands, in the order of ``OperandPattern.words``.

    The throughput is one word per cycle, without a pause between loops or instructions; the latency
    from a descriptor to its first word is `latency_cycles`. There is full backpressure; ``o.ready``
    reaches ``i.ready`` through a register.

    Members
    -------
    i : In(stream.Signature(descriptor_layout()))
        Operands of instructions.
    o : Out(stream.Signature(request_layout(spec)))
        ``address`` is that of the first element. ``mask`` has one bit for each element that is
        read. ``empty`` says that there are none (the address then has no meaning), ``out_of_range``
        that there are some but the address is not in the scratchpad. ``sub``, ``emit`` (1 to 32),
        ``transposed``, ``fp32`` and ``index`` are as in the instruction; ``first`` and ``last``
        mark its first and last word.
    """

    latency_cycles = 5

    def __init__(self, spec: CoreSpec) -> None:
        self.spec = spec
        super().__init__(
            {
                "i": In(stream.Signature(descriptor_layout())),
                "o": Out(stream.Signature(request_layout(spec))),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()

        # One enable, which comes from a register, moves all stages. A request that is not accepted
        # at once goes to the skid buffer.
        request = Signal(request_layout(self.spec), reset_less=True)
        skid = Signal.like(request)
        has_skid = Signal()
        valid = Signal(self.latency_cycles)  # one bit per stage; the last stage is `request`
        advance = Signal()
        m.d.comb += [
            advance.eq(~has_skid),
            self.o.valid.eq(has_skid | valid[-1]),
            self.o.payload.eq(Mux(has_skid, skid, request)),
        ]
        with m.If(advance):
            m.d.sync += [skid.eq(request), has_skid.eq(valid[-1] & ~self.o.ready)]
        with m.Elif(self.o.ready):
            m.d.sync += has_skid.eq(0)

        # Stage 0 is the position in the loops.
        descriptor = self.i.payload.body
        body, jumps = _Registers(), {}
        loading = []
        for field in OPERAND.fields:
            if field.name in START_FIELDS:
                continue  # kept where they are used
            if isinstance(field, Field):
                kept = Signal.like(descriptor[field.name], name=field.name, reset_less=True)
                setattr(body, field.name, kept)
                loading.append(kept.eq(descriptor[field.name]))
                continue
            for k in range(NUM_LOOPS):
                for part, bits in COORDINATE_BITS.items():
                    name = f"{field.name}{k}_{part}"
                    jumps[field.name, k, part] = kept = Signal(bits, name=name, reset_less=True)
                    loading.append(kept.eq(descriptor[field.name][k][part]))
        index = Signal(32, reset_less=True)
        first = Signal(reset_less=True)
        active = Signal()
        take = Signal()
        finished = Signal()
        m.d.comb += [
            active.eq(valid[0]),
            self.i.ready.eq(advance & (~active | finished)),
            take.eq(self.i.valid & (~active | finished)),
        ]
        with m.If(advance):
            m.d.sync += [valid.eq(Cat(take | (active & ~finished), valid)), first.eq(take)]
        with m.If(advance & take):
            m.d.sync += [*loading, index.eq(self.i.payload.index)]

        counters = {}
        for name in ("outer", "tap", "pos"):
            m.submodules[f"{name}_counter"] = counter = LoopNestCounter(
                has_checkpoint=name == "pos"
            )
            counters[name] = counter
            m.d.comb += [counter.advance.eq(advance), counter.take.eq(take)]
            for k in range(NUM_LOOPS):
                m.d.comb += counter.counts[k].eq(descriptor[name][k].count)
        for k, name in enumerate(START_FIELDS):
            m.d.comb += counters["pos"].lefts[k].eq(descriptor[name])
        sub = self._control(m, body, counters, advance, take, finished)

        # Stage 1 has the numbers that the nests move; those of `outer` begin at the first word.
        offsets = {}
        for name in counters:
            m.submodules[name] = offset = LoopNestOffset(has_checkpoint=name == "pos")
            offsets[name] = offset.o
            m.d.comb += [offset.advance.eq(advance), offset.move.eq(counters[name].move)]
            for k in range(NUM_LOOPS):
                m.d.comb += [
                    getattr(offset.jumps[k], part).eq(jumps[name, k, part])
                    for part in COORDINATE_BITS
                ]
        m.d.comb += [
            m.submodules.outer.start.address.eq(body.base),
            m.submodules.outer.start.y.eq(body.y),
            m.submodules.outer.start.u.eq(body.u),
        ]

        # These data go along with a word.
        y_limit1 = Signal(16, reset_less=True)
        u_limit1 = Signal(24, reset_less=True)
        present = Signal(reset_less=True)
        side = Cat(
            sub,
            Mux(counters["tap"].inner_last, body.emit_last, body.emit),
            *(body.transposed, body.fp32, first, finished),
        )
        sides = [Signal(len(side), name=f"side{k}", reset_less=True) for k in range(1, 4)]
        indices = [Signal(32, name=f"index{k}", reset_less=True) for k in range(1, 4)]
        # A mask of ones is shifted by 32 less the number of lanes.
        short = [Signal(6, name=f"short{k}", reset_less=True) for k in range(1, 4)]
        is_short = Mux(
            body.lanes_by_outer, counters["outer"].inner_last, counters["tap"].inner_last
        )
        with m.If(advance):
            m.d.sync += [
                y_limit1.eq(body.y_limit),
                u_limit1.eq(body.u_limit),
                present.eq(~counters["pos"].exhausted),
                short[0].eq(Mux(is_short, BLOCK - body.lanes_last, 0)),
                sides[0].eq(side),
                indices[0].eq(index),
            ]
            for k in range(2):
                m.d.sync += [
                    sides[k + 1].eq(sides[k]),
                    indices[k + 1].eq(indices[k]),
                    short[k + 1].eq(short[k]),
                ]

        # Stage 2 has the sums of the numbers of all nests.
        total = {
            name: Signal(signed(bits), name=f"total_{name}", reset_less=True)
            for name, bits in COORDINATE_BITS.items()
        }
        y_limit2 = Signal(16, reset_less=True)
        u_limit2 = Signal(24, reset_less=True)
        present2 = Signal(reset_less=True)
        with m.If(advance):
            for name in COORDINATE_BITS:
                m.d.sync += total[name].eq(
                    sum(getattr(offset, name) for offset in offsets.values())
                )
            m.d.sync += [y_limit2.eq(y_limit1), u_limit2.eq(u_limit1), present2.eq(present)]

        # Stage 3 compares the coordinates with their limits. `below` is 32 less the number of lanes
        # with `u` below 0, and `above` is 32 less the number of lanes with `u` below the limit.
        address_bits = self.spec.scratchpad.address_bits
        address = Signal(address_bits, reset_less=True)
        outside = Signal(reset_less=True)
        there = Signal(reset_less=True)
        below = Signal(6, reset_less=True)
        above = Signal(6, reset_less=True)
        u, y = total["u"], total["y"]
        rest = Signal(signed(26))  # elements up to the limit
        m.d.comb += rest.eq(u_limit2 - u)
        with m.If(advance):
            m.d.sync += [
                address.eq(total["address"]),
                outside.eq(total["address"][address_bits:].any()),
                there.eq(present2 & (y >= 0) & (y < y_limit2)),
            ]
            with m.If(u >= 0):
                m.d.sync += below.eq(BLOCK)
            with m.Else():
                m.d.sync += below.eq(Mux(u[5:].all(), u[:5], 0))
            with m.If(rest < 0):
                m.d.sync += above.eq(BLOCK)
            with m.Else():
                m.d.sync += above.eq(Mux(rest[5:].any(), 0, BLOCK - rest[:5]))

        # Stage 4 makes the mask.
        ones = Const((1 << BLOCK) - 1, BLOCK)
        cut = Signal(6)
        empty = Signal()
        m.d.comb += [
            cut.eq(Mux(above > short[2], above, short[2])),
            empty.eq(~there | (above >= below) | (short[2] >= below)),
        ]
        mask = Signal(BLOCK)
        m.d.comb += mask.eq(Mux(there, (ones >> cut) & ~(ones >> below), 0))
        with m.If(advance):
            m.d.sync += request.as_value().eq(
                Cat(address, mask, empty, outside & ~empty, sides[2], indices[2])
            )
        return m

    def _control(self, m, body, counters, advance, take, finished):
        """Step the loops; return the index of the part of the block, a Signal."""
        outer, tap, pos = counters["outer"], counters["tap"], counters["pos"]
        walks = body.walks_blocks
        sub = Signal(5, reset_less=True)
        element = Signal(5, reset_less=True)  # number in the block
        blocks_left = Signal(16, reset_less=True)
        in_last_block = Signal(reset_less=True)

        # These signals mark the ends of loops, from the innermost to the outermost.
        inner_end, sub_last, sub_step, block_end, block_last, outer_step = (
            Signal(name=name)
            for name in (
                *("inner_end", "sub_last", "sub_step", "block_end", "block_last", "outer_step"),
            )
        )
        is_last_of = Mux(walks, in_last_block, tap.inner_last)
        m.d.comb += [
            inner_end.eq(Mux(walks, element == BLOCK - 1, pos.last)),
            sub_last.eq(Mux(is_last_of, sub == body.subs_last - 1, sub == body.subs - 1)),
            sub_step.eq(inner_end & (tap.last | ~walks)),
            block_end.eq(inner_end & sub_last & tap.last),
            block_last.eq(in_last_block | ~walks),
            outer_step.eq(block_end & block_last),
            finished.eq(outer_step & outer.last),
            pos.stays.eq(walks),
            pos.restart.eq(walks & outer_step),
            pos.restore.eq(walks & inner_end & ~block_end),
            pos.step.eq(1),
            pos.save.eq(take | block_end),
            tap.step.eq(inner_end & (sub_last | walks)),
            outer.step.eq(outer_step),
        ]
        with m.If(advance):
            m.d.sync += element.eq(Mux(inner_end, 0, element + 1))
            with m.If(sub_step):
                m.d.sync += sub.eq(Mux(sub_last, 0, sub + 1))
            with m.If(block_end):
                with m.If(block_last):
                    m.d.sync += [blocks_left.eq(body.blocks), in_last_block.eq(body.blocks == 0)]
                with m.Else():
                    m.d.sync += [
                        blocks_left.eq(blocks_left - 1),
                        in_last_block.eq(blocks_left == 1),
                    ]
            with m.If(take):
                m.d.sync += [
                    element.eq(0),
                    sub.eq(0),
                    blocks_left.eq(self.i.payload.body.blocks),
                    in_last_block.eq(self.i.payload.body.blocks == 0),
                ]
        return sub
