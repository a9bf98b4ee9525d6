"""The link engine: two ends, and a bad wire between them."""

import pytest
from core_cases import some_of
from test_formal import twin

from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.rtl.link import link, link_receive, link_transmit
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate
from fpgapipe.sim_tb.worlds.link_pair import LinkPair

TESTS = ("delivers_over_a_bad_wire", "wastes_no_cycle", "waits_for_room", "begins_sessions")

SMALL = LinkEngineSpec(16, 4, (2, 2, 2), 16)

NARROW = LinkEngineSpec(4, 4, (4, 4, 4), 64, port_bytes=4)


@pytest.mark.sim
@pytest.mark.parametrize(
    "spec",
    [
        SMALL,
        NARROW,
        *(
            pytest.param(spec, marks=pytest.mark.slow)
            for spec in (
                LinkEngineSpec(4, 4, (2, 4, 2), 100),
                LinkEngineSpec(8, 32, (2, 2, 4), 500),
                LinkEngineSpec(16),
                LinkEngineSpec(32, 2, (64, 2, 2), 50),
                LinkEngineSpec(64, 1, (4, 2, 8), 40),
                LinkEngineSpec(8, 8, (4, 2, 2), 60, port_bytes=8),
                LinkEngineSpec(16, 16, (4, 4, 2), 100, port_bytes=16),
                LinkEngineSpec(64),
            )
        ),
    ],
    ids=lambda spec: f"{spec.phy_bytes}-{spec.frame_words}-{spec.slots[0]}-{spec.port_bytes}",
)
def test_delivers(spec, tmp_path):
    assert simulate(LinkPair(spec), "tb_link_pair", tmp_path, seed=1).tests == TESTS


def takes_words_without_room(fill, m):
    m.d.sync += fill.room.eq(1)


def believes_what_is_damaged(verdict, m):
    m.d.sync += verdict.good.eq(1)


def forgets_what_is_lost(window, m):
    m.d.sync += window.level.eq(0)


def repeats_another_frame(window, m):
    m.d.comb += window.replay.channel.eq(0)


def has_one_slot_only(pool, m):
    m.d.comb += pool.slot.eq(0)


def frees_a_frame_at_its_first_word(channel, m):
    m.d.comb += channel.head_ends.eq(channel.head_valid)


def rests_between_frames(packer, m):
    m.d.comb += packer.job.ready.eq(~packer.busy)


def tells_no_news(receiver, m):
    m.d.comb += receiver.news.eq(0)


def stays_up(handshake, m):
    with m.If(handshake.up):
        m.d.sync += handshake.state.eq(handshake.state)


FAULTS = {
    "takes words without room": (link_transmit, "FillWindow", takes_words_without_room, 2),
    "believes what is damaged": (link_receive, "FrameVerdict", believes_what_is_damaged, 0),
    "forgets what is lost": (link_transmit, "TransmissionWindow", forgets_what_is_lost, 0),
    "repeats another frame": (link_transmit, "TransmissionWindow", repeats_another_frame, 0),
    "has one slot only": (link_receive, "SlotPool", has_one_slot_only, 0),
    "frees at once": (link_receive, "ReceiveChannel", frees_a_frame_at_its_first_word, 0),
    "rests between frames": (link_transmit, "FramePacker", rests_between_frames, 1),
    "tells no news": (link, "LinkReceiver", tells_no_news, 1),
    "stays up": (link, "LinkHandshake", stays_up, 3),
}
"""Where a fault is, and the test that has to see it."""


@pytest.mark.sim
@pytest.mark.parametrize("fault", some_of(FAULTS, kept=0))
def test_testbench_sees(fault, tmp_path, monkeypatch):
    module, name, change, test = FAULTS[fault]
    monkeypatch.setattr(module, name, twin(getattr(module, name), change))
    with pytest.raises(SimulationError) as caught:
        simulate(LinkPair(LinkEngineSpec(16, 4, (4, 4, 4), 16)), "tb_link_pair", tmp_path, seed=1)
    assert TESTS[test] in caught.value.failures


def frees_a_frame_at_its_last_word(channel, m):
    part_bits = len(channel.head_word) - len(channel.words)
    m.d.comb += channel.head_ends.eq(channel.head_word[part_bits:] == channel.words)


def ends_a_frame_within_a_word(fill, m):
    m.d.comb += fill.complete.eq(fill.take & (fill.last | fill.word[1:].all()))


FAULTS_OF_PARTS = {
    "frees at the last word": (link_receive, "ReceiveChannel", frees_a_frame_at_its_last_word),
    "ends a frame within a word": (link_transmit, "FillWindow", ends_a_frame_within_a_word),
}


@pytest.mark.sim
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS_OF_PARTS)
def test_testbench_sees_wrong_parts(fault, tmp_path, monkeypatch):
    module, name, change = FAULTS_OF_PARTS[fault]
    monkeypatch.setattr(module, name, twin(getattr(module, name), change))
    with pytest.raises(SimulationError) as caught:
        simulate(LinkPair(NARROW), "tb_link_pair", tmp_path, seed=1)
    assert "delivers_over_a_bad_wire" in caught.value.failures
