"""The wrapper of a packaged core with two memory ports."""

import random
import re
from dataclasses import replace

import pytest
from cases.package_cases import files_of_target, shared_board

from fpgapipe.host.package.vitis import kernels
from fpgapipe.host.package.wrapper import wrapper
from fpgapipe.hw.hls_models.spec.interleave import port_address, port_of


@pytest.mark.parametrize("channels", [8, 12])
def test_addresses_before_two_ports(channels):
    """The wrapper gives an address the place that it has behind its port."""
    target = replace(shared_board(), channels=range(channels))
    text = files_of_target(target)["fpgapipe_core.v"]
    size = channels * target.board.memory[0].size_bytes
    rng = random.Random(1)
    places = re.findall(
        r"assign (m_axi1?)_(a[rw])addr = "
        r"{1'b0, (\w+)\[63:(\d+)\], \3\[(\d+):0\]}(?: \+ 64'd(\d+))?;",
        text,
    )
    assert sorted((bus, way, wire) for bus, way, wire, *_ in places) == [
        (bus, way, f"core_{bus}_{way}addr") for bus in ("m_axi", "m_axi1") for way in ("ar", "aw")
    ]
    for bus, _, wire, low, last, added in places:
        assert f".{wire.removeprefix('core_')}({wire})," in text
        port = ("m_axi", "m_axi1").index(bus)
        seen = 0
        while seen < 100:
            address = rng.getrandbits(48)
            if port_of(address) != port:
                continue
            kept = int(last) + 1
            place = address >> int(low) << kept | address & ((1 << kept) - 1)
            assert place + int(added or 0) == port_address(address, size // 2)
            seen += 1


def test_two_ports_need_memory_of_whole_blocks():
    node = shared_board()
    for size in (None, 0, 3 << 10):
        with pytest.raises(ValueError, match="must have a multiple of 2,048 bytes, not"):
            wrapper(node.core, node.verilog, memory_bytes=size)


def test_equal_cores_with_other_memories_are_kernels_of_their_own():
    """The second port of each begins behind its own half."""
    target = shared_board()
    assert [len(each) for each in kernels(target).values()] == [1, 2, 1]
    first, other, *rest = target.others
    larger = replace(target, others=(first, replace(other, channels=range(12)), *rest))
    found = kernels(larger)
    assert [len(each) for each in found.values()] == [1, 1, 1, 1]
    assert [*found][1:3] == ["fpgapipe_core_of_1", "fpgapipe_core_of_2"]
    files = files_of_target(larger)
    one, two = (files[f"{each}.v"].replace(f"{each} (", "") for each in [*found][1:3])
    assert one != two
    assert "sp=fpgapipe_core_2.m_axi1:HBM[6:11]" in files["link.cfg"]
