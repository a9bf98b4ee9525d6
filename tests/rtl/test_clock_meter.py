"""The counter of a PHY's clock against its model, and the frequency that its number means."""

import pytest

from fpgapipe.hw.hls_models.model.link_clock import ClockMeter as Model
from fpgapipe.hw.hls_models.spec.link_clock import METER_CYCLES, clock_ratio
from fpgapipe.hw.rtl.link import link_clock
from fpgapipe.hw.rtl.link.link_clock import ClockMeter
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate

TESTS = ("counts_as_the_model",)


def test_model_by_hand():
    """A clock of 402.8 MHz at a core of 300 MHz: a tick in each 11.916 cycles."""
    meter, phase, found = Model(), 0.0, []
    for _ in range(3 * METER_CYCLES):
        phase += 402.83203125 / 300 / 16
        meter.step(phase >= 1)
        phase %= 1
        found.append((meter.known, meter.ticks))
    assert found[METER_CYCLES - 2] == (False, 0)
    assert found[METER_CYCLES - 1] == (True, 1375)  # 16,384 / 11.916 = 1,375.0
    assert 300 * clock_ratio(found[-1][1]) == pytest.approx(402.83203125, rel=1e-3)
    assert clock_ratio(1024) == 1


@pytest.mark.sim
def test_gateware_matches_model(tmp_path):
    assert simulate(ClockMeter(), "phy.tb_clock_meter", tmp_path).tests == TESTS


@pytest.mark.sim
def test_testbench_sees_a_wrong_time(monkeypatch, tmp_path):
    """If the gateware counts for a cycle less, the model finds another number."""
    monkeypatch.setattr(link_clock, "METER_CYCLES", METER_CYCLES - 1)
    with pytest.raises(SimulationError) as failure:
        simulate(ClockMeter(), "phy.tb_clock_meter", tmp_path)
    assert "counts_as_the_model" in failure.value.failures
