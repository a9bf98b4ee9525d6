"""Faults of devices, of links, and of the ways to devices: each is named, none hangs."""

import dataclasses
import errno
import itertools
import os
import re

import memory_faults
import numpy as np
import pytest
from step_cases import every_operator
from test_backends import batch_of, check, pipeline_of, trained
from test_pipeline import SAMPLES
from transport_cases import Faulty, XdmaFiles

from fpgapipe.errors import UserError
from fpgapipe.host.backends.devices import DeviceBackend
from fpgapipe.host.driver.core_driver import ALL_ONES, CoreDriver, DeviceFault
from fpgapipe.host.driver.device_memory import DeviceMemory, MemoryFault
from fpgapipe.host.driver.transport import Limits, TransportError
from fpgapipe.host.transports.modelled import ModelledCluster, ModelledTransport
from fpgapipe.host.transports.simulated import SimulatedTransport, simulated_transports
from fpgapipe.host.transports.xdma import XdmaTransport
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.hw.hls_models.spec.link import LinkState
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.sim_tb.cluster.cluster_library import Reason
from fpgapipe.sim_tb.cluster.core_nodes import CoreCluster
from fpgapipe.sim_tb.native.phy import WireSpec

LIMITS = Limits(link=0.2, stall=0.3)
"""How long the tests wait, seconds."""


@pytest.fixture(scope="module")
def pipeline():
    return pipeline_of(every_operator(SAMPLES), 2, "gpipe")


@pytest.fixture(scope="module")
def core(pipeline):
    return pipeline.parts[0].core


@pytest.fixture(scope="module")
def registers(core):
    return RegisterMap(core)


def transports(pipeline, **faults):
    """Transports to models of two devices, the second one with faults."""
    cores = [part.core for part in pipeline.parts]
    sizes = [part.memory_bytes + 8192 for part in pipeline.parts]
    cluster = ModelledCluster(cores, sizes, pipeline.wiring)
    return [ModelledTransport(cluster, 0), Faulty(ModelledTransport(cluster, 1), **faults)]


def opened(pipeline, **faults):
    parameters = initial_parameters(pipeline.graph, 0)
    ways = transports(pipeline, **faults)
    return DeviceBackend(pipeline, parameters, ways, ["front", "back"], limits=LIMITS)


def step(backend):
    inputs, labels = batch_of(backend.graph)
    return backend.step(inputs, labels, scalar_bits())


def reads_as(registers, name, value):
    """A fault: a register reads as something else."""
    offset = registers.offset(name)
    return {"read": lambda at, found: value if at == offset else found}


def loses(registers, name):
    """A fault: writes to a register are lost."""
    offset = registers.offset(name)
    return {"write": lambda at, value: None if at == offset else value}


# ---------------------------------------------------------------------- is it the right device


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ID", ALL_ONES, "^back: its registers read as 0xffffffff, so no core answers there"),
        ("ID", 0, "^back: its registers read as 0x00000000, so no core answers there"),
        ("ID", 0x12345678, "^back: register ID reads as 0x12345678, not 0x50475046"),
        ("VERSION", 1, "^back: its core has version 1 .* drives version"),
        ("ROWS", 3, r"the bitstream of another core is loaded.*\(ROWS 3, not"),
        ("LINKS", 4, r"the bitstream of another core is loaded.*\(LINKS 4, not"),
        ("CONFIGURATION", 0xABC, "configuration 00000abc where the build has [0-9a-f]{8}; load"),
    ],
)
def test_another_device(name, value, message, pipeline, registers):
    with pytest.raises(DeviceFault, match=message):
        opened(pipeline, **reads_as(registers, name, value))


