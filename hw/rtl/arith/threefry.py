"""Gateware of the random bits, :mod:`fpgapipe.hw.hls_models.numerics.threefry`."""

from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.cycles.vector_cycles import RANDOM_CYCLES
from fpgapipe.hw.hls_models.numerics.threefry import KEY_PARITY, ROTATIONS, ROUNDS

_KEYS_EVERY = 4
"""Rounds between additions of keys."""


@dataclass(frozen=True)
class ThreefrySpec:
    """How many random bits are drawn.

    Parameters
    ----------
    shares : bool
        Whether two rounds share a stage, since numbers are drawn in at most every second cycle.
    """

    shares: bool = False


class Threefry(wiring.Component):
    """Computes ``threefry((*key, 0, 0), (first + n, 0, 0, 0))`` for one `n` after the other.

    The latency is ``RANDOM_CYCLES``, and the throughput is 256 bits in every cycle with ``advance``
    high. A stage keeps its content until a new one comes. So without ``draw``, it takes no energy,
    and a simulator needs no time for it. The last result stays at `o` until the next one is there.

    With ``spec.shares``, the throughput is half of that, with the same latency and fewer LUTs: of
    two rounds that follow each other, only one can have a number in a cycle, so they share a stage.

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
        Compute the result of the next counter. With ``spec.shares``, no two cycles in a row with
        ``advance`` high have it.
    o : Out(256)
        Random bits, four words of 64 bits.
    """

    def __init__(self, spec: ThreefrySpec) -> None:
        self.spec = spec
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

        # Bit s says whether stage s takes a number in this cycle.
        comes = Cat(self.draw, draws)
        rounds = 2 if self.spec.shares else 1  # that share registers
        state = [counter, words[1], Const(0, 64), Const(0, 64)]
        stage = 0
        for number in range(0, ROUNDS, rounds):
            held = [Signal(64, name=f"round{number}_{word}", reset_less=True) for word in range(4)]
            # In the second of two rounds, the number is here already.
            is_second = comes[stage + 1] if rounds == 2 else Const(0)
            mixed = []
            for pair in range(2):
                now, later = (ROTATIONS[(number + k) % len(ROTATIONS)][pair] for k in range(2))
                low, high = state[2 * pair], _word(state[2 * pair + 1])
                turned = high.rotate_left(now)
                if rounds == 2:
                    own = held[2 * pair + 1]
                    low = Mux(is_second, held[2 * pair], low)
                    high = Mux(is_second, own, high)
                    turned = Mux(is_second, own.rotate_left(later), turned)
                total = Signal(64, name=f"sum{number}_{pair}")
                m.d.comb += total.eq(low + high)
                mixed += [total, turned ^ total]
            with m.If(self.advance & (comes[stage] | is_second)):
                # Words 1 and 3 are exchanged, so that each round mixes words 0 with 1 and 2 with 3.
                m.d.sync += [held[word].eq(mixed[-word % 4]) for word in range(4)]
            state = held
            stage += rounds
            if (number + rounds) % _KEYS_EVERY == 0:
                keys = schedule[number // _KEYS_EVERY + 1]
                state = [
                    Signal(64, name=f"keyed{number}_{word}", reset_less=True) for word in range(4)
                ]
                with m.If(self.advance & comes[stage]):
                    m.d.sync += [
                        word.eq(value + key)
                        for word, value, key in zip(state, held, keys, strict=True)
                    ]
                stage += 1
        assert stage == RANDOM_CYCLES
        m.d.comb += self.o.eq(Cat(state))
        return m


def _word(value):
    """Extend a value to 64 bits."""
    return Cat(value, Const(0, 64 - len(value)))
