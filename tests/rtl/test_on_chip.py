"""The on-chip link's engine: two ends, and registers between them."""

import pytest
from test_formal import twin

from fpgapipe.hw.hls_models.spec.on_chip import OnChipSpec
from fpgapipe.hw.rtl.link import link, on_chip
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate
from fpgapipe.sim_tb.worlds.link_pair import LinkPair

pytestmark = pytest.mark.sim

TESTS = ("delivers", "wastes_no_cycle", "waits_for_room", "begins_sessions")


@pytest.mark.parametrize("slots", [(32, 32, 16), (2, 64, 4)], ids=str)
def test_delivers(slots, tmp_path):
    assert simulate(LinkPair(OnChipSpec(slots)), "phy.tb_on_chip", tmp_path, seed=1).tests == TESTS


def sends_without_room(transmitter, m):
    m.d.sync += transmitter.room[0].eq(1)


def tells_what_left_twice(transmitter, m):
    m.d.comb += transmitter.o.payload.side.freed[1].words.eq(transmitter.left[1])


def opens_alone(handshake, m):
    m.d.comb += handshake.up.eq(handshake.peer != 0)


def takes_what_is_old(receiver, m):
    m.d.comb += receiver.peer_sends.eq(receiver.up | receiver.left.any())


FAULTS = {
    "sends without room": (on_chip, "OnChipTransmitter", sends_without_room, 2),
    "tells what left twice": (on_chip, "OnChipTransmitter", tells_what_left_twice, 0),
    "opens alone": (link, "LinkHandshake", opens_alone, 3),
    "takes what is not there": (on_chip, "OnChipReceiver", takes_what_is_old, 0),
}
"""Where a fault is, and the test that has to see it."""


@pytest.mark.parametrize("fault", FAULTS)
def test_testbench_sees(fault, tmp_path, monkeypatch):
    module, name, change, test = FAULTS[fault]
    monkeypatch.setattr(module, name, twin(getattr(module, name), change))
    with pytest.raises(SimulationError) as caught:
        simulate(LinkPair(OnChipSpec()), "phy.tb_on_chip", tmp_path, seed=1)
    assert TESTS[test] in caught.value.failures
