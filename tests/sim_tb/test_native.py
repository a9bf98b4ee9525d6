"""The simulator without cocotb: values, cycles, and what it says of designs that break rules."""

import _thread
import re
import struct
import threading
import time
from fractions import Fraction

import native_designs as designs
import numpy as np
import pytest

from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.native import native_library, waves
from fpgapipe.sim_tb.native.native import (
    DeviceError,
    NativeDevice,
    StallError,
    build_native,
    native_speed,
)
from fpgapipe.sim_tb.native.waves import WaveFormat, fst_fault, possible_format

TARGET = 1 << 19
STOPS = """\
module top(input clk, input rst, input [7:0] i);
  reg [7:0] count;
  always @(posedge clk) begin
    count <= rst ? 8'd0 : count + 8'd1;
    if (!rst && count == 8'd20) $STOP;
  end
endmodule
"""

pytestmark = pytest.mark.sim


@pytest.fixture(scope="module")
def libraries():
    """One library for each width of the bus, in bits, made when it is first asked for."""
    made = {}

    def library(bits):
        if bits not in made:
            made[bits] = build_native(verilog_of(designs.CopyEngine(bits // 8)))
        return made[bits]

    return library


@pytest.fixture
def device(libraries):
    """Make a device with a mebibyte of random bytes."""
    devices = []

    def make(bits=512, memory_bytes=1 << 20, **options):
        devices.append(NativeDevice(libraries(bits), memory_bytes=memory_bytes, **options))
        rng = np.random.default_rng(bits)
        devices[-1].memory[:TARGET] = rng.integers(0, 256, TARGET, dtype=np.uint8)
        return devices[-1]

    yield make
    for one in devices:
        one.close()


def program(device, bursts=4, beats=8, *, source=0, target=TARGET, strobes=2**64 - 1, fault=None):
    for address, value in (
        (designs.SOURCE, source),
        (designs.TARGET, target),
        (designs.STROBES, strobes),
    ):
        device.write_register(address, value % 2**32)
        device.write_register(address + 4, value >> 32)
    device.write_register(designs.BURSTS, bursts)
    device.write_register(designs.BEATS, beats)
    device.write_register(designs.FAULT, 1 << designs.FAULTS.index(fault) if fault else 0)


def copy(device, *args, control=designs.START, max_cycles=100_000, **kwargs):
    """Program and start the engine, and run it to its end; what `run` returns."""
    program(device, *args, **kwargs)
    device.write_register(designs.CONTROL, control)
    return device.run(max_cycles)


@pytest.mark.parametrize("bits", [32, 128, 512])
@pytest.mark.parametrize("pause", [0, 0.5])
def test_copies(device, bits, pause):
    one = device(bits, pause=pause, outstanding=3)
    num_bytes = 10 * 8 * bits // 8
    copy(one, bursts=10, beats=8, source=4096)
    assert one.bus_bytes == bits // 8
    np.testing.assert_array_equal(one.memory[TARGET:][:num_bytes], one.memory[4096:][:num_bytes])
    assert not one.memory[TARGET + num_bytes :].any()
    statistics = one.statistics
    assert (statistics.read_bursts, statistics.write_bursts) == (10, 10)
    assert (statistics.read_beats, statistics.write_beats) == (80, 80)
    assert (statistics.reads_in_flight, statistics.writes_in_flight) == (0, 0)
    assert one.read_register(designs.STATUS) == 0


def test_strobes_select_bytes(device):
    one = device(128)
    one.memory[TARGET:] = 7
    copy(one, bursts=1, beats=2, strobes=0b1000_0000_0110_0001)
    expected = np.full(32, 7, np.uint8)
    selected = np.array([0, 5, 6, 15, 16, 21, 22, 31])
    expected[selected] = one.memory[selected]
    np.testing.assert_array_equal(one.memory[TARGET:][:32], expected)


def test_burst_may_begin_within_a_beat(device):
    one = device(128)
    copy(one, bursts=1, beats=1, source=4, target=TARGET + 4, strobes=0xFFF0)
    np.testing.assert_array_equal(one.memory[TARGET:][:16], [0] * 4 + [*one.memory[4:16]])
    message = "m_axi_wstrb selects bytes before the burst's address"
    with pytest.raises(DeviceError, match=rf"^cycle \d+: {message}$"):
        copy(one, bursts=1, beats=1, source=4, target=TARGET + 4, strobes=0xFFF8)


@pytest.mark.parametrize(("read", "write"), [(1, 1), (2, 9), (30, 5)])
def test_latency(device, read, write):
    """An address taken in cycle c has data in cycle c + read, and responses follow after write."""
    one = device(latency_cycles=read, write_latency_cycles=write)
    program(one, bursts=1, beats=1)
    one.write_register(designs.CONTROL, designs.START)
    while not one.statistics.read_bursts:
        one.run(1, until_irq=False)
    taken = one.cycle - 1
    one.run(100)
    statistics = one.statistics
    # The beat pays for both directions, so it is written a cycle after it is shown.
    assert statistics.read_wait_cycles == 1
    assert statistics.first_read_cycle == statistics.first_write_cycle == taken + read + 1
    assert statistics.active_cycle == statistics.last_write_cycle + write


def test_run_stops_in_the_cycle_of_the_interrupt(device):
    one, other = device(), device()
    cycles = copy(one)
    assert one.statistics.irq
    assert one.run() == 0
    program(other)
    other.write_register(designs.CONTROL, designs.START)
    for _ in range(cycles):
        assert not other.statistics.irq
        assert other.run(1, until_irq=False) == 1
    assert other.statistics == one.statistics


@pytest.mark.parametrize(
    ("bits", "rate", "read_cycles", "copy_cycles"),
    [
        (512, 64, 256, 512),  # a beat a cycle, of either direction
        (512, 128, 256, 256),  # one of each
        # This engine does not always want both, and then some of what it could have is lost.
        (512, 96, 256, 384),
        (512, Fraction(64, 3), 768, 1536),
        (128, 64, 256, 256),  # the bus is the limit
        (128, 20, 256, 426),
        (32, 64, 256, 256),
    ],
    ids=str,
)
def test_bandwidth(device, bits, rate, read_cycles, copy_cycles):
    """Bursts follow each other without a gap, and reads and writes share the bytes of a cycle."""
    one = device(bits, bytes_per_cycle=rate, latency_cycles=20)
    beats = 4096 * 8 // bits
    bursts = 256 // beats if beats <= 256 else 1
    beats = min(beats, 256)
    for control, expected in (
        (designs.START | designs.READ_ONLY, read_cycles),
        (designs.START, copy_cycles),
    ):
        one.reset()
        copy(one, bursts, beats, control=control)
        statistics = one.statistics
        assert statistics.read_beats == 256
        # The first beat and the last may overdraw.
        assert statistics.last_read_cycle - statistics.first_read_cycle + 1 == pytest.approx(
            expected, abs=max(2, 2 * bits / 8 / float(rate))
        )


def test_outstanding_bursts(device):
    """While `n` bursts wait for their data no other is taken; each frees its place at its end."""
    one = device(outstanding=4, latency_cycles=50)
    program(one, bursts=9, beats=1)
    one.write_register(designs.CONTROL, designs.START | designs.READ_ONLY)
    one.run(30, until_irq=False)
    assert one.statistics.read_bursts == one.statistics.reads_in_flight == 4
    one.run(1000)
    assert one.statistics.read_bursts == 9


@pytest.mark.parametrize("beats", [1, 4])
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("both", [False, True], ids=["reads", "copies"])
def test_banks_hold_bursts_up(device, beats, count, both):
    """A burst begins when its bank has been free for so long; reads and writes share the banks."""
    size, busy, bursts = 256, 20, 12
    one = device(latency_cycles=9, bytes_per_cycle=128, banks=(count, size, busy))
    # Bursts of 4 beats go to one bank after the other; 4 bursts of a beat share one.
    copy(one, bursts, beats, control=designs.START | (0 if both else designs.READ_ONLY))
    free, end = {}, 0
    begins = []
    for burst in range(bursts):
        for kind in ("read", "write") if both else ("read",):
            address = burst * beats * 64 + (TARGET if kind == "write" else 0)
            bank = address // size % count
            begins.append(max(end, free.get(bank, 0)))
            free[bank] = begins[-1] + busy
            # A copy's beat is taken in the cycle in which it is shown, or waits for its bank.
            end = begins[-1] + (beats if kind == "write" or not both else 0)
    statistics = one.statistics
    assert statistics.last_read_cycle - statistics.first_read_cycle == begins[-1] + beats - 1 - (
        begins[1] if both else 0
    )


def test_banks_that_are_never_busy_change_nothing(device):
    one, other = device(pause=0.2, seed=3), device(pause=0.2, seed=3, banks=(7, 1, 1))
    assert copy(one, bursts=30) == copy(other, bursts=30)
    assert one.statistics == other.statistics


def test_pauses_follow_the_seed(device):
    cycles = {seed: copy(device(pause=0.5, seed=seed), bursts=20) for seed in (1, 2, 3)}
    assert len(set(cycles.values())) > 1
    one = device(pause=0.5, seed=2)
    assert copy(one, bursts=20) == cycles[2]
    one.reset()
    assert copy(one, bursts=20) == cycles[2]


def test_errors_of_the_memory(device):
    one = device()
    one.inject_error(5 * 64 + 63, 5 * 64 + 64, writes=False)
    copy(one, bursts=1, beats=8)
    assert one.read_register(designs.STATUS) == 2
    assert not one.memory[TARGET + 5 * 64 :][:64].any()  # the beat gave zeros
    one.clear_errors()
    one.inject_error(TARGET + 64, TARGET + 65, "DECERR", reads=False)
    before = one.memory[TARGET:].copy()
    copy(one, bursts=1, beats=2, source=4096)
    assert one.read_register(designs.STATUS) == 3
    np.testing.assert_array_equal(one.memory[TARGET:][:64], one.memory[4096:][:64])
    np.testing.assert_array_equal(one.memory[TARGET + 64 :], before[64:])
    one.clear_errors()
    copy(one, bursts=1)
    assert one.read_register(designs.STATUS) == 0


def test_memory_ends(device):
    one = device()
    copy(one, bursts=2, beats=1, source=(1 << 20) - 64, target=1 << 40)
    assert one.read_register(designs.STATUS) == 3


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("address", "m_axi_araddr, len, size, burst or id changed while valid waited for ready"),
        ("valid", "m_axi_arvalid fell before ready rose"),
        ("data", "m_axi_wdata, wstrb or wlast changed while wvalid waited for wready"),
        ("last", "m_axi_wlast is low in the last beat of a burst"),
        ("early last", "m_axi_wlast is high before the last beat of a burst"),
        ("size", "m_axi_arsize must be that of the bus, 64 bytes, not 1"),
        ("fixed", "m_axi_arburst must be 1 (INCR), not 0"),
    ],
)
def test_broken_rules_are_named(device, fault, message):
    one = device(outstanding=1)
    with pytest.raises(DeviceError, match=rf"^cycle \d+: {re.escape(message)}$") as caught:
        copy(one, fault=fault)
    with pytest.raises(DeviceError, match=f"^{re.escape(str(caught.value))}$"):
        one.run()
    one.reset()
    copy(one)


def test_burst_must_not_cross_a_page(device):
    one = device()
    copy(one, bursts=1, beats=8, source=4096 - 8 * 64)
    message = "m_axi_araddr 0xe40: a burst of 512 bytes crosses a boundary of 4 KiB"
    with pytest.raises(DeviceError, match=rf"^cycle \d+: {message}$"):
        copy(one, bursts=1, beats=8, source=4096 - 7 * 64)


def test_stall_is_named(device):
    one = device(latency_cycles=10)
    with pytest.raises(StallError, match=r"^cycle \d+: no interrupt within 500 cycles; ") as caught:
        copy(one, fault="mute", max_cycles=500)
    active = one.statistics.active_cycle
    assert str(caught.value).endswith(
        f"the memory bus was last active at cycle {active}, with 0 reads and 0 writes in flight now"
    )
    with pytest.raises(StallError, match=r"no interrupt and an idle memory bus for 1000 cycles"):
        one.run(stall_cycles=1000)
    one.reset()
    message = "cycle 70: no interrupt within 70 cycles; the memory bus was never active"
    with pytest.raises(StallError, match=f"^{message}$"):
        one.run(70)


def test_registers(device):
    one = device()
    one.write_register(designs.SOURCE, 0xFFFF_FFFF)
    assert one.read_register(designs.SOURCE) == 0xFFFF_FFFF
    with pytest.raises(DeviceError, match=r"^the write of register 0x800 got SLVERR$"):
        one.write_register(0x800, 1)
    with pytest.raises(DeviceError, match=r"^the read of register 0xffc got SLVERR$"):
        one.read_register(0xFFC)
    program(one, fault="deaf")
    message = "the design did not answer a register access within 50 cycles"
    with pytest.raises(DeviceError, match=rf"^cycle \d+: {message}$"):
        one.read_register(0, max_cycles=50)


def test_two_threads_give_what_one_gives(device):
    def work(one):
        copy(one, bursts=64, beats=32)
        results.append((one.statistics, one.memory.tobytes()))

    results = []
    for _ in range(2):
        work(device(pause=0.3, seed=5))
    devices = [device(pause=0.3, seed=5) for _ in range(2)]
    threads = [threading.Thread(target=work, args=(one,)) for one in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(result == results[0] for result in results)


def test_other_threads_run_meanwhile(device):
    one = device()
    thread = threading.Thread(target=one.run, args=(3_000_000,), kwargs={"until_irq": False})
    thread.start()
    turns = 0
    while thread.is_alive():
        turns += 1
        time.sleep(0.001)
    assert turns > 10
    assert one.cycle == 3_000_000


def test_untouched_memory_takes_no_room(device):
    one = device(memory_bytes=4 << 30)
    far = (4 << 30) - 4096
    copy(one, bursts=1, beats=8, target=far)
    np.testing.assert_array_equal(one.memory[far:][:512], one.memory[:512])
    memory = one.memory
    one.close()
    assert memory[far] == memory[0]
    with pytest.raises(ValueError, match=r"^the device is closed$"):
        one.run()


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_leaves_a_device_that_runs_on(device):
    one, other = device(), device()
    expected = copy(other, bursts=3)
    program(one, bursts=3)
    threading.Timer(0.3, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        one.run(10**12, until_irq=False)
    begin = one.cycle
    assert begin > 0
    assert copy(one, bursts=3) == expected


def test_progress_is_reported(device):
    one = device()
    cycles = []
    one.run(
        1050,
        until_irq=False,
        progress=lambda statistics: cycles.append(statistics.cycle),
        progress_cycles=500,
    )
    assert cycles == [500, 1000, 1050]


@pytest.mark.parametrize("cycles", [1, 150, 333, 500])
def test_a_saved_state_goes_on_to_the_same_bits(device, cycles):
    """The memory pauses, bursts are in flight, one fails, and another device goes on."""
    options = {"pause": 0.3, "outstanding": 3, "seed": 5, "banks": (4, 256, 20)}

    def begun():
        one = device(128, **options)
        one.inject_error(TARGET + 512, TARGET + 528, "SLVERR")
        program(one, bursts=10, beats=8)
        one.write_register(designs.CONTROL, designs.START)
        return one

    whole, one, other = begun(), begun(), device(128, **options)
    whole.run(100_000)
    one.run(cycles, until_irq=False)
    state = one.state()
    other.run(77, until_irq=False)
    other.set_state(state)
    other.memory[:] = one.memory
    assert other.state() == state
    other.run(100_000)
    assert other.statistics == whole.statistics
    np.testing.assert_array_equal(other.memory, whole.memory)
    assert other.read_register(designs.STATUS) == whole.read_register(designs.STATUS) == 2


def test_a_state_of_another_design_is_refused(device):
    state = device(128).state()
    for wrong in (state[:-1], state + b"0", b"", device(32).state()):
        with pytest.raises(
            DeviceError, match=r"the state (is of another design|is too long|ends too early)$"
        ):
            device(128).set_state(wrong)


def test_unchanged_design_is_not_compiled_again(libraries, monkeypatch):
    verilog = verilog_of(designs.CopyEngine(64))
    libraries(512)
    monkeypatch.setattr(native_library, "compile_model", None)
    assert build_native(verilog) == libraries(512)


def test_waves(tmp_path):
    verilog = STOPS.replace("$STOP", "")
    library = build_native(verilog, waves=True)
    with NativeDevice(library) as one:
        one.save_waves(tmp_path / "waves.vcd", 10, 13)
        one.run(100, until_irq=False)
    text = (tmp_path / "waves.vcd").read_text()
    assert "count" in text
    assert re.findall(r"^#(\d+)$", text, re.MULTILINE) == ["100", "105", "110", "115", "120", "125"]


@pytest.mark.skipif(bool(fst_fault()), reason=fst_fault())
def test_waves_in_fst(tmp_path):
    """The file has the cycles that were asked for: its header names the first and last time."""
    library = build_native(STOPS.replace("$STOP", ""), waves=WaveFormat.FST)
    with NativeDevice(library) as one:
        one.save_waves(tmp_path / "waves.fst", 10, 13)
        one.run(100, until_irq=False)
    kind, length, begin, end = struct.unpack(">BQQQ", (tmp_path / "waves.fst").read_bytes()[:25])
    assert (kind, length, begin, end) == (0, 329, 100, 125)


def test_without_the_libraries_of_fst_waves_are_vcd(tmp_path, monkeypatch):
    fst_fault.cache_clear()
    monkeypatch.setattr(waves, "FST_HEADERS", ("lz4_that_is_missing.h", "zlib.h"))
    path = tmp_path / "waves.fst"
    fault = "lz4_that_is_missing.h cannot be used by g++"
    assert possible_format(path) == (tmp_path / "waves.vcd", WaveFormat.VCD, fault)
    assert possible_format(tmp_path / "a.vcd") == (tmp_path / "a.vcd", WaveFormat.VCD, "")
    fst_fault.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert possible_format(path)[2] == "g++ is missing"
    fst_fault.cache_clear()


def test_design_without_groups_of_ports(libraries):
    verilog = STOPS.replace("$STOP", "$finish")
    library = build_native(verilog)
    with NativeDevice(library) as one:
        assert one.bus_bytes == 0
        one.run(10, until_irq=False)
        with pytest.raises(ValueError, match=r"^the design has no port irq to wait for$"):
            one.run(10)
        with pytest.raises(ValueError, match=r"^waves need a library built with waves=True$"):
            one.save_waves("waves.vcd")
        with pytest.raises(
            DeviceError, match=r"^cycle 20: the model stopped: \$finish \(top.v:5\)$"
        ):
            one.run(100, until_irq=False)
        one.reset()
        with pytest.raises(DeviceError, match=r"the design has no registers \(ports s_axil_\*\)$"):
            one.read_register(0)
    with pytest.raises(DeviceError, match=r"^the model of top stopped$"):
        native_speed(verilog, 1000)
    assert native_speed(verilog, 10) > 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_bytes": 100}, "memory must be a multiple of 4096 bytes, not 100"),
        ({"bytes_per_cycle": 0}, "bytes per cycle must be 1/65536..1048576, not 0"),
        ({"latency_cycles": 0}, "read latency must be at least 1 cycle, not 0"),
        ({"write_latency_cycles": 0}, "write latency must be at least 1 cycle, not 0"),
        ({"outstanding": 0}, "outstanding bursts must be 1..65536, not 0"),
        ({"pause": 1}, "chance of a pause must be 0..0.99, not 1"),
        (
            {"banks": (0, 1, 1)},
            "banks must be 1..65536, their bytes and cycles 1 or more, not (0, 1, 1)",
        ),
    ],
)
def test_arguments_out_of_range(libraries, options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        NativeDevice(libraries(512), **options)
