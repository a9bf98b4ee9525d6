"""Checks load and store engines against their model: bytes, bursts, errors, cycles."""

import random
from collections.abc import Iterator
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge
from cocotbext.axi import AxiBus, AxiRam

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES, ErrorCode
from fpgapipe.hw.hls_models.model.dma import (
    burst_words,
    first_error,
    load_cycles,
    row_starts,
    store_cycles,
    transfer,
    words_of_row,
)
from fpgapipe.sim_tb.drivers.axi_memory import DECERR, SLVERR, Pauses
from fpgapipe.sim_tb.drivers.stream import cycle, start
from fpgapipe.sim_tb.worlds.dma_world import (
    FIRST_INDEX,
    MEMORY_BYTES,
    ORIGIN,
    Bench,
    Fetch,
    bad_groups,
    bench_test,
    bursts_of,
    random_transfers,
    separate_transfers,
    spec_of_parameters,
    special_transfers,
)


async def match_model(dut: Any, engine: str) -> None:
    """Run many transfers in sequence, with pauses on all ports."""
    rng = random.Random(cocotb.RANDOM_SEED)
    spec = spec_of_parameters()
    wide = spec.bus_bytes > 16
    bodies = special_transfers() + random_transfers(spec, rng, 40 if wide else 12)
    bench = Bench(dut, engine, rng, latency=(1, 40), max_open=spec.outstanding)
    await start(dut)
    await bench.begin()
    bench.send(bodies)
    await bench.settle(len(bodies))
    assert bench.expect(bodies) == (len(bodies), ErrorCode.NONE)
    bench.compare()
    assert not bench.errors
    assert len(bench.done) == len(bodies)
    requests = bench.axi.reads if engine == "load" else bench.axi.writes
    expected = bursts_of(spec, bodies)
    assert [(request.address, request.beats) for request in requests] == expected
    assert bench.bytes_moved == spec.bus_bytes * sum(beats for _, beats in expected)
    kind = "read" if engine == "load" else "write"
    # Otherwise the limit of outstanding bursts would not have been tested.
    assert bench.axi.most_open[kind] >= min(spec.outstanding, 2)
    await bench.end()


@bench_test
async def loads_match_model(dut: Any) -> None:
    """Every byte and every burst of loads equals the model's, with random pauses."""
    await match_model(dut, "load")


@bench_test
async def stores_match_model(dut: Any) -> None:
    """Every byte and every burst of stores equals the model's, with random pauses."""
    await match_model(dut, "store")


async def take_predicted_cycles(dut: Any, engine: str) -> None:
    """Run transfers without pauses, and compare cycles."""
    spec = spec_of_parameters()
    at = ORIGIN
    rows = transfer(at + 64, 0, 64, rows=40, row_memory=128, row_scratchpad=64)
    pairs = transfer(at + 64, 0, 100, rows=16, row_memory=256, row_scratchpad=128)
    long = transfer(at + 192, 0, 3000)
    one = transfer(at, 0, 1)
    groups = [[one], [rows], [pairs], [long], [one] * 12, [pairs, one, rows, long, rows, one, one]]
    if spec.bus_bytes < 16:  # transfers have many beats
        groups = groups[:2] + groups[4:5]
    predict = load_cycles if engine == "load" else store_cycles
    await start(dut)
    for latency in (1, 11, 60) if spec.bus_bytes >= 16 else (11,):
        for bodies in groups:
            # The arbiter's register delays a request of the load engine by a cycle.
            bench = Bench(dut, engine, None, latency=(latency, latency))
            await bench.begin()
            bench.send(bodies)
            await bench.settle(len(bodies))
            cycles = bench.done[-1] - bench.driver.cycles[0]
            seen = latency + 1 if engine == "load" else latency
            predicted = predict(spec, bodies, seen)
            assert cycles == predicted, (
                f"latency {latency}, group {groups.index(bodies)}: {cycles}, not {predicted}"
            )
            await bench.end()


@bench_test
async def loads_take_predicted_cycles(dut: Any) -> None:
    """Loads take as many cycles as predicted, also if outstanding bursts are the bottleneck."""
    await take_predicted_cycles(dut, "load")


@bench_test
async def stores_take_predicted_cycles(dut: Any) -> None:
    """Stores take as many cycles as predicted, also if outstanding bursts are the bottleneck."""
    await take_predicted_cycles(dut, "store")


