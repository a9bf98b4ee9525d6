"""Wires: the definition against numbers worked by hand, and its twin in C++ against it."""

import random
import re
from fractions import Fraction

import pytest
from link_designs import (
    DIGEST,
    RECEIVED,
    SENDS,
    STEP,
    WIDTHS,
    LinkDesign,
    digest_of,
    load_on_wire,
)

from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.native.native import DeviceError, NativeDevice, build_native
from fpgapipe.sim_tb.native.phy import Beat, Random, Wire, WireCounts, WireSpec, beats_of, bytes_of


@pytest.fixture(scope="module")
def library():
    return build_native(verilog_of(LinkDesign()))


def carry(spec, frames, cycles=2000):
    """Send frames, each as soon as the wire takes it; what comes, with its cycles."""
    wire = Wire(spec)
    beats = [beat for frame in frames for beat in beats_of(frame, spec.phy_bytes)]
    found, sent = [], []
    for cycle in range(cycles):
        if wire.tready(cycle) and len(sent) < len(beats):
            wire.accept(cycle, beats[len(sent)])
            sent.append(cycle)
        if beat := wire.arrival(cycle):
            found.append((cycle, beat))
    return found, sent, wire.counts


def frames_in(arrived):
    """Bytes of the frames that came, as their receiver cuts them."""
    frames = [b""]
    for _, beat in arrived:
        frames[-1] += bytes_of(beat)
        if beat.last:
            frames.append(b"")
    return frames[:-1], frames[-1]


FRAMES = [bytes([number]) * (48 + 16 * number) for number in range(6)]


@pytest.mark.parametrize("phy_bytes", [4, 8, 16, 32, 64])
def test_carries_what_it_gets(phy_bytes):
    found, sent, counts = carry(WireSpec(phy_bytes, phy_bytes, 9, skew_cycles=3), FRAMES)
    assert frames_in(found) == (FRAMES, b"")
    assert [cycle for cycle, _ in found] == [cycle + 12 for cycle in sent]
    assert sent == list(range(len(sent)))
    assert counts == WireCounts(beats=len(sent), frames=6)


@pytest.mark.parametrize("rate", [1, 7, 40, 64, 100, Fraction(25, 2)], ids=str)
def test_rate_holds_whatever_beats_keep(rate):
    """A full beat and a trailer of 16 bytes in turn: the line is never idle, nor too quick."""
    frame = bytes(80)
    _, sent, _ = carry(WireSpec(64, rate), [frame] * 100, cycles=20_000)
    assert len(sent) == 200
    # The port moves a beat a cycle, 40 bytes on average.
    assert sent[-1] == pytest.approx(float(8000 / min(rate, 40)), abs=2 + float(64 / rate))


def test_credit_after_an_idle_time_is_a_beat_more():
    wire = Wire(WireSpec(16, 4))
    ready = []
    for cycle in range(40):
        ready.append(wire.tready(cycle))
        if cycle >= 20 and ready[-1]:
            wire.accept(cycle, Beat(0, 0xFFFF, False))
    assert [cycle for cycle in range(20, 40) if ready[cycle]] == [20, 21, 24, 28, 32, 36]
    assert wire.counts.waits == 14


def test_exact_faults():
    wire = {"phy_bytes": 16, "bytes_per_cycle": 16, "latency_cycles": 20}
    found, _, counts = carry(WireSpec(**wire, bit_errors=(0, 385)), FRAMES)
    damaged = [bytes([1]) + FRAMES[0][1:], bytes([3]) + FRAMES[1][1:], *FRAMES[2:]]
    assert frames_in(found) == (damaged, b"")
    assert counts.flips == 2

    found, _, counts = carry(WireSpec(**wire, drops=(1, 2), duplicates=(2, 3)), FRAMES)
    assert frames_in(found)[0] == [FRAMES[number] for number in (0, 3, 3, 4, 5)]
    assert (counts.dropped, counts.repeated, counts.lost) == (2, 1, 9)
    cycles = [cycle for cycle, _ in found]
    # Those after the copy come right behind it.
    assert cycles == [20, 21, 22, *range(32, 32 + 27)]

    # Frame 0 has beats 0 to 2; without its last it is one with the next.
    found, _, counts = carry(WireSpec(**wire, down=((2, 3),)), FRAMES[:2])
    assert frames_in(found)[0] == [FRAMES[0][:32] + FRAMES[1]]
    assert counts.lost == 1

    found, sent, _ = carry(WireSpec(**wire, stalls=((1, 5), (5, 6))), FRAMES)
    assert sent[:3] == [0, 6, 7]
    assert frames_in(found)[0] == FRAMES

    # Beats of cycles 5 to 25 are on the wire in cycle 25; that of cycle 5 arrives then.
    many = [bytes([number]) * 16 for number in range(40)]
    found, _, counts = carry(WireSpec(**wire, resets=(25,)), many)
    assert frames_in(found)[0] == many[:6] + many[26:]
    assert counts.lost == 20