def test_a_program_that_a_dead_host_left(pipeline):
    """It has sent packets, and waits for the answers for ever; the next host must end it."""
    cores = [part.core for part in pipeline.parts]
    sizes = [part.memory_bytes for part in pipeline.parts]
    parameters = initial_parameters(pipeline.graph, 0)

    def opened(cluster):
        for number, device in enumerate(cluster.devices):
            device.model.memory[:] = number
        ways = [ModelledTransport(cluster, number) for number in range(2)]
        return DeviceBackend(pipeline, parameters, ways, limits=LIMITS)

    cluster = ModelledCluster(cores, sizes, pipeline.wiring)
    driver = opened(cluster).devices.drivers[0]
    driver.prepare(pipeline.parts[0].entry, [])
    driver.start()
    assert not driver.transport.wait(driver.has_ended, 0.1)
    left = trained(opened(cluster), pipeline.graph)
    check(left, trained(opened(ModelledCluster(cores, sizes, pipeline.wiring)), pipeline.graph))


def test_all_transports_are_closed_after_a_fault(pipeline, registers):
    ways = transports(pipeline, **reads_as(registers, "ID", 0))
    with pytest.raises(DeviceFault):
        DeviceBackend(pipeline, initial_parameters(pipeline.graph, 0), ways)
    assert ways[1].closed == 1


# ---------------------------------------------------------------------- registers and memory


def driver_of(core, size=1 << 16, **faults):
    cluster = ModelledCluster([core], [size + 4096], [])
    return CoreDriver("card", core, Faulty(ModelledTransport(cluster, 0), **faults))


def test_a_good_device_passes_all_checks(core):
    driver = driver_of(core)
    driver.check_identity()
    driver.check_registers()
    places, writes = driver.check_memory(driver.transport.allocate(1 << 16), 1 << 16)
    assert places == 12
    assert writes >= 20_000
    assert driver.read_pair("MEMORY_LIMIT") == 0


@pytest.mark.parametrize(
    "fault",
    [
        {"write": lambda offset, value: value & ~(1 << 7)},
        {"write": lambda offset, value: value | 1 << 30},
        {"write": lambda offset, value: None},
        {"read": lambda offset, value: value ^ 1 << 9},
    ],
    ids=["stuck at 0", "stuck at 1", "lost", "changed on its way back"],
)
def test_registers_that_lose_data(fault, core):
    with pytest.raises(DeviceFault, match=r"^card: register \w+ reads as 0x\w+ after 0x\w+ was wr"):
        driver_of(core, **fault).check_registers()


def test_a_register_that_answers_for_another(core, registers):
    one, other = registers.offset("PROGRAM_HI"), registers.offset("MEMORY_LIMIT_LO")
    driver = driver_of(core)
    inner = driver.transport.inner

    def read(offset, value):
        return inner.read_register(other) if offset == one else value

    driver.transport.on_read = read
    with pytest.raises(DeviceFault, match=r"^card: register PROGRAM_HI reads as"):
        driver.check_registers()


def memory_fault(driver):
    with pytest.raises(DeviceFault) as error:
        driver.check_memory(driver.transport.allocate(1 << 16), 1 << 16)
    return str(error.value)


def test_memory_whose_address_line_does_nothing(core):
    driver = driver_of(core)
    inner = driver.transport.inner

    def load(address, data):
        return inner.read(address & ~(1 << 12), data.size)

    driver.transport.on_load = load
    assert "reads as what was written to 0x0: an address line does nothing" in memory_fault(driver)


def test_memory_with_a_bit_that_is_stuck(core):
    driver = driver_of(core, store=lambda address, data: data | 1)
    assert "reads as something else than what was written" in memory_fault(driver)


@pytest.mark.parametrize(
    "name", sorted({*memory_faults.WRITES} - {"write doubled", "writes swapped"})
)
@pytest.mark.parametrize("size", [64, 4096, 1 << 21])
def test_one_lost_write_of_ten_thousand_is_found(core, name, size):
    cluster = ModelledCluster([core], [size + 4096], [])
    count = [0]
    way = memory_faults.WrongMemory(
        ModelledTransport(cluster, 0), memory_faults.WRITES[name], 10_000, count
    )
    with pytest.raises(DeviceFault, match=r"^card: .* read as something else than what was writ"):
        CoreDriver("card", core, way).check_memory(way.allocate(size), size)


