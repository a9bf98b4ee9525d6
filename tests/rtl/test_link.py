"""The link engine against its model as its peer, and against itself over wires with all faults."""

import json
from dataclasses import replace

import pytest

from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec, LinkState
from fpgapipe.hw.rtl.link import link
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate
from fpgapipe.sim_tb.native.native import DeviceError
from fpgapipe.sim_tb.native.phy import WireSpec
from fpgapipe.sim_tb.worlds.link_soak import Soak, soak
from fpgapipe.sim_tb.worlds.link_top import LinkTop
from fpgapipe.sim_tb.worlds.link_world import (
    LinkWorld,
    Traffic,
    are_drained,
    are_joined,
    link_library,
)

TESTS = (
    "words_pass_over_bad_wires",
    "lost_frames_come_again",
    "limits_hold",
    "sessions_begin_and_end",
    "others_are_refused",
    "everything_was_met",
)
SPEC = LinkEngineSpec(64, 2, (16, 32, 4), 60)
# As `fpgapipe bench link` has it, so that it is compiled once.
NARROW, WIDE = (LinkEngineSpec(phy_bytes, slots=(32, 32, 8)) for phy_bytes in (16, 64))

pytestmark = pytest.mark.sim


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        replace(SPEC, phy_bytes=4, port_bytes=4),
        *(
            pytest.param(
                replace(SPEC, phy_bytes=phy_bytes, port_bytes=port_bytes), marks=pytest.mark.slow
            )
            for phy_bytes, port_bytes in ((4, 64), (8, 64), (16, 64), (32, 64), (8, 8), (16, 16))
        ),
    ],
    ids=lambda spec: f"{spec.phy_bytes}-{spec.port_bytes}",
)
def test_gateware_matches_model(spec, tmp_path):
    assert simulate(LinkTop(spec), "tb_link", tmp_path).tests == TESTS


def believes_who_began_anew(handshake, m):
    with m.If(handshake.up & handshake.hello_valid & (handshake.hello.session == handshake.peer)):
        m.d.sync += handshake.state.eq(LinkState.UP)


def tells_a_session_that_stopped(handshake, m):
    m.d.comb += handshake.next_hello.peer.eq(handshake.peer)


def tells_no_session_of_its_counts(handshake, m):
    m.d.comb += handshake.next_hello.data[-7:].eq(0)


def joins_anybody(handshake, m):
    with m.If(handshake.hello_valid & (handshake.state == LinkState.HELLO)):
        m.d.sync += handshake.state.eq(LinkState.HELLO)


FAULTS = {
    "believes who began anew": (believes_who_began_anew, 3),
    "tells a session that stopped": (tells_a_session_that_stopped, 3),
    "tells no session of its counts": (tells_no_session_of_its_counts, 3),
    "joins anybody": (joins_anybody, 4),
}
"""Faults of sessions, and the test that has to see each; test_link_engine.py has others."""


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_testbench_sees(fault, tmp_path, monkeypatch):
    change, test = FAULTS[fault]

    class Faulty(link.LinkHandshake):
        def elaborate(self, platform):
            m = super().elaborate(platform)
            change(self, m)
            return m

    monkeypatch.setattr(link, "LinkHandshake", Faulty)
    with pytest.raises(SimulationError) as caught:
        simulate(LinkTop(SPEC), "tb_link", tmp_path)
    assert TESTS[test] in caught.value.failures


def check_soak(found: Soak):
    """Nothing was missed that was to be met."""
    assert set(found.states) == {"HELLO", "UP", "PEER_RESET"}
    assert found.reports > 30
    assert found.drains > 10
    assert all(found.events.values())
    assert all(found.faults.values())


@pytest.fixture(scope="module")
def library():
    return link_library(NARROW)


def test_soak(library):
    found = sum((soak(NARROW, 50_000, seed, library=library) for seed in range(10)), Soak())
    assert found.words >= 500_000
    check_soak(found)


@pytest.mark.slow
@pytest.mark.parametrize("spec", [NARROW, WIDE], ids=lambda spec: str(spec.phy_bytes))
def test_long_soak(spec):
    library = link_library(spec)
    found = sum((soak(spec, 250_000, seed, library=library) for seed in range(100, 120)), Soak())
    assert found.words >= 5_000_000
    check_soak(found)


def test_a_wrong_word_is_seen(library):
    """The sinks do look: at each word, and at where packets end."""
    wire = WireSpec(NARROW.phy_bytes, 16)
    usual = Traffic(packet_words=(4, 4, 4), words=(20, 20, 20))
    other_packets = Traffic(packet_words=(4, 5, 4), words=(20, 20, 20))
    with LinkWorld(NARROW, (wire, wire), traffic=usual, library=library) as world:
        world.run_until(lambda both: are_joined(both) and are_drained(both))
    with (
        LinkWorld(NARROW, (wire, wire), traffic=(usual, other_packets), library=library) as world,
        pytest.raises(DeviceError, match=r"channel 1, session .*: word .* has the wrong last"),
    ):
        world.run_until(are_drained)
    with LinkWorld(NARROW, (wire, wire), traffic=Traffic((4, 4, 4)), library=library) as world:
        world.run_until(are_joined)
        world.run(world.window_cycles)
        world.seed += 1  # what is under way is of the old one
        world.set_traffic(Traffic((4, 4, 4)))
        with pytest.raises(DeviceError, match=r"end .: .*channel ., .*differs in byte 0"):
            world.run(1000)


def test_command_prints_what_it_measured(cli):
    code, out, err = cli("bench", "link", "--cycles", "4000", "--json")
    assert code == 0, err  # which may say that a simulator was compiled
    found = json.loads(out)
    assert found["efficiency_limit"] == 1024 / 1040
    assert 0.97 < found["efficiency_both"] <= found["efficiency_limit"]
    assert 0.97 < found["efficiency_one"] <= found["efficiency_limit"]
    assert 128 + 10 < found["word_cycles"] < 128 + 60
    assert found["events"]["crc_error"] == found["events"]["replay"] == 0


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--slots", "32,32", "slots must be three whole numbers"),
        ("--bytes-per-cycle", "fast", "and bytes per cycle a number, such as 16 or 125/3, not"),
        ("--bit-error-rate", "1", "1.0 is not in the range 0<=x<1."),
    ],
)
def test_command_refuses(cli, option, value, message):
    code, out, err = cli("bench", "link", option, value)
    assert (code, out) == (2, "")
    assert message in err
