"""The cycle model of several cores: figures worked by hand, and the simulated cluster."""

from dataclasses import replace
from fractions import Fraction
from math import inf

import numpy as np
import pytest
from step_cases import every_operator
from test_pipeline import CORE, batch_of, cut

from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.host.runtime.measure import random_samples
from fpgapipe.hw.hls_models.cycles.cluster_cycles import predict_cluster
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec, predict
from fpgapipe.hw.hls_models.cycles.link_cycles import PacketTimes, WireTiming
from fpgapipe.hw.hls_models.isa.instructions import LINK_OPCODES, Instruction, Opcode
from fpgapipe.hw.hls_models.model.link_dma import packet
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.network.load import load_network
from fpgapipe.partition.schedule.schedule_kinds import make_schedule
from fpgapipe.sim_tb.native.phy import WireSpec

END = Instruction(Opcode.END)
PAIR = [((0, 0), (1, 0))]


def sends(size_bytes, count=1, **more):
    return [Instruction(Opcode.SEND, body=packet(0, size_bytes), **more)] * count


def receives(size_bytes, count=1, **more):
    return [Instruction(Opcode.RECEIVE, body=packet(0, size_bytes), **more)] * count


def between(sent, received, **more):
    return predict_cluster([[*sent, END], [*received, END]], [CORE] * 2, PAIR, **more)


def test_a_word_over_a_link():
    """Tag and word are a frame of 9 beats of 16 bytes; docs/links.md has the link's own cycles."""
    found = between(sends(64), receives(64))
    begin = found.devices[0].starts[0]
    assert begin == predict([*sends(64), END], CORE).starts[0]
    beat = begin + 8 + 100 + 1  # the word has been on the bus
    frame = beat + 4 + 7 + 9  # the frame has left
    written = frame + 128 + 11 + 1 + 6 + 1
    assert found.devices[1].ends[0] == written + 100
    assert found.devices[0].ends[0] == beat + 5
    assert found.wires[0, 0].words == 2
    assert (found.wires[0, 0].busy_cycles, found.wires[1, 0].busy_cycles) == (9, 0)
    assert found.cycles == written + 100 + 5
    begins = between(sends(64), receives(64), begins=[1000, 0])
    assert begins.devices[1].ends[0] == written + 1100


def test_packets_take_the_wire():
    """A packet of 4 KiB is 65 words with its tag: 4 frames of 65 beats and one of 5."""
    few, many = (between(sends(4096, n), receives(4096, n)).cycles for n in (8, 24))
    assert many - few == pytest.approx(16 * 265, rel=0.002)
    slow = between(sends(4096, 8), receives(4096, 8), wires=[WireTiming(8, 128)])
    assert slow.cycles - few == pytest.approx(8 * 265, rel=0.02)
    far = between(sends(4096, 8), receives(4096, 8), wires=[WireTiming(16, 328)])
    assert far.cycles - few == pytest.approx(200, abs=1)


def test_frames_of_a_word():
    """The first has the tag alone, and may be asked for when there is no room for more."""
    core = replace(CORE, links=(replace(CORE.links[0], frame_words=1),) * 2)
    body = packet(0, 64, 37, 128, channel=2)  # 7 fill the sender, and 3 words the link
    programs = [[*[Instruction(each, body=body)] * 24, END] for each in LINK_OPCODES]
    found = predict_cluster(programs, [core] * 2, PAIR, begins=[0, 5000])
    assert found.wires[0, 0].frames == found.wires[0, 0].words == 24 * 38


def test_a_receiver_that_is_late_holds_up_the_sender():
    """A link takes 16 frames of a channel, the sender keeps 256 words more."""
    wait = [Instruction(Opcode.LOAD, signal=(3,), body=load(1 << 16))] * 4
    late = receives(1 << 15, wait=(3,))
    found = between(sends(1 << 15), [*wait, *late])
    begins = found.devices[1].starts[4]
    assert begins > 1000
    assert found.devices[0].ends[0] > begins + 128
    assert between(sends(1 << 13), [*wait, *receives(1 << 13, wait=(3,))]).devices[0].ends[0] < 1000
    # When it begins, it finds 16 frames, and the others come at the rate of the wire.
    assert found.devices[1].ends[4] - begins == pytest.approx(17 * 65 + 2 * 128, rel=0.2)


