"""The price of the sum of gradients over a chain of devices."""

import pytest

from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.cycles.link_cycles import WireTiming
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.hls_models.spec.on_chip import ON_CHIP_BYTES, OnChipSpec
from fpgapipe.lowering.sums.all_reduce import CHUNK_BYTES
from fpgapipe.partition.pricing import all_reduce_cycles as pricing

ELEMENTS = 96 * CHUNK_BYTES[1] // 4
"""So many that chunks would be smaller for a part of them."""


@pytest.fixture(autouse=True)
def _large_chunks(monkeypatch):
    """Chunks of the most bytes, as those of a large tensor."""
    monkeypatch.setattr("fpgapipe.lowering.sums.all_reduce.MANY_CHUNKS", 64)


def cycles(num_devices, rate, elements=ELEMENTS, phy_bytes=16, link=None):
    core = CoreSpec(
        8,
        8,
        scratchpad=ScratchpadSpec(4, 1 << 18),
        vector=VectorSpec(),
        links=(link or LinkEngineSpec(phy_bytes=phy_bytes),) * 2,
    )
    wire = WireTiming(ON_CHIP_BYTES, 3) if link else WireTiming(rate)
    return pricing.all_reduce_cycles(
        elements,
        [core] * num_devices,
        [MemorySpec(64)] * num_devices,
        [wire] * (num_devices - 1),
    )


@pytest.mark.parametrize("rate", [16, 3.0])
def test_many_chunks_are_foretold_by_some(monkeypatch, rate):
    """Chunks of the part that is timed are as large as those of the whole."""
    whole = cycles(3, rate)
    monkeypatch.setattr(pricing, "MANY_CHUNKS", 32)
    assert cycles(3, rate) == pytest.approx(whole, rel=1e-3)


def test_faster_wires_do_not_make_it_longer():
    """Large packets in flight would keep each other waiting at the memory."""
    found = [cycles(8, rate, phy_bytes=64) for rate in (40, 10, 4, 1)]
    assert found == sorted(found)
    assert found[1] <= 1.1 * found[0], "the memory holds up both alike"


def test_nodes_of_a_board_add_up_by_turns(monkeypatch):
    """Two and three nodes take less than with a running sum; of a multiple of the bytes as well."""
    many = 4 * ELEMENTS
    found = {count: cycles(count, 64, link=OnChipSpec()) for count in (2, 3, 4)}
    whole = cycles(3, 64, many, link=OnChipSpec())
    assert whole == pytest.approx(4 * found[3], rel=0.05)
    monkeypatch.setattr("fpgapipe.lowering.sums.all_reduce.BY_TURNS", 1)
    for count, least in ((2, 1.35), (3, 1.35), (4, 1)):
        assert cycles(count, 64, link=OnChipSpec()) >= least * found[count]
