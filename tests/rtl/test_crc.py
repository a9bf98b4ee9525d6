"""The CRC of frames: gateware against zlib."""

import random
import zlib

import pytest
from amaranth.sim import Simulator

from fpgapipe.hw.rtl.link.crc import CRC_BITS, MULTIPLES, POLYNOMIAL, TRAILER_BODY_BITS, FrameCrc


@pytest.mark.parametrize(("degree", "exponents"), MULTIPLES)
def test_multiples_of_the_polynomial(degree, exponents):
    divisor = 1 << CRC_BITS | int(f"{POLYNOMIAL:032b}"[::-1], 2)
    rest = 1 << degree | sum(1 << exponent for exponent in exponents)
    while rest.bit_length() > CRC_BITS:
        rest ^= divisor << rest.bit_length() - CRC_BITS - 1
    assert rest == 0


@pytest.mark.parametrize("beat_bytes", [4, 8, 16, 32, 64])
def test_equals_zlib(beat_bytes):
    """Frames of random bits, of single bits, of all ones and of zeros, with pauses and stalls."""
    crc, rng = FrameCrc(beat_bytes), random.Random(beat_bytes)
    bits = 8 * beat_bytes
    # In the last beat, only what is in front of the CRC counts.
    counted = min(bits - CRC_BITS, TRAILER_BODY_BITS) // 8
    beats = [rng.getrandbits(bits) for _ in range(40)] + [1 << place for place in range(bits)]
    beats += [(1 << bits) - 1, 0, 0]
    rng.shuffle(beats)

    async def check(ctx):
        frame = b""
        for number, beat in enumerate(beats):
            ends = number == len(beats) - 1 or rng.random() < 0.4
            ctx.set(crc.valid, 1)
            ctx.set(crc.ends, ends)
            ctx.set(crc.data, beat)
            while True:
                advance = rng.random() < 0.7
                ctx.set(crc.advance, advance)
                await ctx.tick()
                if advance:
                    break
            frame += beat.to_bytes(beat_bytes, "little")[: counted if ends else beat_bytes]
            ctx.set(crc.advance, 1)
            if ends or rng.random() < 0.2:
                ctx.set(crc.valid, 0)
                ctx.set(crc.data, rng.getrandbits(bits))
                await ctx.tick()
            if ends:
                assert ctx.get(crc.crc) == zlib.crc32(frame), f"beat {number}"
                frame = b""

    simulator = Simulator(crc)
    simulator.add_clock(1e-6)
    simulator.add_testbench(check)
    simulator.run()