@pytest.mark.parametrize("slots", [(2, 2, 2), (4, 4, 2), (16, 16, 4)])
@pytest.mark.parametrize("frame_words", [2, 4, 16])
def test_a_burst_may_be_longer_than_the_room_of_a_link(frame_words, slots):
    """Words are taken as they come; a few frames of 4 words hold no burst of 16."""
    link = replace(CORE.links[0], phy_bytes=4, frame_words=frame_words, slots=slots)
    core = replace(CORE, links=(link,) * 2)
    slow = [WireTiming(1, 50)]
    cycles = [
        predict_cluster([[*sends(size), END], [*receives(size), END]], [core] * 2, PAIR, wires=slow)
        for size in (1024, 4096)
    ]
    few, many = (each.cycles for each in cycles)
    # Beside its words, a frame takes a word of the wire's for its trailer.
    assert 3072 < many - few < 3072 * (2 if frame_words > 2 else 4)


def load(size_bytes):
    body = dict.fromkeys(
        (
            "memory",
            "scratchpad",
            "row_memory",
            "row_scratchpad",
            "plane_memory",
            "plane_scratchpad",
        ),
        0,
    )
    return body | {"row_bytes": 1 << 12, "rows": (size_bytes >> 12) - 1, "planes": 0}


def test_few_words_are_sent_soon_beside_long_loads():
    """They wait for what was requested before them, and not for what is requested later."""
    loads = [Instruction(Opcode.LOAD, body=load(1 << 16))] * 16
    slow = [MemorySpec(32)] * 2  # half a word in a cycle
    found = between([loads[0], *sends(1024), *loads], receives(1024), memories=slow)
    starts, ends = found.devices[0].starts, found.devices[0].ends
    before = 1024  # words of a load, and as many as may be requested at a time
    assert max(ends) > 16 * 2 * before
    # The words are in a frame, and the last of them with the tag in another one.
    assert ends[1] - starts[1] == pytest.approx(2 * 2 * before, rel=0.05)


