"""Checks send and receive engines against their model: packets, bytes, errors, halts, cycles."""

import random
from collections.abc import Iterator
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge

from fpgapipe.hw.hls_models.isa.instructions import ErrorCode
from fpgapipe.hw.hls_models.model.dma import load, store, transfer
from fpgapipe.hw.hls_models.model.link_dma import (
    Packet,
    packet,
    receive,
    send,
    send_words,
    words_of_packet,
)
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.sim_tb.drivers.axi_memory import DECERR, SLVERR
from fpgapipe.sim_tb.drivers.stream import cycle, start
from fpgapipe.sim_tb.worlds.dma_world import bench_test
from fpgapipe.sim_tb.worlds.link_dma_world import (
    FIRST_INDEX,
    ORIGIN,
    PAD_BYTES,
    PART_BYTES,
    SENT_PAD,
    Bench,
    link_words,
    long_packets,
    long_pads,
    pad_packets,
    random_packets,
    special_packets,
    there,
)


def sent_packet(bench: Bench, body: dict[str, int]) -> Packet:
    """Return the packet that a SEND reads from the expected memory or scratchpad."""
    got, code = send(bench.spec, body, bench.expected, bench.expected_pad, origin=ORIGIN)
    assert code is ErrorCode.NONE
    return got


def expect(bench: Bench, bodies: list[dict[str, int]], got: list[Packet], **bad: Any) -> Any:
    """Run the model of RECEIVEs; returns how many succeed, and the error of the next one."""
    for count, (body, one) in enumerate(zip(bodies, got, strict=True)):
        spaces = bench.expected, bench.expected_pad
        code = receive(bench.spec, body, one, *spaces, origin=ORIGIN, **bad)
        if code is not ErrorCode.NONE:
            return count, code
    return len(bodies), ErrorCode.NONE


def wrong_pads(spec: CoreSpec, at: int) -> list[tuple[ErrorCode, dict[str, int]]]:
    """Packets of words that a scratchpad does not have, or no words at all."""
    end = spec.scratchpad.size_bytes
    wrong = [
        packet(at + 32, 64),
        packet(at, 96),
        packet(at, 0),
        packet(at, 64, rows=2),
        packet(at, 64, planes=2),
        packet(at, 64, channel=3),
        packet(end - 64, 128),
        packet(end, 64),
        packet(at + (1 << 40), 64),
        packet(at, (1 << 32) - 64),
    ]
    if spec.link_port_bytes < 64:  # links of small cores do not reach the scratchpad
        wrong.append(packet(at, 64))
    return [(ErrorCode.BAD_FIELD, body | {"in_scratchpad": 1}) for body in wrong]


async def move_packets(bench: Bench, bodies: list[dict[str, int]]) -> None:
    """Send packets and receive them in another order of channels, with other traffic on the bus."""
    rng = random.Random(cocotb.RANDOM_SEED)
    again = 8  # so that they go on while packets pass
    loads = [transfer(ORIGIN + 64 * n, 64 * n, 400) for n in range(4)] * again
    third, half = ORIGIN + 2 * PART_BYTES, bench.scratchpad.size // 2
    stores = [transfer(third + 900 * n, half + 900 * n, 600) for n in range(4)] * again
    # The order within each channel stays the same.
    left = {c: [body for body in bodies if body["channel"] == c] for c in range(3)}
    received = []
    for channel in rng.sample([body["channel"] for body in bodies], len(bodies)):
        received.append(there(left[channel].pop(0)))
    await bench.begin()
    for name, given in (
        ("send", bodies),
        ("receive", received),
        ("load", loads),
        ("store", stores),
    ):
        bench.give(name, given)
    done = {"load": len(loads), "store": len(stores)}
    await bench.settle(send=len(bodies), receive=len(bodies), **done)
    assert not any(bench.errors.values()), bench.errors
    packets: dict[int, Iterator[Packet]] = {}
    for channel in range(3):
        mine = [sent_packet(bench, body) for body in bodies if body["channel"] == channel]
        expected = [word for one in mine for word in link_words(one)]
        assert list(bench.channels.sent[channel]) == expected, f"channel {channel}"
        assert not bench.channels.coming[channel]
        packets[channel] = iter(mine)
    expect(bench, received, [next(packets[body["channel"]]) for body in received])
    # Loads write the first half of the scratchpad, and stores read the second half.
    for body in stores:
        store(bench.spec, body, bench.expected, bench.expected_pad, origin=ORIGIN)
    for body in loads:
        load(bench.spec, body, bench.expected, bench.expected_pad, origin=ORIGIN)
    bench.compare()
    await bench.end()


