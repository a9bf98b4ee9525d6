"""Devices in lock-step: exact cycles, the same result however they are run, and what goes wrong."""

import _thread
import re
import threading
from fractions import Fraction

import pytest
from link_designs import (
    DIGEST,
    FAULT,
    FAULTS,
    RECEIVED,
    SENDS,
    SENT,
    STEP,
    TOKEN,
    UNTIL,
    VALUE,
    WIDTHS,
    LinkDesign,
    digest_of,
    load_on_wire,
)

from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.cluster.cluster import Cluster
from fpgapipe.sim_tb.cluster.cluster_nodes import Connection, Node, cable
from fpgapipe.sim_tb.native.native import DeviceError, NativeDevice, StallError, build_native
from fpgapipe.sim_tb.native.phy import Wire, WireSpec

pytestmark = pytest.mark.sim


@pytest.fixture(scope="module")
def library():
    return build_native(verilog_of(LinkDesign()))


@pytest.fixture
def cluster(library):
    """Make a cluster of so many designs, of which node 0 alone is waited for."""
    made = []

    def make(number, connections, **options):
        nodes = [
            Node(f"d{index}", NativeDevice(library), awaited=index == 0) for index in range(number)
        ]
        made.append(Cluster(nodes, connections, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def ring(latencies):
    """Wires that carry a token around."""
    number = len(latencies)
    return [
        Connection(
            (index, TOKEN),
            ((index + 1) % number, TOKEN),
            WireSpec(phy_bytes=16, latency_cycles=latency, skew_cycles=index),
        )
        for index, latency in enumerate(latencies)
    ]


@pytest.mark.parametrize("latencies", [(1,), (1, 1), (7, 5, 11), (300, 5, 200, 128)], ids=str)
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_token_goes_around(cluster, latencies, threads):
    """Each hop takes the wire's cycles and one in the device, over and over."""
    one = cluster(len(latencies), ring(latencies), threads=threads)
    rounds = 6
    number = len(latencies)
    one.write_register(0, STEP * TOKEN + UNTIL, rounds * number)
    begin = one.cycle
    one.write_register(0, STEP * TOKEN + VALUE, 1)
    one.run(100_000)
    hops = sum(latency + skew + 1 for skew, latency in enumerate(latencies))
    irq_cycle = one.nodes[0].device.statistics.irq_cycle
    assert irq_cycle == begin + 2 + rounds * hops
    assert one.cycle >= irq_cycle
    assert one.read_register(0, STEP * TOKEN + VALUE) == rounds * number


BAD_WIRE = {
    "bit_error_rate": 1e-4, "burst_rate": 0.01, "drop_rate": 0.05, "duplicate_rate": 0.05,
    "pause": 0.1, "resets": (700, 2100), "down": ((900, 1000),), "stalls": ((50, 80),),
}  # fmt: skip


TWO_ISLANDS = (1, 100, 2, 100)


def mesh(latency, **options):
    """A chain of four with cables of three widths, whose ends are also joined.

    The latency is that of all wires, or there is one for each node and the one after it.
    """
    latencies = (latency,) * 4 if isinstance(latency, int) else latency
    wires = []
    for port in range(3):
        for index in range(4 if port == 0 else 3):
            spec = WireSpec(
                phy_bytes=WIDTHS[port],
                bytes_per_cycle=WIDTHS[port] * Fraction(4, 5),
                latency_cycles=latencies[index],
                skew_cycles=index,
                seed=10 * port + index,
                **options,
            )
            if port == 0:
                wires.append(Connection((index, 0), ((index + 1) % 4, 0), spec))
            elif (index + port) % 2:
                wires += cable((index, port), (index + 1, port), spec)
    return wires


def results(one, cycles=4000):
    """Run loads on all links, and what becomes of it."""
    for index in range(4):
        for port in range(3):
            one.write_register(index, STEP * port + SENDS, 600 + 100 * port + index)
    one.write_register(0, UNTIL, 500)
    ran = one.run(cycles)
    ran = one.run(cycles - ran, until_irq=False)
    found = [one.cycle, ran, one.nodes[0].device.statistics]
    for index in range(4):
        for port in range(3):
            found += [one.read_register(index, STEP * port + at) for at in (DIGEST, RECEIVED)]
    found += [one.wire_counts(number) for number in range(len(one.connections))]
    return found


@pytest.mark.parametrize(
    ("latency", "windows"),
    [
        (40, [(2, None), (4, None), (1, 1), (2, 7), (3, 39)]),
        (TWO_ISLANDS, [(2, None), (3, None), (4, None), (1, 1), (3, 1)]),
    ],
)
def test_result_is_always_the_same(cluster, latency, windows):
    expected = results(cluster(4, mesh(latency, **BAD_WIRE), threads=1))
    assert expected[2].irq_cycle is not None
    assert expected[-1].beats > 500
    for threads, window in windows:
        one = cluster(4, mesh(latency, **BAD_WIRE), threads=threads, window_cycles=window)
        assert results(one) == expected
    again = cluster(4, mesh(latency, **BAD_WIRE))
    results(again)
    again.reset()
    assert results(again) == expected


@pytest.mark.parametrize("cycles", [80, 990, 2300])
def test_a_saved_state_goes_on_to_the_same_cycle(cluster, cycles):
    """Beats are on bad wires, and the other cluster has other threads and windows."""

    def begun(threads):
        one = cluster(4, mesh(40, **BAD_WIRE), threads=threads)
        for index in range(4):
            for port in range(3):
                one.write_register(index, STEP * port + SENDS, 600 + 100 * port + index)
        return one

    whole, one = begun(2), begun(1)
    one.run(cycles, until_irq=False)
    other = cluster(4, mesh(40, **BAD_WIRE), threads=4, window_cycles=7)
    other.run(123, until_irq=False)
    other.set_state(one.state())
    assert other.cycle == one.cycle
    other.run(5000 - cycles, until_irq=False)
    whole.run(5000, until_irq=False)
    assert other.state() == whole.state()
    assert [node.device.statistics for node in other.nodes] == [
        node.device.statistics for node in whole.nodes
    ]
    assert other.wire_counts(0) == whole.wire_counts(0)
    with pytest.raises(DeviceError, match=r"^the state is of 4 devices, not of 2$"):
        cluster(2, ring((5, 5))).set_state(one.state())


def test_digest_is_that_of_the_python_wire(cluster):
    wires = mesh(40, **BAD_WIRE)
    one = cluster(4, wires)
    begins = []
    for index in range(4):
        begins.append(one.cycle + 1)
        one.write_register(index, SENDS, 600)
    one.run(2000, until_irq=False)
    counts = [one.wire_counts(index) for index in range(4)]
    cycles = one.cycle
    for index in range(4):
        wire = Wire(wires[index].wire)
        load_on_wire(wire, WIDTHS[0], begins[index], 600, cycles)
        beats = wire.take()
        assert beats[-1][0] < cycles
        target = (index + 1) % 4
        assert counts[index] == wire.counts
        assert one.read_register(target, RECEIVED) == len(beats)
        assert one.read_register(target, DIGEST) == digest_of(beats, WIDTHS[0])


class Registers:
    """A map of a load's counters, as a core has one of its own."""

    counters = ("RX_WORDS", "SENT")

    @staticmethod
    def offset(name):
        return {"RX_WORDS_LO": RECEIVED, "SENT_LO": SENT}[name]


def sampled(library, period, **options):
    """A run of two loads, the second of which is sampled."""
    spec = WireSpec(phy_bytes=4, latency_cycles=20, bytes_per_cycle=3, drop_rate=0.2)
    nodes = [
        Node(f"d{index}", NativeDevice(library), Registers() if index else None)
        for index in range(2)
    ]
    with Cluster(nodes, cable((0, 0), (1, 0), spec), **options) as one:
        one.sample(period, {1: ["SENT", "RX_WORDS"]})
        begin = one.cycle + 1
        for index in range(2):
            one.write_register(index, UNTIL, 700)
            one.write_register(index, SENDS, 1000)
        one.run(20_000)
        found = [one.cycle, *(node.device.statistics for node in one.nodes)]
        found += [one.read_register(index, at) for index in range(2) for at in (DIGEST, RECEIVED)]
        wire = Wire(spec)
        load_on_wire(wire, 4, begin + 2, 1000, one.cycle)
        return found, one.samples, [arrival for arrival, _ in wire.take()]


@pytest.mark.parametrize("period", [1, 97, 1000])
@pytest.mark.parametrize("options", [{}, {"threads": 1, "window_cycles": 3}], ids=str)
def test_sampling_changes_nothing(library, period, options):
    """Each value is that of its cycle, and all else is as without."""
    expected, none, _ = sampled(library, 0)
    assert none == []
    found, samples, arrivals = sampled(library, period, **options)
    assert found == expected
    assert len(samples) >= min(15, 900 // period)
    read = {sample.cycle: sample.counters["RX_WORDS"] for sample in samples}
    # The second counter is read two cycles after the first, if both are in one window.
    counts = {cycle: sum(arrival < cycle + 2 for arrival in arrivals) for cycle in read}
    assert sum(read[cycle] == counts[cycle] for cycle in read) > 0.7 * len(read)
    assert list(read.values()) == sorted(read.values())


def test_registers_are_read_in_turn(library):
    spec = WireSpec(phy_bytes=4, latency_cycles=20)
    nodes = [
        Node(f"d{index}", NativeDevice(library), Registers() if index else None)
        for index in range(2)
    ]
    with Cluster(nodes, cable((0, 0), (1, 0), spec)) as one:
        one.watch(1, {1: ["RX_WORDS_LO", "SENT_LO"] * 3})
        one.write_register(0, SENDS, 300)
        one.run(1000, until_irq=False)
        places, cycles, values = one.readings(1).T
        assert len(places) > 50
        assert places.tolist() == [at % 6 for at in range(len(places))]
        assert (cycles[1:] > cycles[:-1]).all()
        arrived = values[places % 2 == 0]
        assert (arrived[1:] >= arrived[:-1]).all()
        assert arrived[-1] == one.read_register(1, RECEIVED) > 100
        assert not values[places % 2].any()
        assert one.readings(0).shape == (0, 3)
        assert one.samples == []
        with pytest.raises(ValueError, match=r"^d0 has no registers to watch$"):
            one.watch(1, {0: ["SENT_LO"]})


def test_counters_that_stand_still_are_a_stall(library, monkeypatch):
    """Beats on a wire are no progress where there are counters of it."""
    monkeypatch.setattr("fpgapipe.sim_tb.cluster.cluster.explain", lambda what, *rest: what)
    nodes = [Node(f"d{index}", NativeDevice(library), Registers()) for index in range(2)]
    with Cluster(nodes, ring((20, 30))) as one:
        one.write_register(0, STEP * TOKEN + VALUE, 1)  # goes around for ever
        with pytest.raises(StallError, match=r"^nothing has moved for 3000 cycles$"):
            one.run(100_000, stall_cycles=3000)
        assert one.cycle < 5000
        one.write_register(0, SENDS, 1)
        one.run(4000, until_irq=False, stall_cycles=2000)


def test_stall_is_named(cluster):
    one = cluster(2, ring((20, 30)), threads=2)
    one.write_register(0, STEP * TOKEN + UNTIL, 2**32 - 1)
    one.write_register(1, STEP * TOKEN + UNTIL, 20)
    one.write_register(0, STEP * TOKEN + VALUE, 1)
    message = (
        r"^cycle \d+: nothing has moved for 3000 cycles\nd0: interrupt low\nd1: interrupt high$"
    )
    with pytest.raises(StallError, match=message):
        one.run(stall_cycles=3000)
    # The last beat went out 20 cycles before it came; windows have 20, rounds 80.
    high = one.nodes[1].device.statistics.irq_cycle
    assert high - 41 + 3000 <= one.cycle <= high + 3100
    with pytest.raises(StallError, match=r"^cycle \d+: not all interrupts came within 500 cycles"):
        one.run(500)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("valid", r"d1: cycle \d+: m_axis_link0_tvalid fell before tready rose"),
        (
            "data",
            r"d1: cycle \d+: m_axis_link0_tdata, tkeep or tlast changed while tvalid waited for "
            "tready",
        ),
        ("ready", r"d1: cycle \d+: s_axis_link0_tready is low: a wire does not wait"),
    ],
)
def test_broken_rules_are_named(cluster, fault, message):
    one = cluster(
        2, cable((0, 0), (1, 0), WireSpec(phy_bytes=4, stalls=((20, 40),), latency_cycles=12))
    )
    for _ in range(2):
        one.write_register(1, FAULT, 1 << FAULTS.index(fault))
        one.write_register(0 if fault == "ready" else 1, SENDS, 100)
        for again in (lambda: one.run(200, until_irq=False), lambda: one.read_register(0, 0)):
            with pytest.raises(DeviceError, match=f"^{message}$"):
                again()
        one.reset()
    assert one.run(200, until_irq=False) == 200


def test_devices_run_in_their_cluster_alone(cluster):
    one = cluster(1, [])
    device = one.nodes[0].device
    for use in (device.reset, lambda: device.run(5), lambda: device.read_register(0)):
        with pytest.raises(ValueError, match=r"^the device belongs to a cluster"):
            use()
    assert one.run(5, until_irq=False) == one.cycle == device.cycle == 5
    one.close()
    with pytest.raises(ValueError, match=r"^the cluster is closed$"):
        one.run(5)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_leaves_a_cluster_that_runs_on(cluster):
    one = cluster(4, mesh(40, **BAD_WIRE), threads=2)
    expected = results(cluster(4, mesh(40, **BAD_WIRE), threads=2))
    threading.Timer(0.3, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        one.run(10**12, until_irq=False)
    assert one.cycle > 0
    assert {node.device.cycle for node in one.nodes} == {one.cycle}
    one.reset()
    assert results(one) == expected


def test_progress_is_reported(cluster):
    one = cluster(2, ring((20, 30)), threads=2)
    found = []
    one.run(300_000, until_irq=False, progress=found.append, progress_s=0.02)
    assert found == sorted(found)
    assert found[-1] == 300_000
    one.run(1000, until_irq=False, progress=found.append)
    assert found[-1] == 1000


@pytest.mark.slow
def test_waves_of_one_device(library, cluster, tmp_path):
    """Waves of some cycles of a device, beside another that cannot write any, change nothing."""
    writer = NativeDevice(build_native(verilog_of(LinkDesign()), waves=True))
    expected = None
    for device in (NativeDevice(library), writer):
        nodes = [Node("d0", NativeDevice(library)), Node("d1", device)]
        with Cluster(nodes, ring((20, 30))) as one:
            if device is writer:
                one.save_waves(1, tmp_path / "waves.vcd", 100, 103)
            one.write_register(0, STEP * TOKEN + UNTIL, 30)
            one.write_register(1, STEP * TOKEN + UNTIL, 31)
            one.write_register(0, STEP * TOKEN + VALUE, 1)
            with pytest.raises(StallError):
                one.run(3000)
            found = [node.device.statistics for node in one.nodes]
            expected = expected or found
            assert found == expected
            text = (tmp_path / "waves.vcd").read_text() if device is writer else ""
    times = re.findall(r"^#(\d+)$", text, re.MULTILINE)
    assert times == ["1000", "1005", "1010", "1015", "1020", "1025"]
    with pytest.raises(ValueError, match=r"^waves need a library built with waves=True$"):
        cluster(1, []).save_waves(0, tmp_path / "none.vcd")


@pytest.mark.parametrize(
    ("wires", "options", "message"),
    [
        (ring((5, 6))[:1] * 2, {}, "d0 link 3 is the source of two wires"),
        ([Connection((0, 4), (1, 3), WireSpec())], {}, "d0 has no link 4"),
        ([Connection((0, 3), (2, 3), WireSpec())], {}, "a cluster of 2 nodes has none of 2"),
        (
            [Connection((0, 3), (1, 2), WireSpec())],
            {},
            "d1 link 2 moves 64 bytes a beat, its wire 16",
        ),
        (
            ring((5, 6)),
            {"window_cycles": 6},
            "the window must be 1..5 cycles (the quickest wire), not 6",
        ),
        (
            ring((5, 6)),
            {"window_cycles": 0},
            "the window must be 1..5 cycles (the quickest wire), not 0",
        ),
        ([], {"threads": 0}, "a cluster must have 1..256 threads, not 0"),
    ],
)
def test_refuses(cluster, wires, options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        cluster(2, wires, **options)
