"""The gateware between a link and plain pins against its model, in simulation with two clocks."""

import pytest

from fpgapipe.hw.hls_models.model.aurora import AuroraBeat, received, sent
from fpgapipe.hw.hls_models.spec.pins import PinsSpec
from fpgapipe.hw.rtl.link.pin_phy import PinPhy
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate

TESTS = (
    "bytes_of_the_link_go_out",
    "pins_change_when_the_clock_falls",
    "bytes_of_the_pins_are_joined",
    "the_clock_of_the_pins_ticks",
)


def test_model_by_hand():
    spec = PinsSpec(4)
    beats = [AuroraBeat(b"abcd", False, 0xF), AuroraBeat(b"efgh", True, 0xF)]
    wire = list(sent(spec, beats))
    assert b"".join(each.data for each in wire) == b"abcdefgh"
    assert [each.last for each in wire] == [False] * 7 + [True]
    assert list(received(spec, wire)) == beats
    # A byte that is lost leaves a last beat without valid bytes.
    assert list(received(spec, wire[1:]))[-1] == AuroraBeat(b"fgh\0", True, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((32,), "pins phy_bytes must be 4, 8 or 16, not 32"),
        ((4, 5), "pins fifo_bytes must be 4, 8, 16, 32 or 64, not 5"),
    ],
)
def test_limits(arguments, message):
    with pytest.raises(ValueError, match=message):
        PinsSpec(*arguments)


@pytest.mark.sim
@pytest.mark.parametrize("spec", [PinsSpec(4), PinsSpec(16, 4)], ids=lambda each: each.phy_bytes)
def test_gateware_matches_model(spec, tmp_path):
    assert simulate(PinPhy(spec), "phy.tb_pin_phy", tmp_path).tests == TESTS


@pytest.mark.sim
def test_testbench_sees_wrong_beats(monkeypatch, tmp_path):
    """If beats of three bytes are joined, the model finds others."""
    component = PinPhy(PinsSpec(4))
    monkeypatch.setattr(PinsSpec, "parts", property(lambda spec: 3))
    with pytest.raises(SimulationError) as failure:
        simulate(component, "phy.tb_pin_phy", tmp_path)
    assert "bytes_of_the_pins_are_joined" in failure.value.failures
