"""Cores with two memory ports simulated natively: bytes, cycles, statistics, errors and states."""

from dataclasses import replace

import numpy as np
import pytest
from device_programs import layer

from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec, predict
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.model.core_protocol import DeviceStopped
from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec
from fpgapipe.lowering.products.conv import ConvSpec
from fpgapipe.lowering.products.conv_parts import Tiling
from fpgapipe.sim_tb.cluster.cluster_job import ClusterJob, JobNode, run_cluster_in_cocotb
from fpgapipe.sim_tb.native.core_device import build_device, run_program
from fpgapipe.sim_tb.native.native import NativeDevice

ONE = CoreSpec(4, 4, acc_depth=64, scratchpad=ScratchpadSpec(2, 1 << 18))
TWO = replace(ONE, memory_ports=2)
RATE = 44
"""Bytes a cycle of a port: less than the bus takes."""

pytestmark = pytest.mark.sim


@pytest.fixture(scope="module")
def program():
    conv = ConvSpec(cin=33, cout=64, kernel=(2, 2), h=9, w=9, batch=2)
    cut = Tiling(32, 2, 64)
    return layer(ONE, "forward", 1, conv=conv, cut=cut, most=1 << 24)


@pytest.fixture(scope="module")
def image(program):
    code = encode(program.instructions)
    size = -(-(program.memory.size + len(code)) // 4096) * 4096
    found = np.zeros(size, np.uint8)
    found[: program.memory.size] = program.memory
    found[program.memory.size :][: len(code)] = np.frombuffer(code, np.uint8)
    return found


def device_of(core, image, **options):
    device = NativeDevice(
        build_device(core)[0],
        memory_bytes=image.size,
        bytes_per_cycle=RATE * core.memory_ports,
        latency_cycles=30,
        **options,
    )
    device.memory[:] = image
    return device


def ran(device, program, core):
    return run_program(device, RegisterMap(core), program.memory.size, device.memory.size)


@pytest.mark.parametrize("pause", [0, 0.4])
def test_bytes_are_those_of_the_model(program, image, pause):
    expected = image.copy()
    CoreModel(TWO, expected).run(program.instructions)
    found = {}
    for core in (ONE, TWO):
        with device_of(core, image, pause=pause, seed=7) as device:
            cycles = ran(device, program, core)
            np.testing.assert_array_equal(device.memory, expected)
            found[core.memory_ports] = cycles, device.statistics
    (_, one), (_, two) = found[1], found[2]
    assert (one.read_bursts, one.read_beats) == (two.read_bursts, two.read_beats)
    assert (one.write_bursts, one.write_beats) == (two.write_bursts, two.write_beats)
    assert two.reads_in_flight == two.writes_in_flight == 0
    if not pause:
        memory = MemorySpec(2 * RATE, 30)
        predicted = predict(program.instructions, TWO, memory).cycles
        assert found[2][0] < found[1][0]
        assert predicted == pytest.approx(found[2][0], rel=0.03)


def test_errors_of_either_port_stop_the_core(program, image):
    loads = [each.body["memory"] for each in program.instructions if each.opcode.name == "LOAD"]
    for address in {loads[0], loads[-1]}:
        with device_of(TWO, image) as device:
            device.inject_error(address, address + 1, "SLVERR")
            with pytest.raises(DeviceStopped) as caught:
                ran(device, program, TWO)
            assert "AXI_READ" in str(caught.value)
            device.clear_errors()
            ran(device, program, TWO)


def test_a_saved_state_goes_on_to_the_same_bits(program, image):
    registers = RegisterMap(TWO)

    options = {"pause": 0.3, "seed": 5}

    def begun():
        device = device_of(TWO, image, **options)
        for name, value in (("PROGRAM", program.memory.size), ("MEMORY_LIMIT", image.size)):
            device.write_register(registers.offset(f"{name}_LO"), value)
        device.write_register(registers["IRQ_ENABLE"].offset, 0b1100)
        device.write_register(registers["CONTROL"].offset, 1)
        return device

    whole, one, other = begun(), begun(), device_of(TWO, image, **options)
    whole.run(100_000)
    for cycles in (700, 900):
        one.run(cycles, until_irq=False)
        state = one.state()
        other.set_state(state)
        other.memory[:] = one.memory
        assert other.state() == state
    other.run(100_000)
    assert other.statistics == whole.statistics
    np.testing.assert_array_equal(other.memory, whole.memory)


def test_cocotb_takes_one_port(image, tmp_path):
    from fpgapipe.hw.rtl.core_verilog import device_verilog

    job = ClusterJob([JobNode(device_verilog(TWO), image)], [], [])
    with pytest.raises(NotImplementedError, match="device 0 has two memory ports"):
        run_cluster_in_cocotb(job, tmp_path)
