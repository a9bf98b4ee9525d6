"""The static timing estimate of ``bench/static_timing.py`` on netlists made by hand.

The expected delays are added up here from the terms that RapidWright publishes, in picoseconds.
"""

import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))
try:
    from flat_netlist import flat
    from static_timing import Timing
finally:
    sys.path.remove(str(BENCH))

WIRE = 2 * 43 + 3.5 * 6  # to one pin: six tiles
CLOCK_TO_REGISTER, SETUP, FASTEST_PIN, FASTEST_LUT = 77, -25, 43, 35


def cell(kind, inputs, outputs, **parameters):
    directions = dict.fromkeys(inputs, "input") | dict.fromkeys(outputs, "output")
    connections = {port: bits if isinstance(bits, list) else [bits]
                   for port, bits in (inputs | outputs).items()}  # fmt: skip
    return {
        "type": kind,
        "port_directions": directions,
        "connections": connections,
        "parameters": parameters,
    }


def register(d, q, **inputs):
    return cell("FDRE", {"C": 1, "D": d, **inputs}, {"Q": q})


def module(cells, names=(), ports=()):
    return {
        "ports": {name: {"direction": way, "bits": bits} for name, way, bits in ports},
        "netnames": {name: {"bits": bits} for name, bits in names},
        "cells": {f"cell{number}": each for number, each in enumerate(cells)},
    }


def paths_of(cells, names=(), ports=(), **modules):
    design = {"modules": {"top": module(cells, names, ports), **modules}}
    return Timing(flat(design)).paths()


def slowest(cells, names=()):
    return paths_of(cells, names)[0]


def test_a_register_after_a_register():
    path = slowest([register("0", 2), register(2, 3)], [("one", [2]), ("two", [3])])
    assert path.delay_ps == CLOCK_TO_REGISTER + WIRE + 65 + 100 + SETUP
    assert (path.begin, path.end, path.wire_ps) == ("one", "two", WIRE)
    assert not path.is_port


@pytest.mark.parametrize("number", [1, 2, 7])
def test_a_chain_of_luts(number):
    """The last LUT has the register in its own slice, the others have a wire each."""
    luts = [cell("LUT1", {"I0": 2 + each}, {"O": 3 + each}) for each in range(number)]
    path = slowest([register("0", 2), *luts, register(2 + number, 99)])
    one = WIRE + FASTEST_PIN + FASTEST_LUT
    assert path.delay_ps == CLOCK_TO_REGISTER + number * one + 50 + SETUP
    assert path.luts == number


def test_what_comes_last_gets_the_fastest_pin():
    """Five registers and a chain meet in a LUT of six inputs: the chain has A6, others A5 to A1."""
    first = cell("LUT1", {"I0": 7}, {"O": 8})
    last = cell("LUT6", {f"I{n}": bit for n, bit in enumerate((8, 2, 3, 4, 5, 6))}, {"O": 9})
    cells = [*(register("0", bit) for bit in range(2, 8)), first, last, register(9, 10)]
    arrival = CLOCK_TO_REGISTER + 2 * WIRE + 2 * (FASTEST_PIN + FASTEST_LUT)
    assert slowest(cells).delay_ps == arrival + 50 + SETUP
    # Without the chain, one of six equal inputs has the slowest pin.
    cells[-2] = cell("LUT6", {f"I{n}": 2 + n for n in range(6)}, {"O": 9})
    assert slowest(cells).delay_ps == CLOCK_TO_REGISTER + WIRE + 74 + 150 + 50 + SETUP


def test_many_pins_have_longer_wires():
    """Sixteen pins lie within 24 tiles: four hops. Enables of eight registers are one pin."""
    cells = [register("0", 2), *(register(2, 10 + n) for n in range(16))]
    wire = 4 * 43 + 3.5 * 24
    assert slowest(cells).delay_ps == CLOCK_TO_REGISTER + wire + 65 + 100 + SETUP
    enabled = [register("0", 2), *(register("0", 10 + n, CE=2) for n in range(8))]
    assert slowest(enabled).delay_ps == CLOCK_TO_REGISTER + WIRE + 5 + 60


def adder(bits, first):
    """An adder of CARRY4s behind LUTs, with the number of the first bit of its sum."""
    luts = [cell("LUT2", {"I0": 2, "I1": 3}, {"O": 100 + n}) for n in range(bits)]
    carries = []
    for low in range(0, bits, 4):
        carry_in = {"CYINIT": "0", "CI": "0"} if low == 0 else {"CYINIT": "0", "CI": 200 + low - 1}
        carries.append(
            cell(
                "CARRY4",
                {"S": [100 + low + n for n in range(4)], "DI": ["0"] * 4, **carry_in},
                {"O": [first + low + n for n in range(4)], "CO": [200 + low + n for n in range(4)]},
            )
        )
    return luts + carries


