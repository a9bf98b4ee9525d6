"""The wrapper of a packaged core with two memory ports."""

import random
import re

import pytest
from cases.package_cases import files_of_target, shared_board

from fpgapipe.host.package.wrapper import wrapper
from fpgapipe.hw.hls_models.spec.interleave import port_address, port_of


def test_addresses_before_two_ports():
    """The wrapper puts the bits of an address where the halves of a node's memory lie."""
    target = shared_board()
    text = files_of_target(target)["fpgapipe_core.v"]
    size = len(target.channels) * target.board.memory[0].size_bytes
    rng = random.Random(1)
    places = re.findall(
        r"assign (m_axi1?)_(a[rw])addr = "
        r"{(\w+)\[63:(\d+)\], 1'd(\d), \3\[(\d+):(\d+)\], \3\[(\d+):0\]};",
        text,
    )
    assert sorted((bus, way, wire) for bus, way, wire, *_ in places) == [
        (bus, way, f"core_{bus}_{way}addr") for bus in ("m_axi", "m_axi1") for way in ("ar", "aw")
    ]
    for bus, _, wire, *numbers in places:
        assert f".{wire.removeprefix('core_')}({wire})," in text
        above, port, high, low, last = map(int, numbers)
        assert port == ("m_axi", "m_axi1").index(bus)
        seen = 0
        while seen < 100:
            address = rng.getrandbits(48)
            if port_of(address) != port:
                continue
            number = (address & ((2 << high) - 1)) >> low
            place = (port << (high - low + 1) | number) << (last + 1) | address & ((2 << last) - 1)
            place |= address >> above << above
            assert place == port_address(address, size)
            seen += 1


def test_two_ports_need_memory_of_a_power_of_two():
    node = shared_board()
    for size in (None, 3 << 28, 1 << 20):
        with pytest.raises(ValueError, match="must have a power of two of bytes, at least 4,194"):
            wrapper(node.core, node.verilog, memory_bytes=size)
