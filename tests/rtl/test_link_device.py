"""Devices that links join, simulated together, against their models: tensors there and back."""

import dataclasses
import random
from fractions import Fraction

import numpy as np
import pytest

from fpgapipe.hw.hls_models.cycles.core_cycles import predict
from fpgapipe.hw.hls_models.isa.instructions import (
    LINK_OPCODES,
    Engine,
    ErrorCode,
    Instruction,
    Opcode,
)
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.hw.hls_models.model.cluster import run_cluster
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.model.dma import transfer
from fpgapipe.hw.hls_models.model.link_dma import packet, words_of_packet
from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec, check
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec, LinkState
from fpgapipe.hw.hls_models.spec.link_clock import METER_CYCLES, clock_ratio
from fpgapipe.hw.rtl.device import Device
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.cluster.cluster import Cluster
from fpgapipe.sim_tb.cluster.cluster_nodes import Node, cable
from fpgapipe.sim_tb.native.native import NativeDevice, StallError, build_native
from fpgapipe.sim_tb.native.phy import WireSpec

LINK = LinkEngineSpec(phy_bytes=16, frame_words=4, slots=(4, 4, 2))
CORE = CoreSpec(
    1, 1, acc_depth=16, scratchpad=ScratchpadSpec(1, 1024), burst_beats=8, outstanding=8,
    links=(LINK, LINK),
)  # fmt: skip
WIRING = [((0, 0), (1, 1)), ((0, 1), (1, 0))]
REGISTERS = RegisterMap(CORE)

ENTRY = 0x10000
"""Of programs; the data lie before."""

MEMORY_BYTES = 1 << 17
END = Instruction(Opcode.END)

pytestmark = [pytest.mark.sim, pytest.mark.slow]  # a core with links takes long to build


@pytest.fixture(scope="module")
def library():
    return build_native(verilog_of(Device(CORE)))


def link(opcode, number, body, wait=(), signal=()):
    return Instruction(opcode, wait, signal, number, body)


def there_and_back(rng, count):
    """Programs of two devices: the first sends packets, which the second sends back.

    The first sends on one link or the other, and what comes back goes elsewhere in its memory. LOAD
    and STORE use the bus meanwhile. Each link has places of its own: engines of several links keep
    no order.
    """
    one, other = [], []
    used = set()
    for number in range(count):
        where = rng.choice([0, 1]) if number else 0
        low, step = rng.randrange(64), rng.choice([64, 777, 1024])
        size, rows = rng.randint(1, 700), rng.randint(1, 3)
        shape = {"stream": rng.getrandbits(32), "channel": rng.randrange(3)}
        out, far, back = (
            packet(at + 64 * rng.randrange(40) + low, size, rows, step, **shape)
            for at in (0, 0x2000 + 0x2000 * where, 0x6000 + 0x2000 * where)
        )
        # Semaphores 0 and 1: what was received may be sent. 2 and 3: its place is free again.
        free = (2 + where,)
        one.append(link(Opcode.SEND, where, out))
        other.append(link(Opcode.RECEIVE, 1 - where, far, free if where in used else (), (where,)))
        other.append(link(Opcode.SEND, 1 - where, far, (where,), free))
        one.append(link(Opcode.RECEIVE, where, back))
        moves = transfer(0xA000, 0, rng.randint(1, 800))
        one.append(Instruction(Opcode.LOAD, signal=(4,), body=moves))
        one.append(Instruction(Opcode.STORE, (4,), body=moves))
        used.add(where)
    return [*one, END], [*other, Instruction(Opcode.END, tuple(2 + each for each in used))]


def images(programs, seed=0):
    rng = np.random.default_rng(seed)
    found = []
    for program in programs:
        image = rng.integers(0, 256, MEMORY_BYTES, np.uint8)
        words = np.frombuffer(encode(program), np.uint8)
        image[ENTRY : ENTRY + words.size] = words
        found.append(image)
    return found


