"""Reliable links between devices: frames, sequence numbers, credits, replay (docs/links.md).

A link joins two ends, each with a transmitter and a receiver. Words of 64 bytes enter at one end in
one of three channels and leave at the other, each exactly once and in the order of their channel,
whatever the wire between them loses, damages or repeats, as long as it does not change the order of
frames. All rules are those of `LinkEnd` in :mod:`fpgapipe.hw.hls_models.model.link_end`; here is
what both ends agree about: the shape of frames.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from fpgapipe.hw.hls_models.isa.fields import Field, Group
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES

LINK_VERSION = 1
"""Of frames; ends of different versions do not join."""

NUM_CHANNELS = 3
"""Features forward, gradients backward, control."""

TRAILER_BYTES = 16
"""What ends each frame."""

WINDOW = 32
"""Transmissions whose fate a transmitter may not know yet: the bits of `received`."""

NUMBER_BITS = 8
SEQUENCE_BITS = 7
SESSION_BITS = 16
DELIVERED_BITS = 48


class Channel(IntEnum):
    """What the channels are for; to the link they are equal."""

    ACTIVATIONS = 0
    GRADIENTS = 1
    CONTROL = 2


class FrameKind(IntEnum):
    """What a frame is. Zero is none, so that an empty wire is no frame."""

    DATA = 1
    CONTROL = 2
    HELLO = 3


class LinkState(IntEnum):
    """Of an end, as its STATUS register says."""

    OFF = 0
    HELLO = 1
    UP = 2
    PEER_RESET = 3
    MISMATCH = 4


TRAILER = Group(
    "trailer",
    (
        Field("kind", 2),
        Field("session", 8),
        Field("number", NUMBER_BITS),
        Field("seen", NUMBER_BITS),
        Field("received", WINDOW),
        Field("channel", 2),
        Field("sequence", SEQUENCE_BITS),
        Field("words", 5),
        Field("last", 1),
        Group("freed", (Field("sequence", SEQUENCE_BITS),), NUM_CHANNELS),
        Field("probe", 1),
        Field("reserved", 1),
    ),
)
"""The trailer of DATA and CONTROL frames, without its CRC.

``session``: the lower bits of the sender's session. ``number``: of this transmission (DATA) or of
the last one (CONTROL); each transmission of a frame, a repeated one too, has the next number.
``seen``: the highest number whose transmission the sender of this trailer has received, or knows to
be lost; bit `i` of ``received`` is whether ``seen - i`` has come. ``channel``, ``sequence``,
``words`` (less one) and ``last`` (whether the last word ends a packet) belong to the frame's words
and are 0 in CONTROL. ``freed``: for each channel, the sequence number of the first frame whose
buffer is not free again. ``probe`` asks for an answer."""

HELLO = Group(
    "hello",
    (
        Field("kind", 2),
        Field("page", 2),
        Field("session", SESSION_BITS),
        Field("peer", SESSION_BITS),
        Field("is_up", 1),
        Field("reserved", 3),
        Field("data", 56),
    ),
)
"""The trailer of HELLO frames, which have no words, without its CRC.

``session``: of its sender; ``peer``: what the sender takes for the receiver's, 0 if it has heard
nothing. Page 0 has `HELLO_CONFIG` as data; page ``1 + channel`` has `HELLO_DELIVERED`."""

HELLO_CONFIG = Group(
    "hello config",
    (Field("version", 8), Field("digest", 32), Field("reserved", 16)),
)
"""``digest`` is `LinkEngineSpec.digest`."""

HELLO_DELIVERED = Group(
    "hello delivered",
    (Field("words", DELIVERED_BITS), Field("is_known", 1), Field("session", 7)),
)
"""Words of a channel that the sender delivered in its last session that was up, whose lower bits
are ``session``; known if a session of it ended since the sender's device was reset."""