@pytest.mark.parametrize(
    ("wire", "within", "taken_from"),
    [
        (WireTiming(), 25, 0),
        (WireTiming(1, 3000), 200, 0),
        (WireTiming(16, 20_000), 200, 0),
        (WireTiming(16, 20_000), 200, 100_000),
    ],
    ids=str,
)
def test_arrivals_are_those_of_devices_that_do_nothing_else(wire, within, taken_from):
    """Over long wires frames wait for those of the 16 slots that are heard to be free again.

    The other end does not free them before it begins to take words.
    """
    count = 6
    begins = [0, taken_from]
    found = between(sends(10_000, count), receives(10_000, count), wires=[wire], begins=begins)
    words = [10_000 // 64 + 1] * count
    begins = list(found.devices[0].starts)[:count]
    free = predict([*sends(10_000, count), END], CORE, link_bytes_per_cycle=inf)
    reads = list(free.ends)[:count]
    ends = CORE.links[0], CORE
    times = PacketTimes(ends, (MemorySpec(),) * 2, wire, 16)
    packets = zip(begins, reads, words, strict=True)
    come = [max(times.arrival(*each, taken_from), taken_from) for each in packets]
    come, ends = np.array(come), np.array(found.devices[1].ends[:count])
    late = ends > taken_from + 1000  # the first packet has come before
    assert late[1:].all()
    assert come[late] == pytest.approx(ends[late] + 5, abs=within)


def test_without_links_it_is_the_model_of_one_core():
    graph = every_operator(2)
    pipeline = build_pipeline(graph, [CORE], cut(graph, 1), make_schedule("1f1b-as", 1, 1))
    (part,) = pipeline.parts
    alone = predict(part.instructions, CORE)
    both = predict_cluster([part.instructions] * 2, [CORE] * 2, [], begins=[0, 50])
    assert both.devices[0] == alone
    assert both.devices[1].ends[-2] == pytest.approx(alone.ends[-2] + 50)


def test_what_never_comes_is_an_error():
    with pytest.raises(
        ValueError,
        match=r"^the devices wait for what never comes: device 1: instruction 1: RECEIVE\[0\]  "
        "row_bytes=64$",
    ):
        between(sends(64), receives(64, 2))
    with pytest.raises(
        ValueError, match=r"^the devices wait for what never comes: device 0: instruction 0: SEND"
    ):
        between(sends(1 << 16), [])


@pytest.mark.parametrize(
    ("wiring", "message"),
    [
        ([((0, 0), (2, 0))], "wiring must be of links that exist, not link 0 of device 2"),
        ([((0, 2), (1, 0))], "wiring must be of links that exist, not link 2 of device 0"),
        ([((0, 0), (1, 0)), ((0, 0), (1, 1))], "wiring must name link 0 of device 0 once"),
    ],
)
def test_wiring_must_be_right(wiring, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        predict_cluster([[END]] * 2, [CORE] * 2, wiring)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((0, 128), "wire bytes_per_cycle must be above 0, not 0"),
        ((16, 0), "wire latency_cycles must be at least 1, not 0"),
    ],
)
def test_wires_must_be_possible(values, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        WireTiming(*values)


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize(
    ("num_devices", "kind", "rate", "latency"),
    [
        (2, "gpipe", 16, 128),
        (2, "zb-h1", 3, 128),
        (3, "1f1b-as", 16, 1000),
        (4, "1f1b-as", 16, 128),
        (4, "zb-h1", 16, 128),
    ],
)
def test_a_simulated_cluster(num_devices, kind, rate, latency):
    graph = every_operator(2)
    count = 4
    pipeline = build_pipeline(
        graph,
        [CORE] * num_devices,
        cut(graph, num_devices),
        make_schedule(kind, num_devices, count),
    )
    wire = WireSpec(phy_bytes=16, bytes_per_cycle=Fraction(rate), latency_cycles=latency)
    wires = [replace(wire, seed=number) for number in range(num_devices - 1)]
    inputs, labels = batch_of(graph, count)
    with SimulatorBackend(
        pipeline, initial_parameters(graph, 0), MemorySpec(), wires, threads=2
    ) as backend:
        cycles = backend.step(inputs, labels, scalar_bits()).cycles
    found = predict_cluster(
        [part.instructions for part in pipeline.parts],
        [CORE] * num_devices,
        pipeline.wiring,
        wires=[WireTiming(rate, latency)] * (num_devices - 1),
    )
    assert found.cycles == pytest.approx(cycles, rel=0.01)
    assert np.isfinite(found.cycles)


@pytest.mark.sim
def test_simulated_links_with_room_for_less_than_a_burst():
    """Links of slow lines have frames of 4 words and slots for 4; a burst of a bus has 16."""
    graph = load_network("digits-cnn", 2)
    link = replace(CORE.links[0], phy_bytes=4, frame_words=4, slots=(4, 4, 2))
    cores = [replace(CORE, links=(link,) * 2)] * 2
    pipeline = build_pipeline(graph, cores, cut(graph, 2), make_schedule("1f1b-as", 2, 2))
    wires = [WireSpec(phy_bytes=4, bytes_per_cycle=Fraction(1))]
    with SimulatorBackend(pipeline, initial_parameters(graph, 0), MemorySpec(), wires) as backend:
        cycles = backend.cycles_of(*random_samples(pipeline), scalar_bits())
    programs = [part.instructions for part in pipeline.parts]
    found = predict_cluster(programs, cores, pipeline.wiring, wires=[WireTiming(1, 128)])
    assert found.cycles == pytest.approx(cycles, rel=0.01)
