"""The cycle model of the core: figures worked by hand, and the simulated hardware."""

import dataclasses
import random

import numpy as np
import pytest
from core_cases import random_conv

from fpgapipe.hw.hls_models.cycles.bus_cycles import ask, fetch_words, move_words, share_rates
from fpgapipe.hw.hls_models.cycles.core_cycles import CoreRun, MemorySpec, predict
from fpgapipe.hw.hls_models.cycles.instruction_cycles import gemm_timing, words_of_transfer
from fpgapipe.hw.hls_models.cycles.run_tables import Tables
from fpgapipe.hw.hls_models.cycles.vector_cycles import meeting_cycles
from fpgapipe.hw.hls_models.isa.instructions import LINK_OPCODES, Instruction, Opcode
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.hw.hls_models.isa.vector_op import Source, Target, VectorOp
from fpgapipe.hw.hls_models.model.link_dma import packet
from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, NoRoom, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.lowering.products.conv import PASSES
from fpgapipe.lowering.program.layer_program import lower_layer, random_operands
from fpgapipe.sim_tb.native.core_device import build_device, run_program
from fpgapipe.sim_tb.native.native import NativeDevice

WIDE = CoreSpec(32, 32)
SMALL = CoreSpec(8, 8, acc_depth=256, scratchpad=ScratchpadSpec(4, 1 << 15))
END = Instruction(Opcode.END)


def transfer(opcode, *, memory=0, row_bytes=64, rows=1, step=64, wait=(), signal=()):
    """Rows from or to the scratchpad's first bytes."""
    body = {
        "memory": memory,
        "scratchpad": memory % 64,
        "row_bytes": row_bytes,
        "rows": rows - 1,
        "row_memory": step,
        "row_scratchpad": step,
        "planes": 0,
        "plane_memory": 0,
        "plane_scratchpad": 0,
    }
    return Instruction(opcode, wait=wait, signal=signal, body=body)