@pytest.mark.parametrize(
    ("bits", "carries"),
    [  # from S0: to O3 of a CARRY8, to O7; to its carry out and to O3 and O7 of the next one
        (4, 139),
        (8, 241),
        (12, 199 + 46 + 82),
        (16, 199 + 46 + 116),
        (24, 199 + 2 * 46 + 23 + 116),
    ],
)
def test_adders(bits, carries):
    cells = [register("0", 2), register("0", 3), *adder(bits, 300), register(300 + bits - 1, 999)]
    wire = 43 * (1 + -(-6 * bits**0.5 // 10)) + 3.5 * 6 * bits**0.5
    lut = 44 + 50  # both inputs come at once, so one has the second pin
    expected = CLOCK_TO_REGISTER + wire + lut + 15 + carries + 25 + SETUP
    assert slowest(cells).delay_ps == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize(("registered", "delay"), [("1", 229), ("0", 1003)])
def test_block_ram(registered, delay):
    memory = cell(
        "RAMB36E2",
        {"CLKBWRCLK": 1, "ADDRBWRADDR": [2, 3], "ENBWREN": "1"},
        {"DOUTBDOUT": [4, 5]},
        DOB_REG=registered,
    )
    found = paths_of([register("0", 2), memory, register(4, 6)], [("word", [4]), ("last", [6])])
    ends = {path.end: path.delay_ps for path in found}
    assert ends["last"] == delay + WIRE + 65 + 100 + SETUP
    assert ends["word"] == CLOCK_TO_REGISTER + WIRE + 383


def test_a_product_in_a_dsp_without_registers():
    none = dict.fromkeys(("AREG", "BREG", "CREG", "DREG", "MREG", "PREG"), "0")
    product = cell("DSP48E2", {"A": [2], "B": [3]}, {"P": [4]}, **none)
    cells = [register("0", 2), register("0", 3), product, register(4, 5)]
    expected = CLOCK_TO_REGISTER + 2 * WIRE + 1560 + 65 + 100 + SETUP
    assert slowest(cells).delay_ps == expected
    cells[2] = cell("DSP48E2", {"A": [2], "B": [3]}, {"P": [4]}, **(none | {"PREG": "1"}))
    assert slowest(cells).delay_ps == CLOCK_TO_REGISTER + WIRE + 1450


def test_memories_in_luts():
    """A read passes like a LUT; the data to write end there."""
    memory = cell(
        "RAM32M16",
        {"WCLK": 1, "WE": 2, "ADDRA": [3], "ADDRH": [4], "DIA": [5]},
        {"DOA": [6]},
    )
    found = paths_of(
        [*(register("0", bit) for bit in range(2, 6)), memory, register(6, 7)],
        [("read", [7])],
    )
    delays = {path.end: path.delay_ps for path in found}
    assert delays["read"] == 312 + 50 + SETUP  # a write shows up later than a change of address
    assert max(each for name, each in delays.items() if name != "read") == (
        CLOCK_TO_REGISTER + WIRE + 65 + 180
    )


def test_a_sum_that_comes_back_into_its_own_carry_is_no_loop():
    """The cell drives a LUT that leads to it, but bit 3 depends on bit 0 and on nothing else."""
    carry = cell(
        "CARRY4",
        {"S": [2, "0", "0", 20], "DI": ["0"] * 4, "CI": "0", "CYINIT": "0"},
        {"O": [10, 11, 12, 13], "CO": [14, 15, 16, 17]},
    )
    back = cell("LUT1", {"I0": 10}, {"O": 20})
    path = slowest([register("0", 2), carry, back, register(13, 30)])
    into = WIRE + FASTEST_PIN + FASTEST_LUT + 15 + 65  # through a LUT, S0 to O0
    again = 30 + WIRE + FASTEST_PIN + FASTEST_LUT + 15 + 61  # S3 to O3
    assert path.delay_ps == CLOCK_TO_REGISTER + into + again + 25 + SETUP
    assert (path.luts, path.carries) == (1, 2)


def test_loops_are_named():
    luts = [cell("LUT1", {"I0": 2}, {"O": 3}), cell("LUT1", {"I0": 3}, {"O": 2})]
    with pytest.raises(ValueError, match=r"^nets form a loop: (one|two), (one|two), (one|two)$"):
        paths_of(luts, [("one", [2]), ("two", [3])])


def test_modules_are_flattened():
    """A net that passes through a module, and a path that crosses its border."""
    inner = module(
        [cell("LUT1", {"I0": 2}, {"O": 3})],
        ports=[("i", "input", [2]), ("o", "output", [3]), ("same", "output", [2])],
    )
    use = cell("inner", {"i": 2}, {"o": 3, "same": 4})
    found = paths_of(
        [register("0", 2), use, register(3, 5), register(4, 6)],
        [("begin", [2]), ("a", [5]), ("b", [6])],
        inner=inner,
    )
    delays = {path.end: path.delay_ps for path in found}
    wire = 43 * (1 + 1) + 3.5 * 6 * 2**0.5  # two pins within 8.5 tiles
    assert delays["a"] == pytest.approx(77 + wire + 43 + 35 + 50 + SETUP, abs=0.1)
    assert delays["b"] == pytest.approx(77 + wire + 65 + 100 + SETUP, abs=0.1)
    assert {path.begin for path in found} == {"begin"}


def test_ports_count_as_registers():
    (path,) = paths_of(
        [cell("LUT1", {"I0": 2}, {"O": 3})], ports=[("i", "input", [2]), ("o", "output", [3])]
    )
    assert path.delay_ps == CLOCK_TO_REGISTER + 2 * WIRE + 43 + 35 + 65 + 100 + SETUP
    assert path.is_port


def test_unknown_cells_are_refused():
    with pytest.raises(ValueError, match=r"^cell cell0 is a BUFGMUX, whose delays are not known$"):
        paths_of([cell("BUFGMUX", {"I": 2}, {"O": 3})])