def memory_of(core, name, every):
    cluster = ModelledCluster([core], [1 << 16], [])
    way = memory_faults.WrongMemory(
        ModelledTransport(cluster, 0),
        (memory_faults.WRITES | memory_faults.READS)[name],
        every,
        [0],
    )
    return DeviceMemory(way, way.allocate(1 << 15), 1 << 15, "card")


@pytest.mark.parametrize("name", [*memory_faults.WRITES, *memory_faults.READS])
@pytest.mark.parametrize("every", [0, 3, 20])
def test_transfers_that_go_wrong_are_done_again(core, name, every, caplog):
    memory = memory_of(core, name, every)
    rng = np.random.default_rng(0)
    memory._transport.inner.write(memory.base, rng.integers(1, 256, 1 << 15, dtype=np.uint8))
    for number in range(60):
        begin, size = rng.integers(0, 1 << 14, 2)
        data = rng.integers(0, 256, int(size) + 64, dtype=np.uint8)
        where = slice(int(begin), int(begin) + data.size)
        memory[where] = data
        assert np.array_equal(memory[where], data), number
    quiet = "write doubled", "stale read"  # what was read before is right, mostly
    assert ("of its memory from" in caplog.text) or name in quiet


@pytest.mark.parametrize("name", [*memory_faults.WRITES, *memory_faults.READS])
def test_memory_that_is_always_wrong_is_named(core, name):
    memory = memory_of(core, name, 1)
    data = np.random.default_rng(0).integers(1, 256, 6000, dtype=np.uint8)
    if name in ("write doubled", "stale read"):  # the second read has what the first should have
        for each in (data, data[::-1]):
            memory[64:6064] = each
            assert np.array_equal(memory[64:6064], each)
        return
    with pytest.raises(MemoryFault, match=r"^card: .* bytes of its memory from 0x\w+ on read as"):
        memory[64:6064] = data


@pytest.mark.parametrize(
    ("periods", "cycles"), [(None, 1000), ((0.25, 1.0), 400), ((3.0, 1.0), 3000)]
)
def test_cycles_of_unequal_clocks_are_counted_at_one(periods, cycles, pipeline, monkeypatch):
    """The device that takes longest is not always the one that takes most cycles."""
    parameters = initial_parameters(pipeline.graph, 0)
    ways = transports(pipeline)
    with DeviceBackend(pipeline, parameters, ways, limits=LIMITS, periods=periods) as backend:
        for driver, own in zip(backend.devices.drivers, (1000, 400), strict=True):
            counts = itertools.chain([7], itertools.repeat(7 + own))
            monkeypatch.setattr(driver, "read_pair", lambda name, counts=counts: next(counts))
        assert step(backend).cycles == cycles


@pytest.mark.parametrize("what", ["program", "weights"])
def test_what_a_write_to_another_place_destroys_is_found(pipeline, what):
    """The place that was meant is written again; what was at the other one is lost."""
    ways = transports(pipeline)
    parameters = initial_parameters(pipeline.graph, 0)
    with DeviceBackend(pipeline, parameters, ways, ["front", "back"], limits=LIMITS) as backend:
        step(backend)  # at first, everything is read
        driver = backend.devices.drivers[0]
        known = backend.state()
        place = driver.memory.program[0]
        if what == "weights":
            bits = np.asarray(driver.memory).tobytes()
            values = [each.tobytes()[:16] for each in known.values() if each.size >= 4]
            place = driver.memory.base + next(
                bits.index(each) for each in values if bits.count(each) == 1
            )
        write = driver.transport.write

        def elsewhere(address, data):
            driver.transport.write = write
            write(place, data[:16] ^ 0xA5)

        driver.transport.write = elsewhere
        inputs, labels = batch_of(backend.graph)
        inputs = {name: values[::-1].copy() for name, values in inputs.items()}
        with pytest.raises(MemoryFault, match=r"^front: .* changed while other places were writt"):
            backend.step(inputs, labels, scalar_bits())
        driver.transport.write = None  # what is there already is not written
        driver.memory[:64] = driver.memory[:64]


