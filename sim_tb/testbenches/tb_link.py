"""Checks a link's end in gateware with `LinkEnd` as its peer, over wires with faults."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import cocotb

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.model.link_end import HELLO_CYCLES, HELLO_PAGES, LinkEnd
from fpgapipe.hw.hls_models.spec.link import (
    LINK_VERSION,
    NUM_CHANNELS,
    WINDOW,
    Frame,
    FrameKind,
    LinkState,
)
from fpgapipe.sim_tb.native.phy import WireSpec
from fpgapipe.sim_tb.worlds.link_peer import Bench, Word, covered

COVERAGE = (
    *(f"{kind.name} {way}" for kind in FrameKind for way in ("out", "in")),
    *(f"{place} frame of a burst repeated" for place in ("first", "middle", "last")),
    *("repeated twice", "probe out", "probe in", "window full", "sequence wraps", "number wraps"),
    *(f"channel {channel} {way} full" for channel in range(NUM_CHANNELS) for way in ("out", "in")),
    *(f"cleared in {state.name}" for state in LinkState),
    *("peer cleared", "peer cleared twice", "peer reset with its number", "version", "digest"),
    *("switched off", "damaged in", "damaged out", "repetition in", "cut by a clear"),
)
"""Situations that must have occurred when all tests are over."""

CALM = WireSpec(latency_cycles=9, bytes_per_cycle=64)
FOUL = replace(
    CALM, bit_error_rate=4e-5, burst_rate=1e-3, drop_rate=0.04, duplicate_rate=0.05, pause=0.1
)


@cocotb.test(timeout_time=5000, timeout_unit="us")
async def words_pass_over_bad_wires(dut: Any) -> None:
    """All words arrive once and in order, with pauses on all streams, and counters are right."""
    bench = await Bench(dut, FOUL).begin()
    await bench.until(bench.joined)
    for rate, last_rate in ((1.0, 0.2), (0.0, 0.02), (0.5, 1.0)):
        bench.rate = rate
        bench.offer(8 * bench.spec.frame_words + 60, last_rate)
        await bench.until(bench.drained, 60_000)
    bench.rate = 0.0
    await bench.check_counts()
    assert bench.events["replay"] > 5
    assert bench.events["crc_error"] > 5


@cocotb.test(timeout_time=5000, timeout_unit="us")
async def lost_frames_come_again(dut: Any) -> None:
    """Frames at each place of a burst are lost once; then one is lost three times in a row."""
    bench = await Bench(dut, CALM).begin()
    await bench.until(bench.joined)
    for place, index in (("first", 0), ("middle", 2), ("last", 5)):
        left = [index]

        def loses(frame: Frame, left: list[int] = left) -> bool:
            left[0] -= frame.kind is FrameKind.DATA
            return frame.kind is FrameKind.DATA and left[0] == -1

        bench.loses = loses
        before = bench.seen["replay"]
        bench.out_words[1].extend((bench.rng.randbytes(64), True) for _ in range(6))
        await bench.until(bench.drained)
        await bench.run(300)
        assert bench.seen["replay"] == before + 1
        covered[f"{place} frame of a burst repeated"] += 1
    losses = [3]

    def loses_all(frame: Frame) -> bool:
        losses[0] -= frame.kind is FrameKind.DATA
        return frame.kind is FrameKind.DATA and losses[0] >= 0

    bench.loses = loses_all
    bench.out_words[2].append((bytes(64), True))
    await bench.until(bench.drained)
    await bench.check_counts()
    assert max(bench.transmissions.values()) == 4


@cocotb.test(timeout_time=5000, timeout_unit="us")
async def limits_hold(dut: Any) -> None:
    """Words wait if there is no room, the window limits open numbers, and numbers wrap around."""
    bench = await Bench(dut, CALM).begin()
    await bench.until(bench.joined)
    # If the peer is silent, the engine sends as many frames as allowed, and then probes.
    bench.mutes = True
    bench.offer(40, 1.0, back=False)
    await bench.run(40 * WORD_BYTES // bench.spec.beat_bytes * 8 + 4 * bench.spec.probe_cycles)
    slots = sum(bench.spec.slots)
    assert len(bench.numbers) == min(WINDOW, slots)
    assert sum(map(len, bench.accepted)) == min(slots, 3 * 40)
    covered["window full"] += slots > WINDOW
    bench.mutes = False
    await bench.until(bench.drained)
    for stuck in range(NUM_CHANNELS):
        for reads, way in ((bench.peer_reads, "out"), (bench.reads, "in")):
            reads[stuck] = False
            queues = bench.out_words if way == "out" else bench.in_words
            for channel, queue in enumerate(queues):
                count = bench.spec.slots[channel] + 20 if channel == stuck else 10
                queue.extend((bench.rng.randbytes(64), True) for _ in range(count))
            free = [queue for channel, queue in enumerate(queues) if channel != stuck]
            await bench.until(partial(are_empty, free))
            await bench.run(200 + 60 * WORD_BYTES // bench.spec.phy_bytes)
            if way == "out":
                waited = bench.events["credit_wait"]
                await bench.run(100)
                assert bench.events["credit_wait"] == waited + 100
                covered[f"channel {stuck} out full"] += len(queues[stuck]) > 0
                in_buffers = len(bench.accepted[stuck]) - len(bench.peer_taken[stuck])
                assert in_buffers == bench.spec.slots[stuck]
            reads[stuck] = True
            await bench.until(bench.drained)
    await bench.check_counts()


@cocotb.test(timeout_time=5000, timeout_unit="us")
async def sessions_begin_and_end(dut: Any) -> None:
    """After a clear in any state, the other end reports exactly what had been delivered."""
    bench = await Bench(dut, CALM).begin()
    await bench.run(30)
    assert bench.state is LinkState.HELLO
    await bench.clear_engine()
    for turn in range(4):
        await bench.until(bench.joined)
        bench.rate = 0.5
        bench.offer(100, 0.1)
        await bench.run(bench.rng.randrange(100, 900))
        delivered = await bench.clear_engine()
        peer = bench.peer
        await bench.until(
            lambda: bench.peer.state is LinkState.PEER_RESET and bench.peer.peer_delivered_known
        )
        assert peer.peer_delivered == delivered
        if turn == 3:  # the delivered words are known after a second clear, too
            await bench.clear_engine()
        peer.clear()
        left = [len(words) for words in bench.peer_taken]
        await bench.rejoin()
        assert bench.value("link_peer_delivered_known")
        assert bench.counts("peer_delivered") == left
    for clears in (1, 2):
        bench.offer(100, 0.1)
        await bench.run(bench.rng.randrange(100, 900))
        bench.peer.clear()
        delivered = [len(words) for words in bench.peer_taken]
        if clears == 2:
            await bench.run(40)
            bench.peer.clear()
        await bench.until(lambda: is_reported(bench))
        assert bench.counts("peer_delivered") == delivered
        covered["peer cleared" if clears == 1 else "peer cleared twice"] += 1
        await bench.run(200)
        assert bench.counts("delivered") == [len(words) for words in bench.taken]
        await bench.clear_engine()
        await bench.rejoin()
    # A peer without any memory that happens to use the number of its lost session again.
    bench.offer(3, 1.0)
    await bench.until(bench.drained)
    bench.peer = LinkEnd(bench.spec, bench.peer.session & 0x7FFF)
    bench.peer.enable()
    await bench.until(lambda: bench.state is LinkState.PEER_RESET)
    await bench.run(2 * HELLO_CYCLES * HELLO_PAGES)
    assert bench.peer.state is LinkState.HELLO
    assert not bench.value("link_peer_delivered_known")
    covered["peer reset with its number"] += 1
    await bench.clear_engine()
    await bench.rejoin()
    bench.offer(20, 0.3)
    await bench.until(bench.drained)


def are_empty(queues: Iterable[Collection[Word]]) -> bool:
    """Whether all queues are empty."""
    return not any(queues)


def is_reported(bench: Bench) -> bool:
    """Whether the engine has stopped and knows how many words its peer had delivered."""
    return bench.state is LinkState.PEER_RESET and bool(bench.value("link_peer_delivered_known"))


@cocotb.test(timeout_time=5000, timeout_unit="us")
async def others_are_refused(dut: Any) -> None:
    """Peers of another version or spec are refused, and an engine that is off sends nothing."""
    bench = await Bench(dut, CALM).begin()
    spec = bench.spec
    other = replace(spec, frame_words=33 - spec.frame_words if spec.frame_words in (1, 32) else 1)
    for name, peer in (
        ("version", LinkEnd(spec, version=LINK_VERSION + 1)),
        ("digest", LinkEnd(other)),
    ):
        bench.peer = peer
        peer.enable()
        await bench.until(lambda: bench.state is bench.peer.state is LinkState.MISMATCH)
        assert bench.value("link_peer") == 0
        covered[name] += 1
        bench.peer = LinkEnd(spec, 5)
        bench.peer.enable()
        await bench.run(2 * HELLO_CYCLES * HELLO_PAGES)
        assert bench.state is LinkState.MISMATCH
        assert bench.peer.state is LinkState.HELLO
        await bench.clear_engine()
        await bench.until(bench.joined)
        bench.offer(5, 0.5)
        await bench.until(bench.drained)
        session = bench.value("link_session")
        dut.link_enable.value = 0
        await bench.run(40)
        assert (bench.state, bench.value("link_session")) == (LinkState.OFF, 0)
        await bench.clear_engine()
        sent = bench.wires[0].counts.beats
        await bench.run(300)
        assert bench.wires[0].counts.beats == sent
        covered["switched off"] += 1
        dut.link_enable.value = 1
        await bench.run(12)
        assert bench.value("link_session") == (session + 1) % (1 << 15) | 1 << 15
        bench.new_records()


@cocotb.test()
async def everything_was_met(dut: Any) -> None:
    """All situations of `COVERAGE` have occurred."""
    for name in COVERAGE:
        dut._log.info("%6d  %s", covered[name], name)
    assert not [name for name in COVERAGE if not covered[name]]