@dataclass(frozen=True)
class LinkEngineSpec:
    """One end of a link.

    Parameters
    ----------
    phy_bytes : int
        Width of the stream to the PHY: 4, 8, 16, 32 or 64.
    frame_words : int
        Words of a full frame, a power of two in 1..32.
    slots : tuple of int
        For each channel, frames that are buffered at either end: powers of two in 2..64. They hold
        what is under way until it is known to be free at the other end, a round trip and more
        (docs/links.md).
    probe_cycles : int
        After so many cycles without news an end that waits asks for some, 16 to 65535.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    phy_bytes: int = 16
    frame_words: int = 16
    slots: tuple[int, ...] = (16, 16, 4)
    probe_cycles: int = 256

    def __post_init__(self) -> None:
        if self.phy_bytes not in (4, 8, 16, 32, 64):
            raise ValueError(f"link phy_bytes must be 4, 8, 16, 32 or 64, not {self.phy_bytes!r}")
        if not 1 <= self.frame_words <= 32 or self.frame_words & (self.frame_words - 1):
            raise ValueError(
                f"link frame_words must be a power of two in 1..32, not {self.frame_words!r}"
            )
        if len(self.slots) != NUM_CHANNELS:
            raise ValueError(f"link slots must be of {NUM_CHANNELS} channels, not {self.slots!r}")
        for slots in self.slots:
            if not 2 <= slots <= 64 or slots & (slots - 1):
                raise ValueError(f"link slots must be powers of two in 2..64, not {self.slots!r}")
        if not 16 <= self.probe_cycles < 1 << 16:
            raise ValueError(f"link probe_cycles must be in 16..65535, not {self.probe_cycles!r}")

    @property
    def beat_bytes(self) -> int:
        """Width inside, which a trailer fits in; narrower wires take several beats for one."""
        return max(self.phy_bytes, TRAILER_BYTES)

    @property
    def word_beats(self) -> int:
        """Beats of `beat_bytes` in a word."""
        return WORD_BYTES // self.beat_bytes

    @property
    def frame_bytes(self) -> int:
        """Bytes of a full frame on the wire."""
        return self.frame_words * WORD_BYTES + TRAILER_BYTES

    @property
    def efficiency(self) -> float:
        """Payload's share of an error-free saturated wire, by bytes."""
        return self.frame_words * WORD_BYTES / self.frame_bytes

    @property
    def digest(self) -> int:
        """What the ends' configurations have to agree in, as a number of 32 bits."""
        shape = (self.frame_words, *self.slots)
        return zlib.crc32(",".join(map(str, shape)).encode())


def crc_of(words: bytes, trailer: int) -> int:
    """CRC-32 (IEEE 802.3, as zlib has it) of a frame's words and its trailer's first 12 bytes."""
    return zlib.crc32(trailer.to_bytes(TRAILER_BYTES - 4, "little"), zlib.crc32(words))


def encode_frame(group: Group, values: Mapping[str, Any], words: bytes = b"") -> bytes:
    """Encode a frame: its words, its trailer (`TRAILER` or `HELLO`), its CRC.

    Raises
    ------
    ValueError
        If a field is missing or unknown, or a number does not fit its field.
    """
    trailer = group.pack(values)
    body = words + trailer.to_bytes(TRAILER_BYTES - 4, "little")
    return body + crc_of(words, trailer).to_bytes(4, "little")


@dataclass(frozen=True)
class Frame:
    """A frame whose CRC is right.

    Attributes
    ----------
    kind : FrameKind
    fields : mapping
        Of `TRAILER` or `HELLO`.
    words : bytes
        A multiple of 64.
    """

    kind: FrameKind
    fields: Mapping[str, Any]
    words: bytes


def decode_frame(frame: bytes, spec: LinkEngineSpec) -> Frame | None:
    """Decode a frame; None if it is damaged.

    That is so if its CRC is wrong, its kind is none, a reserved bit is 1, or its length is not what
    its trailer says.
    """
    size = len(frame) - TRAILER_BYTES
    if size < 0 or size % WORD_BYTES:
        return None
    words, trailer = frame[:size], int.from_bytes(frame[size : size + 12], "little")
    if crc_of(words, trailer) != int.from_bytes(frame[size + 12 :], "little") or not trailer & 3:
        return None
    kind = FrameKind(trailer & 3)
    fields = (HELLO if kind is FrameKind.HELLO else TRAILER).unpack(trailer)
    num_words = fields["words"] + 1 if kind is FrameKind.DATA else 0
    if fields["reserved"] or num_words > spec.frame_words or size != num_words * WORD_BYTES:
        return None
    if kind is not FrameKind.HELLO and fields["channel"] >= NUM_CHANNELS:
        return None
    return Frame(kind, fields, words)
