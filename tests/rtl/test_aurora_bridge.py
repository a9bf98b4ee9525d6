"""The bridge between a link and Aurora against its model, in simulation with three clocks."""

import pytest

from fpgapipe.hw.hls_models.model.aurora import AuroraBeat, received, sent
from fpgapipe.hw.hls_models.spec.aurora import AuroraSpec, user_clock_hz
from fpgapipe.hw.rtl.link import aurora_bridge
from fpgapipe.hw.rtl.link.aurora_bridge import AuroraBridge
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate

TESTS = (
    "beats_of_the_link_are_split",
    "nothing_leaves_while_the_channel_is_down",
    "beats_of_aurora_are_joined",
    "aurora_never_waits",
    "resets_are_long_enough",
    "the_clock_of_aurora_ticks",
)
SPECS = [
    AuroraSpec(64, 4, reset_cycles=50),
    AuroraSpec(32, 4, reset_cycles=50),
    AuroraSpec(8, 1, reset_cycles=50, fifo_beats=8),
    AuroraSpec(64, 1, reset_cycles=50),
]


def test_model_by_hand():
    """Numbers worked out by hand: two lanes behind a link of 32 bytes."""
    spec = AuroraSpec(32, 2)
    assert (spec.lane_bytes, spec.parts, spec.last_parts) == (16, 2, 1)
    word, trailer = bytes(range(32)), bytes(range(16)) + bytes(16)
    beats = [AuroraBeat(word, False, 0xFFFFFFFF), AuroraBeat(trailer, True, 0xFFFF)]
    wire = list(sent(spec, beats))
    assert wire == [
        AuroraBeat(word[:16], False, 0xFFFF),
        AuroraBeat(word[16:], False, 0xFFFF),
        AuroraBeat(trailer[:16], True, 0xFFFF),
    ]
    assert list(received(spec, wire)) == beats
    # A lost beat makes a last beat of two parts, which no frame has.
    assert list(received(spec, wire[1:])) == [AuroraBeat(word[16:] + trailer[:16], True, 0)]


def test_clock_of_aurora():
    """PG074: 3.125 Gb/s have a period of 20.48 ns."""
    assert 1e9 / user_clock_hz(3.125e9) == pytest.approx(20.48)
    assert user_clock_hz(25.78125e9) == pytest.approx(402.83203125e6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((48, 4), "aurora phy_bytes must be 8, 16, 32 or 64, not 48"),
        ((64, 3), "aurora lanes must be 1, 2, 4 or 8, not 3"),
        ((16, 4), "aurora phy_bytes must be at least the 32 bytes of 4 lanes, not 16"),
        ((64, 4, 0), "aurora reset_cycles must be 1..2**32, not 0"),
        ((64, 4, 1, 5), "aurora fifo_beats must be 4, 8, 16, 32 or 64, not 5"),
    ],
)
def test_limits(arguments, message):
    with pytest.raises(ValueError, match=message.replace("*", r"\*")):
        AuroraSpec(*arguments)


@pytest.mark.sim
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.lanes}x{spec.phy_bytes}")
def test_gateware_matches_model(spec, tmp_path):
    assert simulate(AuroraBridge(spec), "phy.tb_aurora_bridge", tmp_path).tests == TESTS


def drops_the_end_of_a_frame(spec):
    return spec.parts


@pytest.mark.sim
def test_testbench_sees_wrong_parts(monkeypatch, tmp_path):
    """If a last beat is sent whole, Aurora gets a beat too many."""
    monkeypatch.setattr(AuroraSpec, "last_parts", property(drops_the_end_of_a_frame))
    component = AuroraBridge(AuroraSpec(64, 4, reset_cycles=50))
    with pytest.raises(SimulationError) as failure:
        simulate(component, "phy.tb_aurora_bridge", tmp_path)
    assert "beats_of_the_link_are_split" in failure.value.failures


@pytest.mark.sim
def test_testbench_sees_a_short_release(monkeypatch, tmp_path):
    """If both resets end together, the test of the resets fails."""
    monkeypatch.setattr(aurora_bridge, "RELEASE_CYCLES", 0)
    with pytest.raises(SimulationError) as failure:
        simulate(AuroraBridge(AuroraSpec(8, 1, reset_cycles=50)), "phy.tb_aurora_bridge", tmp_path)
    assert list(failure.value.failures) == ["resets_are_long_enough"]
