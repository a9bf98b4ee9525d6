"""Delays of UltraScale+ in picoseconds, as RapidWright publishes them.

Source: github.com/Xilinx/RapidWright, files ``timing/ultrascaleplus/intrasite_delay_terms.txt``
(model 0.5: cells, and nets inside a site), ``intersite_delay_terms.txt`` (model 0.4: pins of sites,
wires) and, for DSPs, which these do not have, Vivado's delays in the test data of
``tcl/rwroute/test_data/dump_all_dsp_delay``. Where pins of a kind differ by a few per cent, the
number is the largest one.

Three terms are this project's own, since no file has them: `CONTROL_SETUP`, the multiplexer F8,
which is taken for an F7, and the length of a wire.
"""

import math

LUT = (35, 50, 90, 100, 125, 150)
"""From an input to the output, the fastest pin (A6) first."""

LUT_PINS = (43, 44, 44, 48, 53, 74)
"""Pins of a slice in front of these inputs."""

LUT_TO_REGISTER = 50
"""From a LUT to a register of its own slice."""

X_PIN = 65
"""Pin of a slice that does not lead to a LUT."""

X_TO_REGISTER = 100
CONTROL_PIN = 5
"""Pin of a slice for a clock enable or a reset."""

CLOCK_TO_REGISTER = 77
REGISTER_SETUP = -25
CONTROL_SETUP = 60
"""Set-up time of a clock enable or a reset: an assumption."""

LUT_TO_MUX, MUX, MUX_SELECT = 25, 70, 77
"""Multiplexers between LUTs of a slice: the way in, from a data input, from the select input."""

MUX_TO_REGISTER = MUX_TO_PIN = 32

CLOCK_TO_LUT_MEMORY = 312
LUT_MEMORY_ADDRESS_SETUP, LUT_MEMORY_DATA_SETUP, LUT_MEMORY_ENABLE_SETUP = 117, 81, 180

LUT_TO_CARRY, CARRY_TO_REGISTER, CARRY_TO_PIN = 15, 25, 30
CARRY_TO_CARRY = 20 + 26
"""From the carry out of a slice into that of the slice above."""

SUMS_OF_SELECTS = (
    (65, 96, 134, 139, 206, 240, 226, 241),
    (56, 117, 123, 204, 237, 224, 238),
    (58, 86, 167, 200, 188, 202),
    (61, 149, 184, 172, 187),
    (63, 95, 129, 137),
    (58, 131, 138),
    (56, 85),
    (56,),
)
"""CARRY8: from S[i] to O[i], O[i + 1] and so on."""

CARRIES_OF_SELECTS = (
    (71, 109, 115, 186, 216, 201, 217, 199),
    (91, 98, 184, 213, 199, 214, 197),
    (63, 148, 176, 162, 177, 168),
    (133, 159, 146, 162, 170),
    (70, 103, 113, 163),
    (105, 113, 166),
    (61, 124),
    (124,),
)
"""From S[i] to CO[i] and so on."""

SUMS_OF_DATA = (
    (81, 109, 115, 178, 208, 196, 211),
    (99, 102, 162, 196, 183, 198),
    (94, 150, 186, 174, 188),
    (147, 182, 170, 185),
    (84, 115, 123),
    (102, 107),
    (93,),
    (),
)
"""From DI[i] to O[i + 1] and so on."""

CARRIES_OF_DATA = (
    (57, 83, 90, 182, 184, 170, 186, 140),
    (73, 78, 144, 172, 158, 173, 127),
    (69, 134, 160, 148, 163, 117),
    (131, 157, 144, 160, 113),
    (59, 87, 98, 100),
    (74, 82, 95),
    (69, 67),
    (60,),
)
"""From DI[i] to CO[i] and so on."""

SUMS_OF_CARRY = (56, 76, 67, 82, 86, 116, 103, 116)
CARRIES_OF_CARRY = (52, 42, 57, 60, 92, 77, 92, 23)
"""From the carry in to all O and CO."""

SUMS_OF_START = (110, 132, 131, 135, 193, 228, 216, 231)
CARRIES_OF_START = (107, 105, 110, 177, 203, 191, 206, 160)
"""From pin AX, where it is the first carry in."""

CLOCK_TO_BLOCK_RAM = {False: 1003, True: 229}
"""Without the output register, and with it."""

BLOCK_RAM_SETUP = {"ADDR": 383, "DIN": 313, "WE": 394, "EN": 342, "REGCE": 233, "RST": 313}
"""By the beginning of a port's name."""

DSP = 1560
"""From A or B to P without any register."""

CLOCK_TO_DSP = 280
DSP_SETUP, DSP_INPUT_SETUP = 1450, 300
"""Of A or B in front of the register of P alone, and of a register of its own."""

WIRE_HOP, WIRE_TILE = 43.0, 3.5
"""A hop of a wire, and each tile that it passes."""

HOP_TILES, MOST_TILES = 10, 60


def wire(fan_out: int) -> float:
    """Delay of a wire with this many pins at its end, before anything is placed: an assumption.

    The pins lie within a square whose side, in tiles, is six times the root of their number, at
    most a clock region, which has 60 rows: further pins get a driver of their own. A wire has a hop
    more than there are tens of tiles begun.
    """
    tiles = min(6 * math.sqrt(fan_out), MOST_TILES)
    return WIRE_HOP * (1 + math.ceil(tiles / HOP_TILES)) + WIRE_TILE * tiles