def test_random_faults_come_as_often_as_they_should():
    spec = WireSpec(
        bit_error_rate=1e-3, burst_rate=2e-3, burst_bits=100, drop_rate=0.1, duplicate_rate=0.2,
        pause=0.25, seed=7,
    )  # fmt: skip
    _, _, counts = carry(spec, [bytes(48)] * 4000, cycles=20_000)
    assert counts.beats == 12_000
    assert counts.flips == pytest.approx(12_000 * (128e-3 + 2e-3 * 50), rel=0.1)
    assert counts.dropped == pytest.approx(400, rel=0.1)
    assert counts.repeated == pytest.approx(0.9 * 800, rel=0.1)
    assert counts.waits == pytest.approx(5000, rel=0.05)
    assert carry(spec, [bytes(48)] * 4000, 20_000)[2] == counts
    other = WireSpec(**{**vars(spec), "seed": 8})
    assert carry(other, [bytes(48)] * 4000, 20_000)[2] != counts


def test_bursts_are_no_longer_than_they_should_be():
    spec = WireSpec(phy_bytes=4, bytes_per_cycle=4, burst_rate=0.005, burst_bits=70, seed=3)
    found, _, _ = carry(spec, [bytes(4000)], cycles=4000)
    wrong = frames_in(found)[0][0]
    bits = [8 * byte + bit for byte in range(4000) for bit in range(8) if wrong[byte] >> bit & 1]
    bursts = [[bits[0]]]
    for bit in bits[1:]:
        if bit - bursts[-1][0] < 70:
            bursts[-1].append(bit)
        else:
            bursts.append([bit])
    assert len(bursts) >= 2
    assert max(burst[-1] - burst[0] for burst in bursts) > 50


def test_random_numbers_are_splitmix64():
    """Stream 0 of seed 0 goes on from the first number that the generator gives for 0."""
    random_ = Random(0, 0)
    assert random_._state == 0xE220A8397B1DCDAF
    random_._state = 0
    numbers = [random_.draw() for _ in range(3)]
    assert numbers == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def random_spec(rng, phy_bytes):
    def moments(count):
        return tuple(sorted(rng.sample(range(2500), count)))

    def spans(count):
        bounds = moments(2 * count)
        return tuple(zip(bounds[::2], bounds[1::2], strict=True))

    def some(value):
        return value if rng.random() < 0.6 else type(value)()

    return WireSpec(
        phy_bytes,
        phy_bytes * Fraction(rng.randint(1, 30), 20),
        latency_cycles=rng.choice([1, 2, 30, 500]),
        skew_cycles=rng.choice([0, 0, 7]),
        bit_error_rate=some(rng.choice([1e-5, 1e-3, 0.1])),
        burst_rate=some(0.01),
        burst_bits=rng.choice([1, 20, 64, 300]),
        bit_errors=some(tuple(sorted(rng.sample(range(8 * phy_bytes * 900), 30)))),
        drop_rate=some(0.1),
        duplicate_rate=some(0.1),
        drops=some(moments(60)),
        duplicates=some(moments(60)),
        down=some(spans(3)),
        resets=some(moments(4)),
        stalls=some(spans(3)),
        pause=some(0.2),
        seed=rng.getrandbits(64),
    )