class Pair:
    """Two devices with both links between them."""

    def __init__(self, library, wire, **options):
        self.nodes = [
            Node(f"d{n}", NativeDevice(library, memory_bytes=MEMORY_BYTES, seed=n), REGISTERS)
            for n in range(2)
        ]
        wires = [dataclasses.replace(wire, seed=wire.seed + 2 * n) for n in range(2)]
        connections = [
            each for (a, b), one in zip(WIRING, wires, strict=True) for each in cable(a, b, one)
        ]
        self.cluster = Cluster(self.nodes, connections, **options)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.cluster.close()

    def write(self, number, name, value):
        self.cluster.write_register(number, REGISTERS.offset(name), value)

    def read(self, number, name, field=None):
        value = self.cluster.read_register(number, REGISTERS.offset(name))
        return REGISTERS[name].field(field).of(value) if field else value

    def count(self, number, name):
        return self.read(number, f"{name}_LO") | self.read(number, f"{name}_HI") << 32

    def enable(self):
        for number in range(2):
            for each in range(2):
                self.write(number, f"LINK{each}_SEED", 100 * number + each + 1)
                self.write(number, f"LINK{each}_ENABLE", 1)

    def start(self, programs, data):
        for number, image in enumerate(data):
            self.nodes[number].device.memory[:] = image
            self.write(number, "MEMORY_LIMIT_LO", MEMORY_BYTES)
            self.write(number, "PROGRAM_LO", ENTRY)
            self.write(number, "IRQ_ENABLE", 0b1100)
            self.write(number, "CONTROL", 1)

    def statuses(self):
        names = ("done", "error", "running")
        return [[self.read(n, "STATUS", name) for name in names] for n in range(2)]


def test_the_clock_of_a_phy_is_counted(library):
    """A simulated PHY has the clock of its core, whatever its wire carries."""
    with Pair(library, WIRES["bad"]) as pair:
        pair.enable()
        counted = [(n, f"LINK{each}_CLOCK") for n in range(2) for each in range(2)]
        assert not any(pair.read(*each, "known") for each in counted)
        pair.cluster.begin(1 << 20)
        pair.cluster.advance(METER_CYCLES)
        for each in counted:
            assert pair.read(*each, "known")
            assert clock_ratio(pair.read(*each, "ticks")) == 1


def run_models(programs, data):
    models = [CoreModel(CORE, image.copy()) for image in data]
    run_cluster(models, programs, WIRING)
    return [model.memory for model in models]


WIRES = {
    "good": WireSpec(16, Fraction(16), 20),
    "bad": WireSpec(16, Fraction(25, 2), 33, bit_error_rate=2e-5, drop_rate=0.02, seed=5),
}


@pytest.mark.parametrize("kind", WIRES)
def test_tensors_go_there_and_back(library, kind):
    rng = random.Random(1)
    programs = there_and_back(rng, 30)
    spec = SequencerSpec.of(CORE)
    for program in programs:
        assert check(encode(program), spec) == program
    data = images(programs)
    expected = run_models(programs, data)
    with Pair(library, WIRES[kind]) as pair:
        pair.enable()
        for _ in range(2):  # a start leaves links as they are
            pair.start(programs, data)
            pair.cluster.run(1_000_000, stall_cycles=100_000)
            assert pair.statuses() == [[1, 0, 0]] * 2
            for number, memory in enumerate(expected):
                found = pair.nodes[number].device.memory
                np.testing.assert_array_equal(found, memory, f"device {number}")
        for number, program in enumerate(programs):
            for each in range(2):
                name = f"LINK{each}"
                words = {
                    opcode: 2
                    * sum(
                        words_of_packet(i.body) + 1
                        for i in program
                        if i.opcode is opcode and i.engine == each
                    )
                    for opcode in LINK_OPCODES
                }
                assert pair.read(number, f"{name}_STATUS", "state") == LinkState.UP
                assert pair.count(number, f"{name}_TX_WORDS") == words[Opcode.SEND]
                assert pair.count(number, f"{name}_RX_WORDS") == words[Opcode.RECEIVE]
                delivered = [pair.count(number, f"{name}_DELIVERED{c}") for c in range(3)]
                assert sum(delivered) == words[Opcode.RECEIVE]
                assert pair.count(number, f"{name}_SEND_BUSY") > words[Opcode.SEND] // 2
                frames = pair.count(number, f"{name}_TX_FRAMES")
                assert frames >= pair.count(number, f"{name}_REPLAYS") + words[Opcode.SEND] // 4
                assert (pair.count(number, f"{name}_REPLAYS") > 0) == (kind == "bad")


def test_takes_predicted_cycles(library):
    """The cycle model, once it knows how fast these links are, whose buffers hold little."""
    found, rate = [], None
    for size in (4096, 700):
        bodies = [packet(at + 64, size, 2, 4096) for at in (0, 0x8000)]
        programs = [
            [link(opcode, n, bodies[n])] * 6 + [END] for n, opcode in enumerate(LINK_OPCODES)
        ]  # fmt: skip
        with Pair(library, WIRES["good"]) as pair:
            pair.enable()
            pair.cluster.run(1000, until_irq=False)
            pair.start(programs, images(programs))
            pair.cluster.run(1_000_000)
            cycles = [pair.count(number, "CYCLES") for number in range(2)]
            busy = pair.count(0, "LINK0_SEND_BUSY")
        if rate is None:
            rate = 6 * 64 * (words_of_packet(bodies[0]) + 1) / busy
        predicted = [
            max(predict(program, CORE, link_bytes_per_cycle=rate).ends) for program in programs
        ]
        found += [there / right for there, right in zip(cycles, predicted, strict=True)]
    assert found == pytest.approx([1.0] * 4, abs=0.1)


