"""Words in the two kinds of ends of links, for the cycle model of several cores."""

from typing import NamedTuple

from fpgapipe.hw.hls_models.spec.on_chip import LinkEndSpec, OnChipSpec

ON_CHIP_CHUNK_WORDS = 8
"""Words of an on-chip link that the model moves together."""


class EndCycles(NamedTuple):
    """How words pass through the ends of a link, and the cycles that this takes.

    Attributes
    ----------
    chunk_words : int
        Words that move together in the model: those of a frame, or some of an on-chip link.
    cuts_through : bool
        Whether words go as they come, and room is counted in words. Otherwise a frame is sent when
        it is full, and room is counted in frames.
    transmit : int
        Cycles from the entry of a frame's last word to the frame's first beat on the wire.
    arrive : int
        Cycles from the end of a frame's last beat, at the receiving end, to the frame's first word.
    freed : int
        Cycles from the moment a frame's last word leaves the link to a beat that can report it.
    heard : int
        Cycles from the end of that beat, at the end that receives it, to the entry of a word that
        takes the room which it reports.
    """

    chunk_words: int
    cuts_through: bool
    transmit: int
    arrive: int
    freed: int
    heard: int


def end_cycles(link: LinkEndSpec) -> EndCycles:
    """How words pass through the ends of a link."""
    if isinstance(link, OnChipSpec):
        return EndCycles(min(ON_CHIP_CHUNK_WORDS, *link.slots), True, 0, 2, 1, 2)
    return EndCycles(link.frame_words, False, 7, 11, 5, 8)
