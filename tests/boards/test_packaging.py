"""The key ``packaging`` of board files: what it must have, and where its values agree."""

import re

import pytest
import yaml

from fpgapipe.boards.library import board_names, load_board
from fpgapipe.errors import FileError

PACKAGED = [name for name in board_names() if load_board(name).packaging]


def test_boards_that_can_be_packaged():
    flows = {name: load_board(name).packaging.flow for name in PACKAGED}
    assert flows == {
        "u55c": "vitis",
        "u50": "vitis",
        "u280": "vitis",
        "vcu118": "vivado",
        "zcu102": "pynq",
        "kv260": "pynq",
        "pynq-z2": "pynq",
        "ulx3s": "litex",
    }
    assert load_board("u280").packaging.tools.last == "2025.1"


@pytest.mark.parametrize("name", PACKAGED)
def test_ports_are_those_of_the_links(name):
    board = load_board(name)
    groups = {group.name: group for group in board.links}
    for port in board.packaging.transceivers:
        group = groups[port.link]
        assert group.protocol == "aurora-64b66b"
        lane_bits_per_s = group.line_rate_bits_per_s / port.lanes
        # A lane of the two rates that the boards have, from a clock with a divider that exists.
        assert lane_bits_per_s in (25.78125e9, 10.3125e9)
        assert (lane_bits_per_s / port.reference_clock_hz) in (160, 165, 66)
    pins = {}
    for port in board.packaging.transceivers:
        for pin in port.pins:
            shared = pins.setdefault(pin, port)
            # Ports of one quad have one reference clock.
            assert shared.quad == port.quad, pin
            assert shared is port or pin in port.clock_pins, pin


def changed(tmp_path, name, change):
    """Faults of a board's file after a change of its values."""
    from importlib.resources import files

    value = yaml.safe_load((files("fpgapipe.boards") / f"{name}.yaml").read_text())
    change(value["packaging"])
    path = tmp_path / "changed.yaml"
    path.write_text(yaml.safe_dump(value))
    with pytest.raises(FileError) as failure:
        load_board(path)
    return "\n".join(failure.value.faults)


def without_pin(packaging):
    packaging["transceivers"][0]["input_pins"].pop()


def with_twice_a_pin(packaging):
    port = packaging["transceivers"][0]
    port["output_pins"][0] = port["input_pins"][0]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "u55c",
            lambda packaging: packaging["vitis"].update(memory="hbm3"),
            "packaging.vitis.memory: must be one of hbm (the memories), not 'hbm3'; did you mean "
            "'hbm'?",
        ),
        (
            "u55c",
            lambda packaging: packaging["vitis"].update(memory_die="SLR9"),
            "must be one of SLR0, SLR1, SLR2 (the dies), not 'SLR9'",
        ),
        (
            "u55c",
            lambda packaging: packaging.pop("vitis"),
            "packaging: must have one of the keys vitis, vivado, pynq, litex, not none of them",
        ),
        (
            "u50",
            lambda packaging: packaging["transceivers"][0].update(port=1),
            "must be a port of the board (1 of qsfp), not qsfp/1",
        ),
        (
            "u50",
            lambda packaging: packaging["transceivers"][0].pop("platform_lanes"),
            "must have either 'platform_clock' and 'platform_lanes', or 'quad', 'sites'",
        ),
        (
            "u55c",
            lambda packaging: packaging["transceivers"][1].update(port=0),
            "must be unique, and qsfp/0 was there before",
        ),
        ("vcu118", without_pin, "must have 8 entries for 4 lanes, not 7"),
        ("vcu118", with_twice_a_pin, "must have each pin once, but Y2"),
        (
            "vcu118",
            lambda packaging: packaging["transceivers"][0].update(clock_pins=["W9", "w8"]),
            "must be a pin such as AY24 (a package pin), not 'w8'",
        ),
        (
            "vcu118",
            lambda packaging: packaging.update(
                vitis={"platform": "x", "memory": "ddr4", "memory_die": "SLR0"}
            ),
            "the key 'init_clock' is missing",
        ),
        (
            "pynq-z2",
            lambda packaging: packaging["pynq"].update(registers="40000000"),
            "must be a hexadecimal number (an address), not '40000000'",
        ),
        (
            "pynq-z2",
            lambda packaging: packaging["pynq"].update(system="zynq"),
            "must be one of zynq-7000, zynq-ultrascale (processing system), not 'zynq'",
        ),
        (
            "pynq-z2",
            lambda packaging: packaging["pynq"].update(source="nobody"),
            "must be a key of 'sources', not 'nobody'",
        ),
        (
            "ulx3s",
            lambda packaging: packaging["pin_ports"][1]["inputs"].update(clock="C11"),
            "must have each pin once, but C11 was there before",
        ),
        (
            "ulx3s",
            lambda packaging: packaging["pin_ports"][1]["inputs"]["data"].pop(),
            "pin_ports[1].inputs.data",
        ),
        (
            "ulx3s",
            lambda packaging: packaging["pin_ports"][1].update(port=2),
            "must be a port of the board (2 of gpio), not gpio/2",
        ),
        (
            "ulx3s",
            lambda packaging: packaging["pin_ports"][1].update(port=0),
            "must be unique, and gpio/0 was there before",
        ),
        (
            "u280",
            lambda packaging: packaging["tools"].update(last="2021.2"),
            "must not be before the first, 2022.1",
        ),
    ],
)
def test_faults(name, change, message, tmp_path):
    assert re.search(re.escape(message), changed(tmp_path, name, change))
