"""Checks the address generator against its model: requests with pauses, cycles without."""

import random
from collections.abc import Iterable, Sequence
from typing import Any

import cocotb
from cocotb.triggers import ClockCycles

from fpgapipe.hw.hls_models.isa.address import BLOCK, Loop, LoopNest, OperandPattern
from fpgapipe.hw.hls_models.isa.gemm_fields import OPERAND
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec
from fpgapipe.hw.rtl.gemm.address import AddressGenerator
from fpgapipe.sim_tb.drivers.stream import StreamDriver, StreamSink, parameters, reset, start

INDEX_BITS = 32


def core_spec() -> CoreSpec:
    """Return the core that the parameters describe."""
    values = parameters()
    return CoreSpec(**{**values, "scratchpad": ScratchpadSpec(**values["scratchpad"])})


def descriptor(pattern: OperandPattern, index: int) -> int:
    """Encode an operand as the payload of a descriptor stream."""
    return index | OPERAND.pack(pattern.encoded()) << INDEX_BITS


def random_loop_nest(rng: random.Random, size: int, *, innermost: int | None = None) -> LoopNest:
    """Draw a loop nest of at most `size` positions (or `innermost`, if that is more)."""
    loops = []
    for k in range(rng.randint(0 if innermost is None else 1, 3)):
        count = innermost if k == 0 and innermost else rng.choice([1, 1, 2, 3, rng.randint(1, 40)])
        count = max(1, min(count, size)) if not (k == 0 and innermost) else count
        size //= count
        loops.append(
            Loop(
                count,
                address=2 * rng.choice([0, 1, 32, rng.randint(-300, 300), rng.randint(0, 4000)]),
                y=rng.choice([0, 0, 1, -1, rng.randint(-3, 3)]),
                u=rng.choice([0, 0, 1, -1, 32, rng.randint(-40, 40)]),
            )
        )
    return LoopNest(tuple(loops))


def random_start(rng: random.Random, pos: LoopNest, whole_squares: bool) -> tuple[int, int]:
    """Draw the position in its inner two loops at which an operand begins."""
    row, rows = (
        rng.choice([0, loop.count - 1, rng.randrange(loop.count)]) for loop in pos.loops[:2]
    )
    return 0 if whole_squares else row, rows


