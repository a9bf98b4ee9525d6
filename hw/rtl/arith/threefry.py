"""Gateware of the random bits, :mod:`fpgapipe.hw.hls_models.numerics.threefry`."""

from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.cycles.vector_cycles import RANDOM_CYCLES
from fpgapipe.hw.hls_models.numerics.threefry import KEY_PARITY, ROTATIONS, ROUNDS

_KEYS_EVERY = 4
"""Rounds between additions of keys."""


class Threefry(wiring.Component):
    """Computes ``threefry((*key, 0, 0), (first + n, 0, 0, 0))`` for one `n` after the other.

    The latency is ``RANDOM_CYCLES``, and the throughput is 256 bits in every cycle with ``advance``
    high. A stage keeps its content until a new one comes. So without ``draw``, it takes no energy,
    and a simulator needs no time for it. The last result stays at `o` until the next one is there.

    Members
    -------
    advance : In(1)
        Clock enable of everything but `start`.
    start : In(1)
        A pulse, after which counters begin at `first`, from the next cycle on. The key must stay
        constant until all results have come.
    first : In(48)
        Counter of the first result.
    key : In(ArrayLayout(32, 2))
        First two words of the key.
    draw : In(1)
        Compute the result of the next counter.
    o : Out(256)
        Random bits, four words of 64 bits.
    """

    spec = None

    def __init__(self, spec: None = None) -> None:
        super().__init__(
            {
                "advance": In(1),
                "start": In(1),
                "first": In(48),
                "key": In(data.ArrayLayout(32, 2)),
                "draw": In(1),
                "o": Out(256),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        # These keys are added. Those that are sums themselves are computed at the start.
        words = [self.key[0], self.key[1], Const(0, 64), Const(0, 64), Signal(64)]
        m.d.comb += words[4].eq(self.key[0] ^ self.key[1] ^ KEY_PARITY)
        schedule = []
        for number in range(ROUNDS // _KEYS_EVERY + 1):
            keys = [words[(number + word) % 5] for word in range(4)]
            if number:
                last = Signal(64, name=f"key{number}", reset_less=True)
                with m.If(self.start):
                    m.d.sync += last.eq(keys[3] + number)
                keys[3] = last
            schedule.append(keys)

        # The first word of the key has already been added to the counter.
        counter = Signal(64, reset_less=True)
        draws = Signal(RANDOM_CYCLES)
        with m.If(self.start):
            m.d.sync += counter.eq(self.first + self.key[0])
        with m.Elif(self.advance & self.draw):
            m.d.sync += counter.eq(counter + 1)
        with m.If(self.advance):
            m.d.sync += draws.eq(Cat(self.draw, draws))

        stage = 0

        def register(values, name):
            """Make a stage of registers."""
            nonlocal stage
            comes = self.draw if stage == 0 else draws[stage - 1]
            held = [
                Signal(64, name=f"{name}_{word}", reset_less=True) for word in range(len(values))
            ]
            with m.If(self.advance & comes):
                m.d.sync += [word.eq(value) for word, value in zip(held, values, strict=True)]
            stage += 1
            return held

        state = [counter, words[1], Const(0, 64), Const(0, 64)]
        for number in range(ROUNDS):
            rotations = ROTATIONS[number % len(ROTATIONS)]
            # Words 1 and 3 are exchanged, so that each round mixes words 0 with 1 and 2 with 3.
            mixed = []
            for pair, rotation in enumerate(rotations):
                low, high = state[2 * pair], _word(state[2 * pair + 1])
                total = Signal(64, name=f"sum{number}_{pair}")
                m.d.comb += total.eq(low + high)
                mixed += [total, high.rotate_left(rotation) ^ total]
            state = register([mixed[0], mixed[3], mixed[2], mixed[1]], f"round{number}")
            if number % _KEYS_EVERY == _KEYS_EVERY - 1:
                keys = schedule[number // _KEYS_EVERY + 1]
                state = register(
                    [word + key for word, key in zip(state, keys, strict=True)], f"keyed{number}"
                )
        assert stage == RANDOM_CYCLES
        m.d.comb += self.o.eq(Cat(state))
        return m


def _word(value):
    """Extend a value to 64 bits."""
    return Cat(value, Const(0, 64 - len(value)))
