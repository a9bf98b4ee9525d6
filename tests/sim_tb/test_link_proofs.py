"""Proofs of a link's parts, and that they see faults."""

import pytest
from test_formal import twin

from fpgapipe.hw.rtl.link.link_pool import ReceiveChannel, SlotPool
from fpgapipe.hw.rtl.link.link_window import FillWindow, TransmissionWindow
from fpgapipe.hw.rtl.link.on_chip import OnChipTransmitter
from fpgapipe.sim_tb.formal.formal import ProofError, prove
from fpgapipe.sim_tb.formal.link_proofs import (
    channel_proof,
    fill_proof,
    on_chip_proof,
    pool_proof,
    transmission_proof,
)

PROOFS = {
    "credits": fill_proof,
    "credits of frames of a word": lambda: fill_proof(slots=2, frame_words=1),
    "transmissions": transmission_proof,
    "slots": pool_proof,
    "frames": channel_proof,
}


@pytest.mark.sim
@pytest.mark.parametrize("name", PROOFS)
def test_proves(name, tmp_path):
    prove(PROOFS[name](), tmp_path)


def believes_all_of_the_peer(window, m):
    with m.If(window.freed_valid):
        m.d.sync += window.peer_freed.eq(window.freed)


def sees_room_late(window, m):
    with m.If(window.complete):
        m.d.sync += window.room.eq(1)


def opens_too_far(window, m):
    m.d.comb += window.open.eq(1)


def resolves_what_was_not_given(window, m):
    with m.If(window.feedback_valid):
        m.d.sync += [window.resolving.eq(1), window.place.eq(window.seen)]


def gives_a_slot_twice(pool, m):
    with m.If(pool.take & (pool.level == 1)):
        m.d.sync += pool.consume.eq(pool.consume)


def drops_a_slot(pool, m):
    m.d.comb += pool.release_ready.eq(1)


def lets_a_frame_enter_twice(channel, m):
    m.d.comb += channel.entered.eq(channel.enter)


def frees_at_once(channel, m):
    m.d.comb += channel.head_ends.eq(channel.head_valid)


FAULTS = [
    (believes_all_of_the_peer, FillWindow, fill_proof, "no more frames than slots"),
    (sees_room_late, FillWindow, fill_proof, "a word enters where there is room"),
    (opens_too_far, TransmissionWindow, transmission_proof, "frames to be repeated fit"),
    (resolves_what_was_not_given, TransmissionWindow, transmission_proof, "resolves what was"),
    (gives_a_slot_twice, SlotPool, pool_proof, "its pointers are as far apart"),
    (drops_a_slot, SlotPool, pool_proof, "a slot is in one place"),
    (lets_a_frame_enter_twice, ReceiveChannel, channel_proof, "a frame"),
    (frees_at_once, ReceiveChannel, channel_proof, "a frame ends with its last word"),
]


@pytest.mark.sim
@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "component", "proof", "message"), FAULTS, ids=[f[0].__name__ for f in FAULTS]
)
def test_sees(change, component, proof, message, tmp_path):
    with pytest.raises(ProofError) as caught:
        prove(proof(twin(component, change)), tmp_path)
    assert message in str(caught.value).splitlines()[0]


@pytest.mark.sim
def test_proves_an_on_chip_link(tmp_path):
    prove(on_chip_proof(), tmp_path, depth=1, timeout_s=600)


def tells_what_left_again(transmitter, m):
    with m.If(transmitter.left[0]):
        m.d.sync += transmitter.owed[0].eq(transmitter.owed[0] + 1)


@pytest.mark.sim
@pytest.mark.slow
def test_sees_a_word_that_is_told_twice(tmp_path):
    faulty = twin(OnChipTransmitter, tells_what_left_again)
    with pytest.raises(ProofError, match="a word is in one place"):
        prove(on_chip_proof(faulty), tmp_path, depth=1, timeout_s=600)
