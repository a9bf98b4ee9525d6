"""Drivers against a design that does little: what they move, and what they see."""

import random

import cocotb
import numpy as np
import pytest
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge
from native_designs import BEATS, BURSTS, CONTROL, SOURCE, START, STATUS, STROBES, TARGET

from fpgapipe.hw.hls_models.model.link_dma import Packet
from fpgapipe.hw.hls_models.spec.link import NUM_CHANNELS, LinkEngineSpec, LinkState
from fpgapipe.sim_tb.drivers.axi_memory import DECERR, OKAY, SLVERR
from fpgapipe.sim_tb.drivers.axi_stream import AxiStreamDriver, AxiStreamSink
from fpgapipe.sim_tb.drivers.registers import Interrupt, RegisterBus
from fpgapipe.sim_tb.drivers.stream import cycle, start
from fpgapipe.sim_tb.drivers.timed_memory import MemoryTiming, TimedMemory
from fpgapipe.sim_tb.native.phy import Beat, WireSpec, beats_of, bytes_of
from fpgapipe.sim_tb.worlds.link_wire import LinkPeer, LinkPort, LinkWire, join

LINK = LinkEngineSpec(phy_bytes=16, frame_words=4, slots=(4, 4, 2), probe_cycles=64)
test = cocotb.test(timeout_time=1, timeout_unit="ms")


async def started(dut, fault=0):
    dut.fault.value = fault
    await start(dut)
    return random.Random(cocotb.RANDOM_SEED)


@test
async def streams_move_beats(dut):
    rng = await started(dut)
    driver, sink = AxiStreamDriver(dut, "s_axis_x", rng), AxiStreamSink(dut, "m_axis_x", rng)
    beats = [Beat(rng.getrandbits(32), rng.getrandbits(4), rng.random() < 0.3) for _ in range(200)]
    sending = cocotb.start_soon(driver.send(beats))
    assert await sink.receive(len(beats)) == beats
    await sending
    assert len(driver.cycles) == len(sink.cycles) == len(beats)
    assert sink.cycles[-1] - driver.cycles[0] > 250
    frames = [rng.randbytes(rng.randint(1, 30)) for _ in range(30)]
    cocotb.start_soon(driver.send_frames(frames))
    assert [await sink.receive_frame() for _ in frames] == frames
    assert [bytes_of(beat) for beat in beats_of(b"abcdef", 4)] == [b"abcd", b"ef"]


@test
async def streams_run_at_full_rate(dut):
    await started(dut)
    driver, sink = AxiStreamDriver(dut, "s_axis_x"), AxiStreamSink(dut, "m_axis_x")
    cocotb.start_soon(driver.send_frames([bytes(400)]))
    await sink.receive_frame()
    assert sink.cycles == list(range(sink.cycles[0], sink.cycles[0] + 100))


@test
async def sink_sees_a_beat_that_changes(dut):
    rng = await started(dut, fault=1)
    driver, sink = AxiStreamDriver(dut, "s_axis_x"), AxiStreamSink(dut, "m_axis_x", rng)
    cocotb.start_soon(driver.send([Beat(5, 15, False)] * 100))
    with pytest.raises(AssertionError, match=r"^m_axis_x changed a word that was waiting"):
        await sink.receive(100)


@test
async def registers_are_read_and_written(dut):
    rng = await started(dut)
    for pauses in (None, rng):
        bus = RegisterBus(dut, rng=pauses)
        tasks = [cocotb.start_soon(bus.write(address, 7 * address)) for address in (SOURCE, TARGET)]
        assert [await task for task in tasks] == [OKAY, OKAY]
        begin = cycle()
        assert await bus.read(TARGET) == (OKAY, 7 * TARGET)
        assert await bus.read(SOURCE) == (OKAY, 7 * SOURCE)
        if pauses is None:
            assert cycle() - begin == 4
            assert bus.response_cycle == cycle() - 1
        assert (await bus.read(0x800))[0] == SLVERR
        assert await bus.write(0x800, 1) == SLVERR


@test
async def a_cycle_that_is_half_over_is_left_alone(dut):
    await started(dut)
    await FallingEdge(dut.clk)
    data = np.arange(8192, dtype=np.uint16).view(np.uint8)[:8192].copy()
    TimedMemory(dut, data)
    bus, irq = RegisterBus(dut), Interrupt(dut.irq)
    for address in (SOURCE, TARGET):
        await FallingEdge(dut.clk)
        assert await bus.write(address, address) == OKAY
        await FallingEdge(dut.clk)
        assert await bus.read(address) == (OKAY, address)
    assert await copy(dut, bus, irq, 16) == OKAY
    np.testing.assert_array_equal(data[4096:5120], data[:1024])