@bench_test
async def packets_match_model(dut: Any) -> None:
    """Every word on the link and every byte in memory equals the model's, with random pauses."""
    rng = random.Random(cocotb.RANDOM_SEED)
    await start(dut)
    spec = Bench(dut, None).spec
    wide = spec.bus_bytes > 16
    await move_packets(Bench(dut, rng), special_packets() + random_packets(rng, 25 if wide else 5))
    await move_packets(Bench(dut, None), random_packets(rng, 10 if wide else 3))
    if spec.link_port_bytes == 64:
        mixed = random_packets(rng, 12) + pad_packets(rng, 24)
        await move_packets(Bench(dut, rng), rng.sample(mixed, len(mixed)))
        await move_packets(Bench(dut, None), [*pad_packets(rng, 8), *long_packets(), *long_pads()])


@bench_test
async def sends_stop_at_errors(dut: Any) -> None:
    """A wrong field or response stops the engine; all words sent before are right."""
    rng = random.Random(cocotb.RANDOM_SEED)
    await start(dut)
    good, at = long_packets()[0], ORIGIN
    field, memory, answer = ErrorCode.BAD_FIELD, ErrorCode.MEMORY_RANGE, ErrorCode.AXI_READ
    wrong = [
        (field, packet(at, 0)),
        (field, packet(at, 64, channel=3)),
        (memory, packet(at - 1, 1)),
        (memory, packet(at + 2 * PART_BYTES, 64, 1000, 64)),
        (memory, packet(at + 256, 64, 9, -64)),
        (memory, packet(at, (1 << 32) - 1)),
        (memory, packet(at, 64, 2, -(1 << 39))),
        (answer, packet(at + 6000, 1000)),
        (answer, packet(at + 6900, 1)),
        *wrong_pads(Bench(dut, None).spec, SENT_PAD),
    ]
    bad = range(at + 6900, at + 6901)
    for number, (code, body) in enumerate(wrong):
        bench = Bench(dut, rng if number % 2 else None, joined=False, bad=[(bad, SLVERR)])
        await bench.begin()
        bench.channels.may_withdraw = True
        bodies = [good, good, body, good]
        bench.give("send", bodies)
        await bench.settle(send=4)
        assert bench.errors["send"] == [(code, FIRST_INDEX + 2)], number
        assert len(bench.done["send"]) <= 2
        for channel in range(3):
            expected = []
            for one in bodies[:3]:
                spaces = bench.expected, bench.expected_pad
                got, _ = send(bench.spec, one, *spaces, origin=ORIGIN, bad=bad)
                if one["channel"] == channel and len(got.words):
                    expected += link_words(got)
            found = list(bench.channels.sent[channel])
            assert [w for w, _ in found] == [w for w, _ in expected[: len(found)]], number
        ends = sum(last for sent in bench.channels.sent for _, last in sent)
        assert ends == len(bench.done["send"]), "a packet that is cut has no end"
        await bench.end()
    await move_packets(Bench(dut, rng), long_packets())