def banked_delay(bank_of: list[int], beats: int, busy_cycles: int) -> int:
    """Delay of the last of several consecutive bursts that the banks cause, cycles."""
    free: dict[int, int] = {}
    end = begin = 0
    for bank in bank_of:
        begin = max(end, free.get(bank, 0))
        free[bank] = begin + busy_cycles
        end = begin + beats
    return begin - beats * (len(bank_of) - 1)


@bench_test
async def banks_hold_bursts_up(dut: Any) -> None:
    """Bursts in the same bank of the memory begin at least as many cycles apart as a bank needs."""
    spec = spec_of_parameters()
    rows, size, busy = min(12, spec.outstanding), 256, 20
    await start(dut)
    for engine in ("load", "store"):
        for step in (4 * size, size):  # all rows in one bank, or in all four banks
            body = transfer(ORIGIN, 0, 64, rows=rows, row_memory=step, row_scratchpad=64)
            cycles = []
            for banks in (None, (4, size, busy)):
                bench = Bench(dut, engine, None, latency=(11, 11), banks=banks)
                await bench.begin()
                bench.send([body])
                await bench.settle(1)
                bench.expect([body])
                bench.compare()
                cycles.append(bench.done[0] - bench.driver.cycles[0])
                await bench.end()
            bank_of = [row * step // size % 4 for row in range(rows)]
            delay = banked_delay(bank_of, 64 // spec.bus_bytes, busy)
            assert cycles[1] - cycles[0] == delay, (engine, step, cycles, delay)


async def stop_at_errors(dut: Any, engine: str) -> None:
    """Test all errors of fields, in the middle of other instructions."""
    spec = spec_of_parameters()
    rng = random.Random(cocotb.RANDOM_SEED)
    await start(dut)
    step = 1 if spec.bus_bytes >= 16 else 5  # fewer cases if transfers have many beats
    for number, (code, options, bodies) in enumerate(bad_groups()[::step]):
        limits = dict(options)
        origin = limits.pop("origin", ORIGIN)
        bench = Bench(dut, engine, rng if number % 2 else None, origin=origin, latency=(1, 30))
        await bench.begin(**limits)
        bench.send(bodies)
        await bench.settle()
        count, expected = bench.expect(bodies)
        assert expected is code, (number, expected)
        assert bench.errors == [(code, FIRST_INDEX + count)], (number, bench.errors)
        assert len(bench.done) == count
        bench.compare()
        # Nothing was requested after the valid rows.
        rows, _ = first_error(
            spec, bodies[count], limits.get("base", ORIGIN), limits.get("limit", ORIGIN + 32768)
        )
        right = bursts_of(spec, bodies[:count]) + bursts_of(spec, bodies[count : count + 1], rows)
        requests = bench.axi.reads if engine == "load" else bench.axi.writes
        assert [(request.address, request.beats) for request in requests] == right, number
        await bench.end()
    await work_again(dut, engine, rng)


async def work_again(dut: Any, engine: str, rng: random.Random) -> None:
    """Check that an engine works after a reset."""
    bodies = special_transfers()[-4:]
    bench = Bench(dut, engine, rng)
    await bench.begin()
    bench.send(bodies)
    await bench.settle(len(bodies))
    bench.expect(bodies)
    bench.compare()
    assert not bench.errors
    await bench.end()


@bench_test
async def loads_stop_at_errors(dut: Any) -> None:
    """Everything before an error is loaded; after it, nothing is even read."""
    await stop_at_errors(dut, "load")


@bench_test
async def stores_stop_at_errors(dut: Any) -> None:
    """Everything before an error is stored; nothing after it is."""
    await stop_at_errors(dut, "store")


@bench_test
async def loads_stop_at_bad_answers(dut: Any) -> None:
    """A read that fails stops its instruction at the failing word; later ones do not run."""
    rng = random.Random(cocotb.RANDOM_SEED)
    await start(dut)
    bodies = separate_transfers()
    for number, at in enumerate((1024, 1024 + 512 + 290, 8000 + 999, 12001 + 64, 21000, 21502)):
        bad = range(ORIGIN + at, ORIGIN + at + 1)
        answer = (SLVERR, DECERR)[number % 2]
        bench = Bench(
            dut, "load", rng if number % 3 else None, bad=[(bad, answer)], latency=(1, 30)
        )
        await bench.begin()
        bench.send(bodies)
        await bench.settle()
        count, code = bench.expect(bodies, bad)
        assert code is ErrorCode.AXI_READ
        assert bench.errors == [(code, FIRST_INDEX + count)]
        assert len(bench.done) == count
        bench.compare()
        await bench.end()
    await work_again(dut, "load", rng)


@bench_test
async def stores_stop_at_bad_answers(dut: Any) -> None:
    """A write that fails stops its instruction; outstanding bursts are written wholly or not."""
    spec = spec_of_parameters()
    rng = random.Random(cocotb.RANDOM_SEED)
    await start(dut)
    bodies = separate_transfers()
    for number, at in enumerate((1024, 1024 + 512 + 290, 8000 + 999, 12001 + 64, 21000, 21502)):
        bad = range(ORIGIN + at, ORIGIN + at + 1)
        answer = (SLVERR, DECERR)[number % 2]
        bench = Bench(
            dut, "store", rng if number % 3 else None, bad=[(bad, answer)], latency=(1, 30)
        )
        await bench.begin()
        before = bench.memory.copy()
        bench.send(bodies)
        await bench.settle()
        count, code = bench.expect(bodies, bad)
        assert code is ErrorCode.AXI_WRITE
        assert bench.errors == [(code, FIRST_INDEX + count)]
        assert len(bench.done) == count
        surely = bench.expected_memory.copy()
        assert bench.expect(bodies) == (len(bodies), ErrorCode.NONE)
        all_of_it = bench.expected_memory
        for request in bench.axi.writes:
            first = request.address - ORIGIN
            part = slice(first, first + request.beats * spec.bus_bytes)
            failed = first <= at < part.stop
            seen = bench.memory[part]
            allowed = (before if failed else all_of_it)[part]
            assert ((seen == allowed) | (seen == before[part])).all()
            surely[part] = np.where(surely[part] == before[part], seen, surely[part])
        bench.expected_memory = surely
        bench.compare()
        await bench.end()
    await work_again(dut, "store", rng)


async def halted_bench(dut: Any, engine: str, after: int, rng: random.Random | None) -> Any:
    """Halt an engine after some cycles; returns its bench and the cycle of the halt."""
    bench = Bench(dut, engine, rng, latency=(1, 20))
    await bench.begin()
    bench.send(separate_transfers())
    await ClockCycles(dut.clk, after)
    port = getattr(dut, f"{engine}_halt")
    port.value = 1
    await FallingEdge(dut.clk)
    halted = cycle()
    await RisingEdge(dut.clk)
    port.value = after % 2  # the engine latches the halt
    await bench.settle()
    assert not bench.errors
    return bench, halted


@bench_test
async def loads_halt(dut: Any) -> None:
    """After a halt, only words that were on their way to the scratchpad are written."""
    rng = random.Random(cocotb.RANDOM_SEED)
    await start(dut)
    bodies = separate_transfers()
    for after in [*range(5, 30), 40, 41, 60, 77, 90]:
        bench, halted = await halted_bench(dut, "load", after, rng if after % 3 else None)
        writes = bench.pad.writes
        assert sum(moved > halted for moved in writes) <= 2
        # One request in the engine's register and two in those of the arbiter.
        assert sum(request.cycle > halted for request in bench.axi.reads) <= 3
        bench.expect(bodies)
        words: list[int] = []
        ends: list[int] = []
        for body in bodies:
            for memory, scratchpad in row_starts(body):
                first, size = words_of_row(memory, body["row_bytes"])
                into = scratchpad - memory + first
                words += range(into, into + size, WORD_BYTES)
            ends.append(len(words))
        # Instructions that were written completely are done, even after the halt.
        assert len(bench.done) == sum(end <= len(writes) for end in ends)
        for address in words[: len(writes)]:
            part = slice(address, address + WORD_BYTES)
            np.testing.assert_array_equal(bench.scratchpad[part], bench.expected_scratchpad[part])
            bench.expected_scratchpad[part] = bench.scratchpad[part]
        fresh = Bench(dut, "load", None)
        for address in words[len(writes) :]:
            part = slice(address, address + WORD_BYTES)
            np.testing.assert_array_equal(bench.scratchpad[part], fresh.scratchpad[part])
        await bench.end()
    await work_again(dut, "load", rng)


@bench_test
async def stores_halt(dut: Any) -> None:
    """After a halt, bursts are completed as the protocol requires, but write nothing more."""
    rng = random.Random(cocotb.RANDOM_SEED)
    await start(dut)
    bodies = separate_transfers()
    cut = 0
    for after in [*range(5, 40), 60, 77, 90]:
        bench, halted = await halted_bench(dut, "store", after, rng if after % 3 else None)
        assert sum(request.cycle > halted for request in bench.axi.writes) <= 1
        beats = bench.axi.beats
        strobed = [beat for beat in beats if beat.strobes]
        assert all(done <= halted + 1 for done in bench.done)
        # One beat may have been waiting at the bus.
        assert sum(beat.cycle > halted for beat in strobed) <= 1
        assert all(beat.strobes for beat in beats[: len(strobed)]) or bench.spec.bus_bytes < 64
        cut += len(beats) > len(strobed) and bool(strobed)
        bench.expect(bodies)
        fresh = Bench(dut, "store", None)
        written = np.zeros(MEMORY_BYTES, bool)
        for beat in strobed:
            lanes = [lane for lane in range(bench.spec.bus_bytes) if beat.strobes >> lane & 1]
            written[beat.address - ORIGIN + np.array(lanes)] = True
        bench.expected_memory = np.where(written, bench.expected_memory, fresh.memory)
        bench.compare()
        await bench.end()
    assert cut, "no halt came within the beats of a burst"
    await work_again(dut, "store", rng)


@bench_test
async def readers_share_the_port(dut: Any) -> None:
    """Both readers get their own data, in whatever order the memory answers."""
    spec = spec_of_parameters()
    rng = random.Random(cocotb.RANDOM_SEED)
    bodies = random_transfers(spec, rng, 10)
    longest = burst_words(spec) * WORD_BYTES // spec.bus_bytes
    beats = [rng.randint(1, min(4, longest)) for _ in range(40)]
    bursts_asked = [(ORIGIN + 1024 * rng.randrange(MEMORY_BYTES // 1024), count) for count in beats]
    await start(dut)
    bench = Bench(dut, "load", rng, latency=(1, 30))
    await bench.begin()
    fetch = cocotb.start_soon(Fetch(dut, rng).read(bursts_asked))
    bench.send(bodies)
    words = await fetch
    await bench.settle(len(bodies))
    bench.expect(bodies)
    bench.compare()
    expected = [
        bench.memory[address - ORIGIN + beat * spec.bus_bytes :][: spec.bus_bytes]
        for address, count in bursts_asked
        for beat in range(count)
    ]
    assert words == [int.from_bytes(word.tobytes(), "little") for word in expected]
    assert {request.id for request in bench.axi.reads} == {0, 1}
    await bench.end()


@bench_test
async def memory_of_cocotbext_agrees(dut: Any) -> None:
    """The engines also work with another implementation of the protocol, cocotbext.axi."""
    spec = spec_of_parameters()
    rng = random.Random(cocotb.RANDOM_SEED)
    await start(dut)
    ram = AxiRam(AxiBus.from_prefix(dut, "m_axi"), dut.clk, size=MEMORY_BYTES)
    for channel in (
        ram.read_if.ar_channel,
        ram.read_if.r_channel,
        ram.write_if.aw_channel,
        ram.write_if.w_channel,
        ram.write_if.b_channel,
    ):
        channel.set_pause_generator(endless_pauses(rng))
    for engine in ("load", "store"):
        bodies = special_transfers() + random_transfers(spec, rng, 4)
        bench = Bench(dut, engine, rng, own_memory=False)
        await bench.begin()
        ram.write(0, bench.memory.tobytes())
        bench.send(bodies)
        await bench.settle(len(bodies))
        bench.memory[:] = np.frombuffer(ram.read(0, MEMORY_BYTES), np.uint8)
        bench.expect(bodies)
        bench.compare()
        assert not bench.errors
        await bench.end()


def endless_pauses(rng: random.Random) -> Iterator[bool]:
    """Endless random pauses for cocotbext.axi."""
    pauses = Pauses(rng)
    while True:
        yield pauses()