@pytest.mark.sim
@pytest.mark.parametrize("link", [0, 1, 2])
def test_cpp_equals_python(library, link):
    """Each beat of random traffic, its cycle of arrival, and all counts."""
    rng = random.Random(link)
    phy_bytes, base = WIDTHS[link], link * STEP
    total = WireCounts()
    for _ in range(12):
        spec = random_spec(rng, phy_bytes)
        cycles = 2500
        with NativeDevice(library) as device, NativeDevice(library) as other:
            device.attach_wire(link, spec)
            begin = device.cycle + 1
            device.write_register(base + SENDS, 10**6)
            found = []
            while device.cycle < cycles:
                device.run(min(rng.randint(1, 400), cycles - device.cycle), until_irq=False)
                found += device.take_beats(link)
            wire = Wire(spec)
            load_on_wire(wire, phy_bytes, begin, 10**6, cycles)
            expected = wire.take()
            assert found == expected
            assert device.wire_counts(link) == wire.counts
            other.give_beats(link, found)
            other.run(max([1, *(cycle + 1 for cycle, _ in found)]), until_irq=False)
            assert other.read_register(base + RECEIVED) == len(found)
            assert other.read_register(base + DIGEST) == digest_of(found, phy_bytes)
        for name, value in vars(wire.counts).items():
            setattr(total, name, getattr(total, name) + value)
    assert min(vars(total).values()) > 10


@pytest.mark.sim
def test_ports_of_a_device(library):
    with NativeDevice(library) as device:
        assert device.link_bytes == dict(enumerate(WIDTHS))
        assert device.wire_counts(0) == WireCounts()
        device.write_register(SENDS, 10)
        device.run(50, until_irq=False)
        assert device.take_beats(0) == []  # there is no wire
        device.give_beats(0, [(80, Beat(1, 1, True)), (85, Beat(1, 1, True))])
        with pytest.raises(DeviceError, match=r"^cycle 5\d: link 0: a beat for cycle 85 came too"):
            device.give_beats(0, [(85, Beat(1, 1, True))])
        device.reset()
        device.run(5, until_irq=False)
        with pytest.raises(DeviceError, match=r"^cycle 5: link 0: a beat for cycle 4 came too"):
            device.give_beats(0, [(4, Beat(1, 1, True))])
        with pytest.raises(ValueError, match=r"^the design has no link 4"):
            device.take_beats(4)
        with pytest.raises(ValueError, match=r"^link 1 moves 16 bytes a beat, the wire 4$"):
            device.attach_wire(1, WireSpec(4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"phy_bytes": 12}, "wire phy_bytes must be 4, 8, 16, 32, 64 or 68, not 12"),
        ({"bytes_per_cycle": 0}, "wire bytes per cycle must be 1/65536..1048576, not 0"),
        ({"latency_cycles": 0}, "wire latency_cycles must be 1..2^32 - 1, not 0"),
        ({"skew_cycles": -1}, "wire skew_cycles must be 0..2^32 - 1, not -1"),
        ({"bit_error_rate": 1}, "wire bit_error_rate must be 0..1, 1 excluded, not 1"),
        ({"drop_rate": 1.5}, "wire drop_rate must be 0..1, not 1.5"),
        ({"drops": (3, 3)}, "wire drops must ascend from 0 or more, not (3, 3)"),
        ({"resets": (-1,)}, "wire resets must ascend from 0 or more, not (-1,)"),
        ({"down": ((5, 5),)}, "wire down must be ranges that are not empty, not ((5, 5),)"),
        ({"stalls": ((1, 5), (4, 6))}, "wire stalls must not overlap, as in ((1, 5), (4, 6))"),
        ({"seed": -1}, "wire seed must be 0..2^64 - 1, not -1"),
    ],
)
def test_refuses_wires(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        WireSpec(**options)


def test_refuses_wrong_use():
    wire = Wire(WireSpec(4, 1))
    with pytest.raises(ValueError, match=r"^a wire in cycle -1 cannot go to cycle 1$"):
        wire.tready(1)
    assert wire.tready(0)
    with pytest.raises(ValueError, match=r"^a beat of 4 bytes cannot keep 0x10$"):
        wire.accept(0, Beat(0, 0x10, True))
    wire.accept(0, Beat(0, 0xF, True))
    with pytest.raises(ValueError, match=r"^the wire is not ready for a beat in cycle 0$"):
        wire.accept(0, Beat(0, 0xF, True))
