"""Model of what is between a link and Aurora, or pins: how beats are split and joined."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fpgapipe.hw.hls_models.spec.aurora import AuroraSpec
from fpgapipe.hw.hls_models.spec.link import TRAILER_BYTES
from fpgapipe.hw.hls_models.spec.pins import PinsSpec


class AuroraBeat(NamedTuple):
    """A beat of a stream.

    Attributes
    ----------
    data : bytes
        All bytes of the beat, valid or not.
    last : bool
        Whether it ends a frame.
    keep : int
        Mask of the valid bytes, the lowest bit for the first byte.
    """

    data: bytes
    last: bool
    keep: int


def sent(spec: AuroraSpec | PinsSpec, beats: Iterable[AuroraBeat]) -> Iterator[AuroraBeat]:
    """Beats that Aurora is given for beats of the link; all their bytes count as valid."""
    width = spec.lane_bytes
    ones = (1 << width) - 1
    for beat in beats:
        parts = spec.last_parts if beat.last else spec.parts
        for part in range(parts):
            yield AuroraBeat(
                beat.data[part * width : (part + 1) * width],
                beat.last and part == parts - 1,
                ones,
            )


def received(spec: AuroraSpec | PinsSpec, beats: Iterable[AuroraBeat]) -> Iterator[AuroraBeat]:
    """Beats that the link is given for beats of Aurora.

    The bytes of parts that did not come have no meaning and are zero here. A last beat of a wrong
    number of parts has no valid bytes, so that the link takes its frame for damaged.
    """
    ones = (1 << spec.phy_bytes) - 1
    parts: list[bytes] = []
    for beat in beats:
        parts.append(beat.data)
        if not beat.last and len(parts) < spec.parts:
            continue
        keep = ones
        if beat.last:
            is_whole = len(parts) == spec.last_parts
            keep = ((1 << TRAILER_BYTES) - 1) & ones if is_whole else 0
        yield AuroraBeat(b"".join(parts).ljust(spec.phy_bytes, b"\0"), beat.last, keep)
        parts = []