def random_pattern(
    rng: random.Random, core: CoreSpec, size: int = 400, *, in_range: bool = False
) -> OperandPattern:
    """Draw an operand of up to a few times `size` words, most of which have elements.

    Parameters
    ----------
    rng : random.Random
    core : CoreSpec
        Core, which determines the number of parts per block and the range of addresses.
    size : int
        Approximate number of words.
    in_range : bool
        Whether all words with elements must begin in the scratchpad.
    """
    walks, transposed = rng.random() < 0.5, rng.random() < 0.4
    subs = rng.randint(1, BLOCK // core.rows)
    blocks = rng.choice([1, 1, 2, 3]) if walks else 1
    size = max(1, size // subs // (blocks * BLOCK if walks else 1))
    outer = random_loop_nest(rng, rng.choice([1, 2, size]))
    tap = random_loop_nest(rng, max(1, size // outer.size))
    if walks:
        # The last block may be short, and a pattern may have blocks that are only padding.
        pos = random_loop_nest(rng, max(1, BLOCK * blocks - rng.choice([0, 0, 1, 7, 31, 40])))
    else:
        rest = max(1, size // outer.size // tap.size)
        pos = random_loop_nest(rng, rest, innermost=BLOCK if transposed else None)
    fields: dict[str, Any] = {
        "outer": outer,
        "tap": tap,
        "pos": pos,
        "y": rng.choice([0, 0, 1, -2]),
        "u": rng.choice([0, 0, -1, -33, rng.randint(-31, 40)]),
        "y_limit": rng.choice([1, 3, 5, 65535]),
        "u_limit": rng.choice([1, 31, 32, 33, rng.randint(0, 100), (1 << 24) - 1]),
        "lanes_last": rng.choice([BLOCK, 1, rng.randint(1, BLOCK)]),
        "lanes_by_outer": rng.random() < 0.5,
        "subs": subs,
        "subs_last": rng.randint(1, BLOCK // core.rows),
        "blocks": blocks,
        "pos_start": random_start(rng, pos, transposed and not walks),
        "walks_blocks": walks,
        "transposed": transposed,
        "emit": rng.choice([BLOCK, 1, rng.randint(1, BLOCK)]),
        "emit_last": rng.choice([BLOCK, 1, rng.randint(1, BLOCK)]),
        "fp32": rng.random() < 0.4,
    }
    scratchpad = core.scratchpad.size_bytes
    for _ in range(20):
        pattern = OperandPattern(2 * rng.randrange(scratchpad // 2), **fields)
        words = pattern.words()
        address = words.address[words.lanes.any(axis=1)]
        if not in_range or ((address >= 0) & (address < scratchpad)).all():
            return pattern
    return random_pattern(rng, core, size, in_range=in_range)


def edge_patterns() -> list[OperandPattern]:
    """Corner cases: one word, limits of counts, coordinates and addresses, blocks of padding."""
    top = (1 << 23) - 1
    ways: list[dict[str, Any]] = [{}, {"walks_blocks": True, "blocks": 3, "subs": 2}]
    return [
        OperandPattern(0),
        OperandPattern(-(1 << 31), y_limit=0),
        OperandPattern(0, pos=LoopNest((Loop(300, 64),)), y_limit=0),
        OperandPattern((1 << 31) - 2, u=top, u_limit=top + 1, y=32767, y_limit=32768),
        OperandPattern(62, u=-top, y=-32767, tap=LoopNest((Loop(2, u=top, y=32767),))),
        OperandPattern(
            -64, pos=LoopNest((Loop(3, 64, u=-17), Loop(2, -2, y=1))), y_limit=2, u_limit=31
        ),
        OperandPattern(2, pos=LoopNest((Loop(2, 4),)), blocks=3, walks_blocks=True, subs=2),
        # Operands of more than a block that begin in the middle of the loops or at the last
        # position.
        *(
            OperandPattern(
                128,
                pos=LoopNest((Loop(7, 64, u=1), Loop(5, 448, y=1), Loop(3, 96))),
                tap=LoopNest((Loop(2, 32),)),
                outer=LoopNest((Loop(2, 16),)),
                pos_start=start,
                y=start[1],
                y_limit=4,
                **fields,
            )
            for start in ((6, 0), (0, 4), (3, 2), (6, 4))
            for fields in ways
        ),
    ]


class Bench:
    """Driver and sink of an address generator."""

    def __init__(self, dut: Any, core: CoreSpec, rng: random.Random | None) -> None:
        self._core = core
        self._sending: Any = None
        bits = core.scratchpad.address_bits
        self.operands = StreamDriver(dut, "i", rng)
        self.requests = StreamSink(
            dut, "o", rng, fields=[bits, BLOCK, 1, 1, 5, 6, 1, 1, 1, 1, INDEX_BITS], signed=False
        )

    def start_sending(self, patterns: Iterable[OperandPattern]) -> None:
        """Send operands in the background; the index of each is 3 times its number."""
        words = [descriptor(pattern, 3 * k) for k, pattern in enumerate(patterns)]
        self._sending = cocotb.start_soon(self.operands.send(words))

    def stop(self) -> None:
        """Stop the driver."""
        self._sending.cancel()

    async def check(self, patterns: Sequence[OperandPattern]) -> None:
        """Send operands and compare all requests with the model's."""
        self.start_sending(patterns)
        for number, pattern in enumerate(patterns):
            expected = requests(pattern, self._core, 3 * number)
            got = await self.requests.receive(len(expected))
            for k, (request, model) in enumerate(zip(got, expected, strict=True)):
                if model[2]:
                    request[0] = model[0]  # nothing is read, so the address does not matter
                assert request == model, f"operand {number}, word {k}: {request}, not {model}"


def requests(pattern: OperandPattern, core: CoreSpec, index: int) -> list[list[int]]:
    """Fields of all requests of an operand, from its model."""
    words = pattern.words()
    size = core.scratchpad.size_bytes
    expected = []
    for k in range(len(words.address)):
        mask = sum(1 << int(e) for e in words.lanes[k].nonzero()[0])
        address = int(words.address[k])
        expected.append(
            [
                *(address % size, mask, int(not mask), int(mask and not 0 <= address < size)),
                *(int(words.sub[k]), int(words.emit[k])),
                *(int(pattern.transposed), int(pattern.fp32)),
                *(int(k == 0), int(k == len(words.address) - 1), index),
            ]
        )
    return expected


@cocotb.test(timeout_time=10000, timeout_unit="us")
async def matches_model(dut: Any) -> None:
    """All words equal the model's, however the streams pause."""
    core = core_spec()
    rng = random.Random(cocotb.RANDOM_SEED)
    patterns = edge_patterns() + [random_pattern(rng, core, 200) for _ in range(120)]
    rng.shuffle(patterns)
    await start(dut)
    await Bench(dut, core, rng).check(patterns)


@cocotb.test(timeout_time=4000, timeout_unit="us")
async def loses_no_cycle(dut: Any) -> None:
    """Without pauses, words come in consecutive cycles, the first one after the latency."""
    core = core_spec()
    rng = random.Random(cocotb.RANDOM_SEED)
    single = OperandPattern(64)
    patterns = [single] * 5 + [random_pattern(rng, core, 100) for _ in range(30)] + [single] * 5
    await start(dut)
    bench = Bench(dut, core, rng=None)
    await bench.check(patterns)
    cycles = bench.requests.cycles
    assert cycles[0] - bench.operands.cycles[0] == AddressGenerator.latency_cycles
    assert cycles[-1] - cycles[0] == len(cycles) - 1


@cocotb.test(timeout_time=4000, timeout_unit="us")
async def forgets_at_reset(dut: Any) -> None:
    """A reset in the middle of an operand discards all state."""
    core = core_spec()
    rng = random.Random(cocotb.RANDOM_SEED)
    await start(dut)
    for delay_cycles in (1, 9, 30):
        patterns = [random_pattern(rng, core, 60) for _ in range(5)]
        bench = Bench(dut, core, rng=None)
        bench.start_sending(patterns)
        dut.o__ready.value = int(delay_cycles > 9)
        await ClockCycles(dut.clk, delay_cycles)
        bench.stop()
        await reset(dut)
        await Bench(dut, core, random.Random(cocotb.RANDOM_SEED)).check(patterns)
        await reset(dut)
