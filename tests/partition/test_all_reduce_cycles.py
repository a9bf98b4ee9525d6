"""The price of the sum of gradients over a chain of devices."""

import pytest

from fpgapipe import plan
from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.hw.hls_models.cycles.cluster_cycles import predict_cluster
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.cycles.link_cycles import WireTiming
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.hls_models.spec.on_chip import ON_CHIP_BYTES, OnChipSpec
from fpgapipe.lowering.sums.all_reduce import CHUNK_BYTES
from fpgapipe.partition.pricing import all_reduce_cycles as pricing
from fpgapipe.partition.pricing.machine import lower_plan
from fpgapipe.partition.pricing.plan_cores import memory_specs, wire_timings

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
        elements if isinstance(elements, list) else [elements],
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


def test_sums_of_stages_are_foretold_by_some(monkeypatch):
    """The chunks that are timed are enough to fill a chain, on which others pass sums on."""
    elements = [count * CHUNK_BYTES[0] // 4 for count in (200, 20, 260)]
    monkeypatch.setattr("fpgapipe.lowering.sums.all_reduce.MANY_CHUNKS", 1000)  # small chunks
    found = cycles(9, 16, elements)
    monkeypatch.setattr(pricing, "MANY_CHUNKS", 64)
    some = cycles(9, 16, elements)
    assert some != found
    assert some == pytest.approx(found, rel=0.01)


def test_faster_wires_do_not_make_it_longer():
    """Large packets in flight would keep each other waiting at the memory."""
    found = [cycles(8, rate, phy_bytes=64) for rate in (40, 10, 4, 1)]
    assert found == sorted(found)


@pytest.mark.parametrize("link", [None, OnChipSpec()])
def test_sums_on_chip_take_half_the_time_where_memory_binds(link, monkeypatch):
    """A multiple of the bytes takes nearly that multiple of the cycles."""
    many = 4 * ELEMENTS
    found = {count: cycles(count, 64, phy_bytes=64, link=link) for count in (2, 3, 4)}
    assert 3.5 < cycles(3, 64, many, phy_bytes=64, link=link) / found[3] < 4
    monkeypatch.setattr(pricing, "adds_on_chip", lambda *_: False)
    for count, least in ((2, 1.5), (3, 2), (4, 2)):
        assert cycles(count, 64, phy_bytes=64, link=link) >= least * found[count]


def test_nodes_that_share_samples_take_as_long_as_planned():
    """The cycle model of all devices finds what the plan says."""
    cluster = chain_of(load_board("u280"), 1, 3)
    found = plan("digits-cnn", cluster, batch=12, strategy="data", array=(32, 64))
    made = found.plan
    programs = lower_plan(made, found.graph, found.cluster)
    cycles = predict_cluster(
        [part.instructions for part in programs.parts],
        made.cores,
        programs.placement.wires,
        memories=memory_specs(made),
        wires=wire_timings(made, found.cluster),
    ).cycles
    planned = made.predicted.minibatch_s * made.clk_hz
    assert planned == pytest.approx(cycles, rel=0.01)