async def copy(dut, bus, irq, words, target=4096, bursts=4):
    values = {SOURCE: 0, TARGET: target, BURSTS: bursts, BEATS: words, STROBES: 0xFFFF}
    for address, value in {**values, CONTROL: START}.items():
        assert await bus.write(address, value) == OKAY
    while not irq.is_high:
        await RisingEdge(dut.clk)
    return (await bus.read(STATUS))[1]


@test
async def memory_moves_data_and_answers_with_errors(dut):
    rng = await started(dut)
    data = np.frombuffer(rng.randbytes(8192), np.uint8).copy()
    memory = TimedMemory(dut, data, MemoryTiming(16, 10))
    bus, irq = RegisterBus(dut), Interrupt(dut.irq)
    assert await copy(dut, bus, irq, 16) == OKAY
    np.testing.assert_array_equal(data[4096:5120], data[:1024])
    counts = memory.statistics()
    assert (counts.read_bursts, counts.write_bursts) == (4, 4)
    assert (counts.read_beats, counts.write_beats) == (64, 64)
    # Each direction gets half of a beat a cycle.
    assert 126 <= counts.last_write_cycle - counts.first_read_cycle <= 140
    assert counts.reads_in_flight == counts.writes_in_flight == 0
    for begin, kinds, expected in (
        (100, {"reads": False}, OKAY),
        (100, {"writes": False}, SLVERR),
        (5000, {"reads": False}, SLVERR),
        (5000, {"writes": False}, OKAY),
    ):
        memory.inject_error(begin, begin + 1, **kinds)
        data[5000] ^= 0xFF
        assert await copy(dut, bus, irq, 16) == expected
        assert (data[5000] == data[904]) == (begin != 5000 or "writes" in kinds)
        memory.clear_errors()
    assert await copy(dut, bus, irq, 16, target=8192) == DECERR
    assert len(irq.rises) == 6
    memory.stop()
    with pytest.raises(ValueError, match="multiple of 4096"):
        TimedMemory(dut, data[1:])


@cocotb.test(expect_fail=True)
async def memory_sees_a_burst_across_pages(dut):
    await started(dut)
    TimedMemory(dut, np.zeros(8192, np.uint8))
    await copy(dut, RegisterBus(dut), Interrupt(dut.irq), 200, bursts=2)


def packet_of(rng):
    words = np.frombuffer(rng.randbytes(64 * rng.randint(1, 9)), np.uint8)
    return Packet(rng.getrandbits(32), words.reshape(-1, 64))


@test
async def peers_talk_through_a_bad_wire(dut):
    rng = await started(dut)
    bad = {"bit_error_rate": 1e-4, "drop_rate": 0.1, "duplicate_rate": 0.1, "pause": 0.1}
    wires = [WireSpec(16, 12, 9 + n, seed=n, **(bad if n % 2 else {})) for n in range(4)]
    for spec in wires[::2]:
        # What the design passes on must find its wire ready.
        assert spec.pause == 0
    ends = [
        LinkPeer(LinkPort(dut, 0), LINK, WireSpec(16, 16, 5), wires[1], seed=1),
        LinkPeer(LinkPort(dut, 1), LINK, WireSpec(16, 16, 8), wires[3], seed=2),
    ]
    sent = [[[packet_of(rng) for _ in range(8)] for _ in range(NUM_CHANNELS)] for _ in ends]
    for end, channels in zip(ends, sent, strict=True):
        for channel, packets in enumerate(channels):
            for packet in packets:
                end.send(channel, packet)
    for end, channels in zip(ends, sent[::-1], strict=True):
        for channel, packets in enumerate(channels):
            for packet in packets:
                found = await end.receive(channel)
                assert found.stream == packet.stream
                np.testing.assert_array_equal(found.words, packet.words)
    assert [end.end.state for end in ends] == [LinkState.UP] * 2
    assert all(end.back.counts.dropped for end in ends)
    for end in ends:
        end.stop()


@cocotb.test(expect_fail=True)
async def wire_sees_a_receiver_that_waits(dut):
    await started(dut, fault=2)
    LinkPeer(LinkPort(dut), LINK)
    await ClockCycles(dut.clk, 300)


@test
async def a_beat_goes_around(dut):
    """Through the design, which takes a cycle, and one of the two wires, over and over."""
    await started(dut)
    await AxiStreamDriver(dut, "s_axis_link0").send([Beat(1 << 100, 1 << 15, True)])
    there, back = join(LinkPort(dut, 0), LinkPort(dut, 1), WireSpec(), WireSpec(latency_cycles=9))
    await ClockCycles(dut.clk, 100)
    assert (there.counts.beats, back.counts.beats) == (0, 10)
    back.stop()
    counts = back.counts
    await ClockCycles(dut.clk, 30)
    assert back.counts == counts


@test
async def wires_have_a_width(dut):
    await started(dut)
    with pytest.raises(ValueError, match=r"^m_axis_link0 moves 16 bytes a beat, its wire 8$"):
        LinkWire(LinkPort(dut, 0), LinkPort(dut, 1), WireSpec(8))
