"""Checks two ends of an on-chip link, with registers between them that may wait."""

import random
from collections import deque
from typing import Any

import cocotb

from fpgapipe.hw.hls_models.spec.link import NUM_CHANNELS, LinkState
from fpgapipe.hw.hls_models.spec.on_chip import OnChipSpec
from fpgapipe.hw.rtl.link.on_chip import PASS_CYCLES, ROUND_CYCLES
from fpgapipe.sim_tb.drivers.stream import parameters
from fpgapipe.sim_tb.testbenches.tb_link_pair import Bench, Wire


class Registers(Wire):
    """One direction of the wires, which loses nothing and keeps the order of beats."""

    def take(self, cycle: int, beat: int) -> None:
        """Accept a beat."""
        self.beats.append((cycle + self.latency_cycles, beat))


def bench_of(dut: Any, latency_cycles: tuple[int, int]) -> Bench:
    """A bench whose wires are registers."""
    spec = OnChipSpec(tuple(parameters()["slots"]))
    bench = Bench(dut, spec, latency_cycles)
    bench.wires = [Registers(0, cycles, bench.rng) for cycles in latency_cycles]
    return bench


@cocotb.test(timeout_time=5000, timeout_unit="us")
async def delivers(dut: Any) -> None:
    """Every word arrives once and in order, whatever waits."""
    bench = bench_of(dut, (1, 9))
    await bench.begin()
    await bench.until(lambda: bench.both(LinkState.UP))
    for pause, last_rate in ((0.0, 0.1), (0.3, 0.4), (0.8, 0.1)):
        for end in bench.ends:
            end.pause = {"i": pause, "o": pause, "tx": pause / 2}
        bench.offer(300, last_rate)
        await bench.until(bench.delivered)
        bench.check()
    await bench.run(3)  # events are delayed
    for end in bench.ends:
        assert end.events["tx_word"] == sum(map(len, end.taken))
        assert end.events["rx_word"] == sum(map(len, end.out))
        assert end.events["tx_stall"] > 0


@cocotb.test(timeout_time=5000, timeout_unit="us")
async def wastes_no_cycle(dut: Any) -> None:
    """A word passes in each cycle, as long as the buffers cover the wires; latencies are right."""
    latency_cycles = 6
    bench = bench_of(dut, (latency_cycles, latency_cycles))
    await bench.begin()
    await bench.until(lambda: bench.both(LinkState.UP))
    sender, receiver = bench.ends
    await bench.run(50)
    sender.words[1].append(bench.rng.getrandbits(512) | 1 << 512)
    await bench.until(bench.delivered)
    assert receiver.out_cycle - sender.taken_cycle == PASS_CYCLES + latency_cycles
    waited = 0
    for channel, slots in enumerate(bench.spec.slots):
        for end in bench.ends:  # both directions at once
            end.words[channel].extend(bench.rng.getrandbits(513) for _ in range(600))
        await bench.until(lambda: not sender.words[channel])  # noqa: B023
        begin = bench.cycle
        await bench.until(bench.delivered)
        await bench.run(3)  # events are delayed
        bench.check()
        assert bench.cycle - begin < 60
        waits = sender.events["credit_wait"] - waited
        waited += waits
        # A place is free again after a word's way there, and the way back of what tells it.
        assert (waits > 0) == (slots < 2 * latency_cycles + ROUND_CYCLES), slots
        if not waits:
            assert sender.taken_cycle - begin < 10


@cocotb.test(timeout_time=5000, timeout_unit="us")
async def waits_for_room(dut: Any) -> None:
    """A channel whose words are not read fills its places and does not block other channels."""
    bench = bench_of(dut, (5, 2))
    await bench.begin()
    await bench.until(lambda: bench.both(LinkState.UP))
    for stuck, slots in enumerate(bench.spec.slots):
        bench.ends[1].reads[stuck] = False
        before = len(bench.ends[0].taken[stuck])
        for words in bench.ends[0].words:
            words.extend(bench.rng.getrandbits(513) for _ in range(slots + 60))
        others = [channel for channel in range(NUM_CHANNELS) if channel != stuck]
        await bench.until(lambda: not any(bench.ends[0].words[c] for c in others))  # noqa: B023
        await bench.run(100)
        assert len(bench.ends[0].taken[stuck]) - before == slots
        assert bench.ends[0].events["credit_wait"] > 50
        bench.ends[1].reads[stuck] = True
        await bench.until(bench.delivered)
        bench.check()


@cocotb.test(timeout_time=5000, timeout_unit="us")
async def begins_sessions(dut: Any) -> None:
    """No word of a session is delivered in the next one, at whatever moment an end begins it."""
    bench = bench_of(dut, (7, 3))
    await bench.begin()
    for turn in range(24):
        await bench.until(lambda: bench.both(LinkState.UP))
        first, second = random.Random(turn).sample(bench.ends, 2)
        sessions = [end.value("session") for end in bench.ends]
        assert [end.value("peer") for end in bench.ends] == sessions[::-1]
        for end in bench.ends:
            end.pause = dict.fromkeys(end.pause, (turn % 3) / 4)
        bench.offer(100)
        await bench.run(bench.rng.randrange(1, 100))
        bench.check()
        first.clear = 1
        await bench.run(3)
        had = [len(out) for out in first.out]
        await bench.until(lambda: second.state == LinkState.PEER_RESET and second.known)  # noqa: B023
        assert second.counts("peer_delivered") == had
        second.clear = 1
        await bench.run(3)
        for end in bench.ends:
            end.taken = [[] for _ in range(NUM_CHANNELS)]
            end.out = [[] for _ in range(NUM_CHANNELS)]
            end.words = [deque() for _ in range(NUM_CHANNELS)]
            end.offers = [False] * NUM_CHANNELS
        bench.offer(20)
        await bench.until(bench.delivered)
        bench.check()