@bench_test
async def receives_stop_at_errors(dut: Any) -> None:
    """After a wrong field or packet, only the data before it is written, and nothing else."""
    rng = random.Random(cocotb.RANDOM_SEED)
    await start(dut)
    at, at_pad = ORIGIN + PART_BYTES, SENT_PAD + PAD_BYTES
    field, memory, other = ErrorCode.BAD_FIELD, ErrorCode.MEMORY_RANGE, ErrorCode.LINK_STREAM
    good = there(long_packets()[1])
    long = there(packet(ORIGIN + 4803, 1200, 2, 1280, stream=9))
    size = words_of_packet(long)
    cases: list[tuple[ErrorCode, dict[str, int], int, int]] = [
        (field, packet(at, 0), 0, 1),
        (field, packet(at, 64, channel=3), 0, 1),
        (memory, packet(at - PART_BYTES - 1, 1), 0, 1),
        (memory, packet(at + 2 * PART_BYTES - 640, 64, 11, 64, stream=3), 3, 11),
        (other, long, 10, size),  # a wrong tag
        (other, long, 9, size - 1),
        (other, long, 9, size + 1),
        (other, long, 9, size + 40),
        (other, long, 9, 1),
        (other, long, 9, size // 2),
        (other, packet(at + 64, 9, stream=9), 9, 2),
        (other, packet(at + 64, 9, stream=9), 9, 0),  # a tag without words
        *((code, body, 0, 1) for code, body in wrong_pads(Bench(dut, None).spec, at_pad)),
    ]
    if Bench(dut, None).spec.link_port_bytes == 64:
        pad = packet(at_pad + 128, 640, stream=9, in_scratchpad=True)
        cases += [(other, pad, *each) for each in ((8, 10), (9, 9), (9, 11), (9, 1), (9, 60))]
    for number, (code, body, stream, words) in enumerate(cases):
        bench = Bench(dut, rng if number % 2 else None, joined=False)
        await bench.begin()
        values = np.random.default_rng(number)
        packets = [
            sent_packet(bench, long_packets()[1]),
            Packet(stream, values.integers(0, 256, (words, 64), np.uint8)),
            sent_packet(bench, long_packets()[1]),
        ]
        for one, where in zip(packets, [good, body, good], strict=True):
            if where["channel"] < 3:
                given = link_words(one) if len(one.words) else [(one.stream, 1)]
                bench.channels.coming[where["channel"]].extend(given)
        bodies = [good, body, good]
        bench.give("receive", bodies)
        await bench.settle(receive=3)
        assert expect(bench, bodies, packets) == (1, code), number
        assert bench.errors["receive"] == [(code, FIRST_INDEX + 1)], number
        assert len(bench.done["receive"]) == 1
        bench.compare()
        await bench.end()
    await move_packets(Bench(dut, rng), long_packets())


@bench_test
async def receives_stop_at_bad_answers(dut: Any) -> None:
    """A write that fails stops its instruction; outstanding bursts are written wholly or not."""
    rng = random.Random(cocotb.RANDOM_SEED)
    await start(dut)
    bodies = [there(body) for body in long_packets()]
    for number, offset in enumerate((1040, 1030 + 512 + 299, 3100 + 999, 4801, 6902)):
        at = PART_BYTES + offset
        bad = range(ORIGIN + at, ORIGIN + at + 1)
        answer = (SLVERR, DECERR)[number % 2]
        bench = Bench(dut, rng if number % 3 else None, joined=False, bad=[(bad, answer)])
        await bench.begin()
        before = bench.memory.copy()
        packets = [sent_packet(bench, body) for body in long_packets()]
        for one, body in zip(packets, bodies, strict=True):
            bench.channels.coming[body["channel"]].extend(link_words(one))
        bench.give("receive", bodies)
        await bench.settle(receive=4)
        count, code = expect(bench, bodies, packets, bad=bad)
        assert code is ErrorCode.AXI_WRITE
        assert bench.errors["receive"] == [(code, FIRST_INDEX + count)]
        assert len(bench.done["receive"]) == count
        surely = bench.expected.copy()
        expect(bench, bodies, packets)
        for request in bench.axi.writes:
            first = request.address - ORIGIN
            part = slice(first, first + request.beats * bench.spec.bus_bytes)
            failed = first <= at < part.stop
            allowed = (before if failed else bench.expected)[part]
            seen = bench.memory[part]
            assert ((seen == allowed) | (seen == before[part])).all()
            surely[part] = np.where(surely[part] == before[part], seen, surely[part])
        bench.expected = surely
        bench.compare()
        await bench.end()
    await move_packets(Bench(dut, rng), long_packets())


async def halt_at(bench: Bench, engine: str, after: int) -> int:
    """Halt an engine after some cycles and wait until it is idle; returns the halt's cycle."""
    await ClockCycles(bench.dut.clk, after)
    bench.channels.may_withdraw = True
    bench.port(engine, "halt").value = 1
    await FallingEdge(bench.dut.clk)
    halted = cycle()
    await RisingEdge(bench.dut.clk)
    bench.port(engine, "halt").value = after % 2  # the engine latches the halt
    await bench.settle(**{engine: 0})
    assert not bench.errors[engine]
    return halted


@bench_test
async def sends_halt(dut: Any) -> None:
    """After a halt, no word leaves; all words that left before are right."""
    rng = random.Random(cocotb.RANDOM_SEED)
    await start(dut)
    pads = long_pads() if Bench(dut, None).spec.link_port_bytes == 64 else []
    for after in [*range(6, 26), 40, 60, 90]:
        bodies = pads if pads and after % 4 == 1 else long_packets()
        bench = Bench(dut, rng if after % 3 else None, joined=False, latency=(1, 10))
        await bench.begin()
        bench.channels.stands = after % 5 == 0
        bench.give("send", bodies)
        halted = await halt_at(bench, "send", after)
        assert all(moved <= halted for moved in bench.channels.moved)
        for channel in range(3):
            expected = [
                word
                for body in bodies
                if body["channel"] == channel
                for word in link_words(sent_packet(bench, body))
            ]
            found = list(bench.channels.sent[channel])
            assert found == expected[: len(found)]
        bench.compare()
        await bench.end()
    await move_packets(Bench(dut, rng), long_packets())


@bench_test
async def receives_halt(dut: Any) -> None:
    """After a halt, no word is accepted, bursts are completed, and nothing more is written."""
    rng = random.Random(cocotb.RANDOM_SEED)
    await start(dut)
    bodies = [there(body) for body in long_packets()]
    cut = 0
    for after in [*range(8, 50), 77, 90]:
        bench = Bench(dut, rng if after % 3 else None, joined=False, latency=(1, 10))
        await bench.begin()
        packets = [sent_packet(bench, body) for body in long_packets()]
        for one, body in zip(packets, bodies, strict=True):
            bench.channels.coming[body["channel"]].extend(link_words(one))
        bench.give("receive", bodies)
        halted = await halt_at(bench, "receive", after)
        assert all(taken <= halted for taken in bench.channels.taken)
        assert all(done <= halted + 1 for done in bench.done["receive"])
        beats = bench.axi.beats
        strobed = [beat for beat in beats if beat.strobes]
        assert sum(beat.cycle > halted for beat in strobed) <= 1
        cut += len(beats) > len(strobed) and bool(strobed)
        expect(bench, bodies, packets)
        fresh = Bench(dut, None)
        written = np.zeros(len(bench.memory), bool)
        for beat in strobed:
            lanes = [lane for lane in range(bench.spec.bus_bytes) if beat.strobes >> lane & 1]
            written[beat.address - ORIGIN + np.array(lanes)] = True
        bench.expected = np.where(written, bench.expected, fresh.memory)
        bench.compare()
        await bench.end()
    assert cut, "no halt came within the beats of a burst"
    await move_packets(Bench(dut, rng), long_packets())


@bench_test
async def receives_into_scratchpad_halt(dut: Any) -> None:
    """After a halt, at most the word that was waiting is written; those before it are right."""
    rng = random.Random(cocotb.RANDOM_SEED)
    await start(dut)
    if Bench(dut, None).spec.link_port_bytes < 64:
        return
    bodies = [there(body) for body in long_pads()]
    cut = 0
    for after in range(6, 60):
        bench = Bench(dut, rng if after % 3 else None, joined=False)
        await bench.begin()
        before = bench.scratchpad.copy()
        packets = [sent_packet(bench, body) for body in long_pads()]
        for one, body in zip(packets, bodies, strict=True):
            bench.channels.coming[body["channel"]].extend(link_words(one))
        bench.give("receive", bodies)
        halted = await halt_at(bench, "receive", after)
        assert all(taken <= halted for taken in bench.channels.taken)
        assert sum(written > halted for written in bench.pad.writes) <= 1
        expect(bench, bodies, packets)
        begin, words = SENT_PAD + PAD_BYTES, len(bench.pad.writes)
        end = begin + 64 * words  # the packets lie behind one another
        np.testing.assert_array_equal(bench.scratchpad[begin:end], bench.expected_pad[begin:end])
        np.testing.assert_array_equal(bench.scratchpad[end:], before[end:])
        cut += 0 < words < PAD_BYTES // 64
        await bench.end()
    assert cut, "no halt came within a packet"
    await move_packets(Bench(dut, rng), long_pads())


@bench_test
async def links_go_down(dut: Any) -> None:
    """A link that goes down is an error of the instruction that waits for it, and of no other."""
    rng = random.Random(cocotb.RANDOM_SEED)
    await start(dut)
    given = [long_packets()[:2]]
    if Bench(dut, None).spec.link_port_bytes == 64:
        given.append(long_pads()[:2])
    for bodies in given:
        await go_down(dut, bodies)
    await move_packets(Bench(dut, rng), given[0])


async def go_down(dut: Any, bodies: list[dict[str, int]]) -> None:
    """Let the link go down at some words of two packets."""
    first, second = (words_of_packet(body) + 1 for body in bodies)
    for words in (0, 1, 5, first, first + 1, first + second):
        bench = Bench(dut, None, joined=False)
        await bench.begin()
        for engine in ("send", "receive"):  # without instructions, there is no error
            bench.port(engine, "down").value = 1
        await ClockCycles(dut.clk, 5)
        assert not any(bench.errors.values())
        for engine in ("send", "receive"):
            bench.port(engine, "down").value = 0
        await ClockCycles(dut.clk, 5)
        packets = [sent_packet(bench, body) for body in bodies]
        given = [
            (body["channel"], word)
            for body, one in zip(bodies, packets, strict=True)
            for word in link_words(one)
        ]
        for channel, word in given[:words]:
            bench.channels.coming[channel].append(word)
        bench.give("send", bodies)
        bench.give("receive", [there(body) for body in bodies])
        parts = 64 // bench.spec.link_port_bytes
        for _ in range(600 if parts == 1 else 300 + 3 * parts * words):
            await RisingEdge(dut.clk)
            if words and len(bench.channels.moved) >= words:
                bench.channels.stands = True
            if words == 0:
                bench.channels.stands = True
        bench.channels.may_withdraw = True
        for engine in ("send", "receive"):
            bench.port(engine, "down").value = 1
        if words % 2:  # the link may be down for a short time only
            await ClockCycles(dut.clk, 3)
            for engine in ("send", "receive"):
                bench.port(engine, "down").value = 0
        await bench.settle(send=2, receive=2)
        count = (words >= first) + (words >= first + second)
        expected = [] if count == 2 else [(ErrorCode.LINK_DOWN, FIRST_INDEX + count)]
        assert bench.errors["receive"] == expected, words
        assert len(bench.done["receive"]) == count
        # The link may have accepted one more word before it was stopped.
        sent = len(bench.channels.moved)
        count = (sent >= first) + (sent >= first + second)
        expected = [] if count == 2 else [(ErrorCode.LINK_DOWN, FIRST_INDEX + count)]
        assert bench.errors["send"] == expected, words
        assert len(bench.done["send"]) == count
        await bench.end()


@bench_test
async def bus_never_waits_for_links(dut: Any) -> None:
    """Loads and stores continue while a link is stalled and has delivered half a burst."""
    rng = random.Random(cocotb.RANDOM_SEED)
    await start(dut)
    for pauses in (None, rng):
        bench = Bench(dut, pauses, joined=False)
        await bench.begin()
        bench.channels.stands = True
        body = packet(ORIGIN, PART_BYTES)
        bench.channels.coming[0].extend(link_words(sent_packet(bench, body))[:3])
        bench.give("send", [body] * 4)
        bench.give("receive", [there(body)])
        await ClockCycles(dut.clk, 2500)
        moves = [transfer(ORIGIN + 2 * PART_BYTES, 0, 1000)] * 2
        bench.give("load", moves)
        bench.give("store", moves)
        await bench.settle(load=2, store=2)
        for engine in ("send", "receive"):
            assert bench.port(engine, "busy").value
            assert bench.port(engine, "waits").value
        assert not bench.done["send"]
        assert not bench.channels.moved
        assert not any(bench.errors.values())
        # The engine has requested only as many words as it has room for.
        words = sum(r.beats for r in bench.axi.reads if r.id == 1) * bench.spec.bus_bytes // 64
        assert words == send_words(bench.spec)
        bench.channels.may_withdraw = True
        bench.port("send", "halt").value = 1
        bench.port("receive", "halt").value = 1
        await bench.settle(send=0, receive=0)
        await bench.end()


@bench_test
async def take_stated_cycles(dut: Any) -> None:
    """Without pauses, latencies and throughput are those stated in the gateware's docstrings."""
    await start(dut)
    latency = 11
    bench = Bench(dut, None, joined=False, latency=(latency, latency))
    await bench.begin()
    body = packet(ORIGIN, 6400)
    beats = 64 // bench.spec.bus_bytes
    bench.give("send", [body])
    await bench.settle(send=1)
    taken = bench.drivers["send"].cycles[0]
    # The arbiter's register adds a cycle to the request.
    assert bench.axi.reads[0].cycle - taken == 7 + 1
    words = bench.channels.moved
    assert len(words) == 101
    arrives = bench.axi.reads[0].cycle + latency + beats - 1
    assert words[0] - arrives == 4
    # The tag is sent when the first word arrives. It takes a cycle; on a narrow bus, that cycle
    # is hidden, unless words pass in parts, as the tag does.
    parts = 64 // bench.spec.link_port_bytes
    assert words[-1] - words[0] == (100 * parts if beats == parts else 99 * beats)
    assert bench.done["send"] == [words[-1] + 1]

    bench.channels.taken.clear()
    bench.channels.coming[0].extend(link_words(sent_packet(bench, body)))
    bench.give("receive", [there(body)])
    await bench.settle(receive=1)
    takes, writes = bench.channels.taken, bench.axi.writes
    if beats == parts:
        assert takes[-1] - takes[1] == 99 * parts
    there_at = takes[writes[0].beats // beats]  # cycle of the last word of the first burst
    # Two cycles of the engine and one of the arbiter.
    assert writes[0].cycle - there_at == 2 + 1
    assert bench.axi.beats[0].cycle - writes[0].cycle == 4 - 1
    assert bench.done["receive"] == [bench.axi.beats[-1].cycle + latency + 1]
    await bench.end()
    if parts == 1:
        await take_stated_cycles_on_chip(dut)


async def take_stated_cycles_on_chip(dut: Any) -> None:
    """Words of the scratchpad have the stated latencies and throughput, too."""
    bench = Bench(dut, None, joined=False)
    await bench.begin()
    body = packet(SENT_PAD, PAD_BYTES, in_scratchpad=True)
    bench.give("send", [body])
    await bench.settle(send=1)
    words = bench.channels.moved
    # The first word waits a cycle for its turn at the scratchpad.
    assert words[0] - bench.drivers["send"].cycles[0] == 8 + 1
    assert len(words) == words[-1] - words[0] + 1 == PAD_BYTES // 64 + 1
    assert bench.done["send"] == [words[-1] + 1]
    bench.channels.coming[0].extend(link_words(sent_packet(bench, body)))
    bench.give("receive", [there(body)])
    await bench.settle(receive=1)
    takes, writes = bench.channels.taken, bench.pad.writes
    assert takes[-1] - takes[1] == PAD_BYTES // 64 - 1
    # As above, the first word waits for its turn, and so do those behind it.
    assert {write - take for take, write in zip(takes[1:], writes, strict=True)} == {2 + 1}
    assert bench.done["receive"] == [writes[-1] + 1]
    await bench.end()