def test_weights_are_not_read_through_a_bit_that_is_stuck(pipeline):
    """Two reads are alike, and only what was written before shows the fault."""
    cores = [part.core for part in pipeline.parts]
    cluster = ModelledCluster(
        cores, [part.memory_bytes for part in pipeline.parts], pipeline.wiring
    )
    ways = [Faulty(ModelledTransport(cluster, number)) for number in range(2)]
    parameters = initial_parameters(pipeline.graph, 0)
    with DeviceBackend(pipeline, parameters, ways, ["front", "back"]) as backend:
        assert set(backend.state()) >= set(parameters)
        ways[1].on_load = lambda address, data: data | np.uint8(0x10)
        for read in (backend.state, backend.parameters):
            with pytest.raises(
                MemoryFault, match=r"^back: .* as something else than what was writ"
            ):
                read()


def test_a_device_with_too_little_memory(pipeline):
    cores = [part.core for part in pipeline.parts]
    cluster = ModelledCluster(cores, [1 << 16, 1 << 16], pipeline.wiring)
    ways = [ModelledTransport(cluster, number) for number in range(2)]
    with pytest.raises(TransportError, match=r"has 65,536 bytes of memory left, and [\d,]+ are ne"):
        DeviceBackend(pipeline, initial_parameters(pipeline.graph, 0), ways)


def test_memory_at_an_odd_place(pipeline):
    with pytest.raises(DeviceFault, match=r"^back: memory must begin at a multiple of 4096"):
        opened(pipeline, allocated=lambda address: address + 64)


# ---------------------------------------------------------------------- links


def test_a_link_that_hears_nothing(pipeline, registers):
    with pytest.raises(DeviceFault) as error:
        opened(pipeline, **loses(registers, "LINK0_ENABLE"))
    assert str(error.value).splitlines() == [
        "the link between front and back did not come up in 0.2 s",
        "link 0 of front is HELLO: it hears nothing from the other end: look at the cable, at the "
        "reference clock of the transceivers, and at whether the other device is programmed",
        "link 0 of back is OFF: it was not turned on",
    ]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (LinkState.MISMATCH, "link 0 of back is MISMATCH: both ends must have the same frames"),
        (LinkState.PEER_RESET, "link 0 of back is PEER_RESET: the other end was reset; reset both"),
        (7, "^back: link 0 has the state 7, which there is not"),
        (1 << 20, "^back: register LINK0_STATUS reads as 0x00100000, which no core answers"),
    ],
)
def test_a_link_in_another_state(state, message, pipeline, registers):
    with pytest.raises(DeviceFault, match=message):
        opened(pipeline, **reads_as(registers, "LINK0_STATUS", int(state)))


# ---------------------------------------------------------------------- programs


def test_a_device_that_goes_away_while_it_runs(pipeline, registers):
    backend = opened(pipeline)
    step(backend)
    way = backend.devices.drivers[1].transport
    way.on_read = lambda offset, value: ALL_ONES
    with pytest.raises(DeviceFault, match=r"^back: register STATUS reads as 0xffffffff, which no"):
        step(backend)


def test_a_start_that_gets_lost(pipeline, registers):
    start = registers["CONTROL"].field("start").mask
    control = registers.offset("CONTROL")
    backend = opened(pipeline)
    way = backend.devices.drivers[1].transport
    way.on_write = lambda at, value: None if (at, value) == (control, start) else value
    with pytest.raises(DeviceFault, match=r"^back: no program runs and none has ended"):
        step(backend)


def test_a_program_that_is_damaged(pipeline):
    backend = opened(pipeline)
    driver = backend.devices.drivers[1]
    driver.memory.settle()  # it is damaged after the check
    at, _ = driver.memory.program
    driver.transport.write(at, np.zeros(64, np.uint8))
    with pytest.raises(DeviceFault) as error:
        step(backend)
    lines = str(error.value).splitlines()
    assert lines[0] == "back: the core stopped at instruction 0: BAD_OPCODE of SEQUENCER"
    assert "front:" in lines
    assert lines.index("back:") == lines.index(f"  {lines[0].removeprefix('back: ')}") - 2


