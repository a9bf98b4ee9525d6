"""Packets between simulated cores of one FPGA take the cycles that the cycle model says."""

from dataclasses import replace
from pathlib import Path

import pytest

from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec

BENCH = Path(__file__).parents[2] / "bench"

pytestmark = pytest.mark.sim


@pytest.mark.parametrize(
    ("memory_ports", "bytes_per_cycle", "expected"),
    [(1, 128, 64.0), (1, 44, 44.0), (2, 88, 64.0), (2, 60, 60.0)],
)
def test_a_packet_passes_as_fast_as_wire_and_memory(
    memory_ports, bytes_per_cycle, expected, monkeypatch
):
    monkeypatch.syspath_prepend(str(BENCH))
    from bench_on_chip import CORE, packet_cycles, through_memory

    core = replace(CORE, memory_ports=memory_ports)
    memory = MemorySpec(bytes_per_cycle, 42)
    small, large = 1 << 14, 1 << 16
    cycles = [packet_cycles(core, memory, size, through_memory) for size in (small, large)]
    rates = [(large - small) / (cycles[1][each] - cycles[0][each]) for each in (0, 1)]
    assert rates == pytest.approx([expected, expected], rel=0.01)
    for found, model in cycles:  # commands to both devices, and a block at one of two ports
        assert abs(found - model) <= 40


def test_packets_between_scratchpads(monkeypatch):
    """Each has the engines to itself; no word is lost."""
    monkeypatch.syspath_prepend(str(BENCH))
    from bench_on_chip import CORE, packet_cycles, through_scratchpad

    rtl, model = packet_cycles(CORE, MemorySpec(), 1 << 17, through_scratchpad)
    assert model == pytest.approx(rtl, abs=5)