def test_words_and_bursts_of_rows_that_begin_anywhere():
    rng = random.Random(1)
    for _ in range(200):
        memory, row_bytes, rows, step = (rng.randint(1, n) for n in (5000, 3000, 9, 4000))
        body = transfer(Opcode.LOAD, memory=memory, row_bytes=row_bytes, rows=rows, step=step).body
        touched = [range(memory + i * step, memory + i * step + row_bytes) for i in range(rows)]
        expected = tuple(
            sum(len({byte // size for byte in row}) for row in touched) for size in (64, 1024)
        )
        assert words_of_transfer(body, WIDE) == expected


def test_one_load():
    """Its start: fetched after 108 cycles, dispatched and offered after 6; its data 108 later."""
    prediction = predict([transfer(Opcode.LOAD, row_bytes=1024), END], WIDE)
    assert prediction.starts[0] == 114
    assert prediction.ends[0] == 114 + 108 + 16 + 2


def bus_of(core, memory, *link_bytes_per_cycle):
    """Tables of a core, with its bus as device 0, that request nothing; the program only ends."""
    return Tables([CoreRun([END], core, memory, link_bytes_per_cycle)]).state(8, 8).plain()


def test_reads_and_writes_share_the_memory():
    s = bus_of(WIDE, MemorySpec(64, 100))
    (bus,), (reads, writes) = s.devices, s.channels
    ask(s, 0, 0, words=16, bursts=1, begins=10)
    move_words(s, 0, 10)
    share_rates(s, 0, 10)
    assert (reads.rate, writes.rate, bus.bus_next) == (1, 0, 26)
    move_words(s, 0, 18)
    ask(s, 1, 1, words=16, bursts=1, begins=18)
    share_rates(s, 0, 18)
    assert (reads.rate, writes.rate, bus.bus_next) == (0.5, 0.5, 34)


@pytest.mark.parametrize("opcode", LINK_OPCODES)
def test_packets_of_the_scratchpad_are_as_fast_as_links(opcode):
    """One behind the other, whatever the memory gives."""
    core = CoreSpec(32, 32, links=(LinkEngineSpec(phy_bytes=16, frame_words=16),))
    body = packet(0, 1024 * 16, in_scratchpad=True)
    few, many = (
        predict([*[Instruction(opcode, body=body)] * count, END], core, MemorySpec(4)).ends[-2]
        for count in (8, 24)
    )
    assert many - few == pytest.approx(16 * 1024 * 65 / 64, rel=0.01)


def test_packets_are_as_fast_as_links():
    link = LinkEngineSpec(phy_bytes=16, frame_words=16)
    core = CoreSpec(32, 32, links=(link, link))
    assert predict([END], core) == predict([END], WIDE)
    body = packet(0, 1024 * 16)
    sends = [Instruction(Opcode.SEND, engine=n, body=body) for n in range(2)]
    # 256 words of 64 bytes at 16 bytes a cycle, less the trailers of 16 bytes of each 1024.
    alone = predict([sends[0], END], core)
    assert alone.ends[0] - alone.starts[0] == pytest.approx(108 + 1024 * 65 / 64 + 5)
    # Neither the other link nor loads take anything of it, as long as the memory has enough.
    load = transfer(Opcode.LOAD, row_bytes=1 << 15)
    both = predict([*sends, load, END], core)
    assert both.ends[0] - both.starts[0] == pytest.approx(108 + 1040 + 5)
    assert both.ends[1] - both.starts[1] == pytest.approx(108 + 1040 + 5)
    # The load gets what they leave of a word a cycle.
    left = 1 - 2 * 64 / 65 / 4
    assert both.ends[2] - both.starts[2] == pytest.approx(108 + 512 / left + 2, rel=0.02)
    receive = Instruction(Opcode.RECEIVE, body=body)
    slow = predict([receive, END], core, link_bytes_per_cycle=8)
    assert slow.ends[0] - slow.starts[0] == pytest.approx(16 + 16 * 8 + 256 * 8 + 100)
    assert slow.cycles == pytest.approx(slow.ends[0] - 100, abs=1)


def test_memory_is_shared_by_what_was_asked_for():
    """A load and a SEND want all that a RECEIVE leaves: 512 words and 256 have been asked for."""
    core = CoreSpec(32, 32, links=(LinkEngineSpec(), LinkEngineSpec()))
    s = bus_of(core, MemorySpec(48, 100), 64, 8)
    for channel in (0, 2, 5):
        ask(s, channel, 0, words=512, bursts=32, begins=0)
    share_rates(s, 0, 0)
    rates = [s.channels[channel].rate for channel in (0, 2, 5)]
    assert rates == pytest.approx((5 / 8 * 2 / 3, 5 / 8 / 3, 1 / 8))


def test_program_words_come_behind_what_loads_have_asked_for():
    s = bus_of(WIDE, MemorySpec(64, 100))
    ask(s, 0, 0, words=512, bursts=32, begins=100)
    fetch_words(s, 0, 9)  # the first burst was asked for in cycle 0: ten bursts of 16 words
    found, number = [], s.channels[0].head
    while number >= 0:
        flow = s.flows[number]
        found.append((flow.index, flow.words))
        number = flow.next
    assert found == [(-1, 160), (-1, 4), (0, 512 - 160)]


@pytest.mark.parametrize(("opcode", "hold"), [(Opcode.LOAD, 103), (Opcode.STORE, 110)])
def test_short_bursts_wait_for_places(opcode, hold):
    """Of bursts of a word, 64 are under way: every one waits for the one 64 before."""
    times = [
        predict([transfer(opcode, rows=rows, step=128), END], WIDE).ends[0] for rows in (640, 1280)
    ]
    assert times[1] - times[0] == 10 * hold


@pytest.mark.parametrize(
    ("x", "y", "lanes", "vectors"),
    [
        (0, 1 << 12, 16, 10),  # words 0 and 64 of one bank: both in the memory of even words
        (0, (1 << 12) + 64, 16, 0),
        (0, (1 << 12) + 32, 16, 10),  # a vector from the middle of a word needs both memories
        (0, 1 << 18, 16, 0),
        (0, 1 << 12, 8, 0),  # a vector takes two cycles anyway
    ],
)
def test_vectors_that_meet_in_a_bank(x, y, lanes, vectors):
    op = VectorOp((10,), Source(x, (64,)), Target(1 << 19, (64,)), y=Source(y, (64,)))
    scratchpad = ScratchpadSpec(4, 1 << 18)
    assert meeting_cycles(op, VectorSpec(lanes), scratchpad) == vectors
    others = dataclasses.replace(op, y=Source(y, (128,)))
    assert meeting_cycles(others, VectorSpec(lanes), scratchpad) == 0


def test_results_of_several_words_stop_the_array():
    loops = {name: [] for name in ("outer", "tap", "pos")}
    extents = {
        name: {"fp32": 0, "transposed": 0, "base": base, **loops}
        for name, base in (("a", 0), ("b", 1 << 19))
    }

    def timing(m, *, fp32):
        extent = {"m": m - 1, "k": 1, "n": 0, "first": 1, "last": 1}
        return gemm_timing({"extent": extent, "result": {"fp32": fp32}, **extents}, WIDE)

    # Two tiles: 32 columns of weights load while the first one's vectors stream.
    assert timing(16, fp32=0).stream_cycles == 32 + 16
    assert timing(16, fp32=1).stream_cycles == 32 + 16 + 15
    assert timing(16, fp32=1).stall_cycles == 15
    assert timing(64, fp32=1).stream_cycles == 64 + 64 + 63


def test_what_never_ends_is_an_error():
    waits = transfer(Opcode.LOAD, wait=(3,))
    with pytest.raises(
        ValueError, match=r"^the program waits for semaphores that nothing signals: instruction 0: "
    ):
        predict([waits, END], WIDE)
    with pytest.raises(ValueError, match=r"^instruction 0 is for an engine that the core does not"):
        predict([Instruction(Opcode.GEMM, engine=1, body={}), END], WIDE)


def test_more_queued_than_a_queue_holds():
    """Loads wait in their queue for what the last instruction but one signals."""
    loads = [transfer(Opcode.LOAD, signal=(1,))]
    loads += [transfer(Opcode.LOAD, wait=(1,), signal=(1,)) for _ in range(40)]
    prediction = predict([*loads, END], WIDE)
    ends = prediction.ends[:-1]
    assert list(ends) == sorted(ends)
    # A load of one word, its signal: start, request, latency, word, end, next start.
    assert ends[-1] - ends[-2] == 8 + 100 + 1 + 2 + 5


def test_late_times_come_to_an_end():
    """Fractions of a word that are left take less than such times can tell."""
    loads = [transfer(Opcode.LOAD, memory=7, row_bytes=1000, rows=3)] * 9
    for memory in (MemorySpec(100 / 7, 10**12), MemorySpec(1e-12), MemorySpec(1e-300)):
        prediction = predict([*loads, END], WIDE, memory)
        assert prediction.ends[8] > 9 * prediction.starts[0] / 10 > 1e11
    with pytest.raises(
        ValueError,
        match=r"^memory latency_cycles must be in 0\.\.1099511627776, not 10000000000000$",
    ):
        MemorySpec(64, 10**13)


@pytest.mark.sim
@pytest.mark.parametrize(
    "memory", [MemorySpec(64, 100), MemorySpec(16, 30), MemorySpec(128, 200)], ids=str
)
def test_hardware_takes_predicted_cycles(memory):
    """Random layers, of which the worst may be off by 3 %, and all together by 1 %."""
    library, _, _ = build_device(SMALL)
    registers = RegisterMap(SMALL)
    rng = random.Random(1)
    errors = []
    while len(errors) < 12:
        conv, which = random_conv(rng), rng.choice(PASSES)
        if not 1e5 < conv.macs < 1e6:
            continue
        program = lower_layer(conv, which, SMALL, memory=memory)
        with NativeDevice(
            library,
            memory_bytes=program.memory_bytes,
            bytes_per_cycle=int(memory.bytes_per_cycle),
            latency_cycles=memory.latency_cycles,
        ) as device:
            device.memory[:] = program.image(random_operands(program, 0))
            cycles = run_program(device, registers, program.entry, program.memory_bytes)
        predicted = program.tiled_product.prediction.cycles
        errors.append(abs(predicted - cycles) / cycles)
        assert errors[-1] < 0.03, f"{conv} {which}: {cycles} cycles, not {predicted}"
    assert sum(errors) / len(errors) < 0.01


@pytest.mark.sim
def test_operands_in_one_bank_wait_for_each_other():
    """Products for a scratchpad of a single bank; the core that runs them has more of them.

    They run alone, since the model does not know how long stores wait in such a bank.
    """
    library, _, _ = build_device(SMALL)
    registers = RegisterMap(SMALL)
    one = dataclasses.replace(SMALL, scratchpad=ScratchpadSpec(1, 1 << 15))
    memory = MemorySpec(64, 50)
    rng = random.Random(1)
    measured, predicted = [], []
    while len(measured) < 16:
        conv, which = random_conv(rng), rng.choice(PASSES)
        if not 1e5 < conv.macs < 1e6:
            continue
        try:
            instructions = lower_layer(conv, which, one, memory=memory).instructions
        except NoRoom:
            continue
        bodies = [each.body for each in instructions if each.opcode is Opcode.GEMM]
        product = max(bodies, key=lambda body: gemm_timing(body, one).stream_cycles)
        program = [Instruction(Opcode.GEMM, body=product)] * 2 + [END]
        content = np.frombuffer(encode(program), np.uint8)
        with NativeDevice(
            library, memory_bytes=1 << 16, bytes_per_cycle=64, latency_cycles=50
        ) as device:
            device.memory[: content.size] = content
            measured.append(run_program(device, registers, 0, 1 << 16))
        predicted.append(predict(program, one, memory).cycles)
    errors = np.array(predicted) / np.array(measured) - 1
    assert abs(errors).max() < 0.07
    assert sum(predicted) == pytest.approx(sum(measured), rel=0.01)