def test_an_error_that_there_is_not(pipeline, registers):
    backend = opened(pipeline)
    driver = backend.devices.drivers[1]
    driver.memory.settle()  # it is damaged after the check
    driver.transport.write(driver.memory.program[0], np.zeros(64, np.uint8))
    error = registers.offset("ERROR")
    driver.transport.on_read = lambda at, value: ALL_ONES if at == error else value
    with pytest.raises(DeviceFault, match="instruction 0: error 255, which is none, of RECEIVE 3"):
        step(backend)


@pytest.mark.parametrize("name", ["MEMORY_LIMIT_LO", "PROGRAM_LO"])
def test_a_register_that_is_lost_before_the_start(name, pipeline, registers):
    with pytest.raises(DeviceFault, match=r"^back: the core stopped at instruction \d+: \w+ of"):
        step(opened(pipeline, **loses(registers, name)))


def test_a_cable_that_is_pulled_while_devices_run(pipeline):
    """In RTL: the link waits for the other end for ever, and stays up; it lost frames before."""
    cores = [part.core for part in pipeline.parts]
    sizes = [part.memory_bytes + 8192 for part in pipeline.parts]
    phy_bytes = cores[0].links[0].phy_bytes
    wire = WireSpec(phy_bytes, 16, 20, drop_rate=0.3, down=((20_000, 1 << 40),))
    wires = [wire] * len(pipeline.wiring)
    cluster = CoreCluster(cores, sizes, [MemorySpec(64, 20)] * 2, pipeline.wiring, wires)
    ways = simulated_transports(cluster)
    parameters = initial_parameters(pipeline.graph, 0)
    backend = DeviceBackend(pipeline, parameters, ways, ["front", "back"])
    with pytest.raises(DeviceFault) as error:
        step(backend)
    first, second, *states = str(error.value).splitlines()
    assert first == "no device has made progress for 200,000 cycles"
    assert re.fullmatch(
        r"frames from front \(link 0\) that have not arrived at back: \d; look at the cable.*",
        second,
    )
    assert any(
        re.search(r"link 0: UP, .*; frames that were sent again: [1-9]", line) for line in states
    )


def test_the_time_of_this_machine_decides_no_cycle_in_which_a_register_is_read():
    """A slice of the simulation that is over by the clock on the wall is followed by no access."""

    class Slices:
        cycle, moved = 900, 300
        reasons = iter((Reason.TIME, Reason.TIME, Reason.STALLED, Reason.INTERRUPTS))

        def begin(self, stall_cycles):
            assert stall_cycles == 200_000

        def go(self, seconds):
            return next(self.reasons)

    way = SimulatedTransport(Slices(), 0, 4096)
    looks = []
    found = [way.wait(lambda: looks.append(1) or len(looks) > 1, 0.1) for _ in range(4)]
    assert found == [False, False, False, True]
    assert len(looks) == 2
    assert (way.now(), way.progressed([0x10])) == (900, 300)


def test_devices_that_wait_for_ever(pipeline):
    """The second device runs nothing, so the first one waits for its gradients."""
    backend = opened(pipeline)
    driver = backend.devices.drivers[1]
    driver.memory.settle()  # it is damaged after the check
    at, program = driver.memory.program
    driver.transport.write(at, np.frombuffer(program[-64:], np.uint8))
    with pytest.raises(DeviceFault, match=r"^no device has made progress for 0.3 s\nfront:"):
        step(backend)


def test_after_a_fault_the_devices_go_on_from_a_state(pipeline, registers):
    """The remains of a broken step in links and memory change nothing after the state is set."""
    backend, other = opened(pipeline), opened(pipeline)
    state = backend.state()
    backend.devices.drivers[1].memory.settle()  # it is damaged after the check
    at, program = backend.devices.drivers[1].memory.program
    backend.devices.drivers[1].transport.write(at, np.zeros(64, np.uint8))
    with pytest.raises(DeviceFault):
        step(backend)
    backend.devices.drivers[1].transport.write(at, np.frombuffer(program, np.uint8))
    backend.devices.links_up()
    backend.set_state(state)
    assert step(backend) == step(other)
    for one, two in zip(backend.memories, other.memories, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(two))


