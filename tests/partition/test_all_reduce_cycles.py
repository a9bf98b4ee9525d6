"""The price of the sum of gradients over a chain of devices."""

import pytest

from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.cycles.link_cycles import WireTiming
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.lowering.sums.all_reduce import CHUNK_BYTES
from fpgapipe.partition.pricing import all_reduce_cycles as pricing

ELEMENTS = 96 * CHUNK_BYTES[1] // 4
"""So many that chunks would be smaller for a part of them."""


@pytest.fixture(autouse=True)
def _large_chunks(monkeypatch):
    """Chunks of the most bytes, as those of a large tensor."""
    monkeypatch.setattr("fpgapipe.lowering.sums.all_reduce.MANY_CHUNKS", 64)


def cycles(num_devices, rate, elements=ELEMENTS, phy_bytes=16):
    core = CoreSpec(
        8,
        8,
        scratchpad=ScratchpadSpec(4, 1 << 18),
        vector=VectorSpec(),
        links=(LinkEngineSpec(phy_bytes=phy_bytes),) * 2,
    )
    return pricing.all_reduce_cycles(
        elements,
        [core] * num_devices,
        [MemorySpec(64)] * num_devices,
        [WireTiming(rate)] * (num_devices - 1),
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