def test_another_stream_stops_the_receiver(library):
    body = packet(0x100, 300, stream=5)
    programs = [
        [link(Opcode.SEND, 0, body), END],
        [link(Opcode.RECEIVE, 1, body | {"stream": 6}), END],
    ]
    data = images(programs)
    with Pair(library, WIRES["good"]) as pair:
        pair.enable()
        pair.start(programs, data)
        pair.cluster.run(100_000)
        assert pair.statuses() == [[1, 0, 0], [0, 1, 0]]
        assert pair.read(1, "ERROR", "code") == ErrorCode.LINK_STREAM
        assert pair.read(1, "ERROR", "engine") == Engine.RECEIVE + 1
        np.testing.assert_array_equal(pair.nodes[1].device.memory, data[1])
        # With both ends reset the links are as new.
        for number, each in ((0, 0), (1, 1)):
            pair.write(number, f"LINK{each}_CONTROL", 1)
        programs[1][0] = link(Opcode.RECEIVE, 1, body)
        data = images(programs)
        pair.start(programs, data)
        pair.cluster.run(100_000)
        assert pair.statuses() == [[1, 0, 0]] * 2
        expected = run_models(programs, data)
        np.testing.assert_array_equal(pair.nodes[1].device.memory, expected[1])


def test_a_peer_that_is_reset_stops_a_program(library):
    body = packet(0x100, 3000, 7, 64, stream=5)
    programs = [[link(Opcode.SEND, 0, body)] * 9 + [END], [link(Opcode.RECEIVE, 1, body), END]]
    with Pair(library, WIRES["good"]) as pair:
        pair.enable()
        pair.start(programs, images(programs))
        with pytest.raises(StallError):
            pair.cluster.run(stall_cycles=5000)
        queues = SequencerSpec.of(CORE).queues
        sends = queues.index((Opcode.SEND, 0))
        assert pair.statuses() == [[0, 0, 1], [1, 0, 0]]
        oldest = pair.read(0, f"QUEUE{sends}_OLDEST")
        assert 1 <= oldest < 9
        assert pair.read(0, f"QUEUE{sends}_WAIT", "busy") == 1
        assert pair.read(0, f"QUEUE{sends}_WAIT", "empty") == 0
        pair.write(1, "LINK1_CONTROL", 1)
        pair.cluster.run(100_000)
        assert pair.statuses() == [[0, 1, 0], [1, 0, 0]]
        assert pair.read(0, "LINK0_STATUS", "state") == LinkState.PEER_RESET
        assert pair.read(0, "ERROR", "code") == ErrorCode.LINK_DOWN
        assert pair.read(0, "ERROR", "engine") == Engine.SEND
        assert pair.read(0, "ERROR_INDEX") == oldest


def test_queues_show_who_waits(library):
    programs = [
        [
            link(Opcode.RECEIVE, 1, packet(0, 64), signal=(3, 9)),
            link(Opcode.SEND, 1, packet(0, 64), wait=(3, 9)),
            END,
        ],
        [END],
    ]
    with Pair(library, WIRES["good"]) as pair:
        pair.enable()
        pair.start(programs, images(programs))
        with pytest.raises(StallError):
            pair.cluster.run(stall_cycles=3000)
        queues = SequencerSpec.of(CORE).queues
        sends, receives = (queues.index((opcode, 1)) for opcode in LINK_OPCODES)
        wait = REGISTERS["QUEUE0_WAIT"]
        assert pair.read(0, f"QUEUE{receives}_OLDEST") == 0
        assert pair.read(0, f"QUEUE{receives}_WAIT") == wait.field("busy").mask
        assert pair.read(0, f"QUEUE{sends}_HEAD") == 1
        assert pair.read(0, f"QUEUE{sends}_WAIT") == wait.field("semaphores").mask
        assert pair.read(0, f"QUEUE{sends}_MISSING") == 1 << 9 | 1 << 3
        assert pair.read(0, "QUEUE0_WAIT") == wait.field("empty").mask