def test_ctrl_c_ends_the_programs(pipeline):
    backend = opened(pipeline)
    ended = []
    for driver in backend.devices.drivers:
        driver.abort = lambda name=driver.name: ended.append(name)

    def interrupt(*_):
        raise KeyboardInterrupt

    backend.devices.drivers[0].transport.wait = interrupt
    with pytest.raises(KeyboardInterrupt):
        step(backend)
    assert ended == ["front", "back"]


def test_one_device_that_is_gone_does_not_hide_the_others(pipeline):
    backend = opened(pipeline)
    backend.devices.drivers[0].transport.read_register = lambda offset: 1 / 0
    text = backend.devices.states()
    assert "front:\n  cannot be read: division by zero\nback:\n  no program runs" in text
    backend.devices.abort()


# ---------------------------------------------------------------------- the files of XDMA


def xdma(core, **options):
    cluster = ModelledCluster([core], [1 << 16], [])
    files = XdmaFiles(ModelledTransport(cluster, 0), **options)
    return XdmaTransport(0, memory_bytes=1 << 16, files=files), files


def test_a_card_that_is_not_there(core):
    _, files = xdma(core)
    with pytest.raises(TransportError, match="/dev/xdma3_user cannot be opened: No such file or d"):
        XdmaTransport(3, memory_bytes=1 << 16, files=files)


def test_a_file_that_may_not_be_opened(core):
    _, files = xdma(core)
    opens = files.open

    def refuses(path, flags, /):
        if path.endswith("c2h_0"):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return opens(path, flags)

    files.open, files.opened = refuses, {}
    with pytest.raises(TransportError, match="xdma0_c2h_0 cannot be opened: Permission denied"):
        XdmaTransport(0, memory_bytes=1 << 16, files=files)
    assert {name for name, _ in files.opened.values()} == {"closed"}


def test_a_transfer_that_breaks_off(core):
    way, files = xdma(core, most_bytes=1000)
    reads = files.pread

    def breaks(file, size, offset, /):
        if offset >= 3000:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return reads(file, size, offset)

    files.pread = breaks
    with pytest.raises(
        TransportError, match=r"xdma0_c2h_0: read of 8,000 bytes at 0x0 failed after 3,000 bytes"
    ):
        way.read(0, 8000)


def test_a_transfer_of_nothing(core):
    way, files = xdma(core)
    files.pread = lambda *_: b""
    with pytest.raises(TransportError, match="failed after 0 bytes: nothing more came"):
        way.read(0, 64)
    files.pwrite = lambda *_: 0
    with pytest.raises(TransportError, match="failed after 0 bytes: nothing more went out"):
        way.write(0, np.zeros(64, np.uint8))


def test_transfers_in_small_pieces(core):
    way, _ = xdma(core, most_bytes=1000)
    data = np.random.default_rng(0).integers(0, 256, 12_345, dtype=np.uint8)
    way.write(77, data)
    np.testing.assert_array_equal(way.read(77, data.size), data)


@pytest.mark.parametrize("interrupts", [True, False])
def test_an_interrupt_that_never_comes_costs_time_only(interrupts, core):
    way, files = xdma(core, interrupts=interrupts)
    looks = iter([False, False, True])
    assert way.wait(lambda: next(looks), 10)
    assert files.waits == 2
    assert not way.wait(lambda: False, 0.05)


def test_the_fake_keeps_the_drivers_rules(core):
    way, files = xdma(core)
    with pytest.raises(TransportError, match="Protocol error"):
        way.read_register(2)
    file = next(each for each, (name, _) in files.opened.items() if name == "c2h_0")
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.pwrite(file, b"1234", 0)


def test_errors_of_the_driver_are_the_users():
    assert issubclass(DeviceFault, UserError)
    assert issubclass(TransportError, UserError)


def test_a_core_without_vector_engine_has_no_scalars(core):
    bare = dataclasses.replace(core, vector=None)
    driver = driver_of(bare)
    driver.load(np.zeros(4096, np.uint8), 0, [])
    driver.prepare(0, [])
    assert driver.read_pair("MEMORY_LIMIT") == 4096
