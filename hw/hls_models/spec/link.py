"""Reliable links between devices: frames, sequence numbers, credits, replay (docs/links.md).

A link joins two ends, each with a transmitter and a receiver. Words of 64 bytes enter at one end in
one of three channels and leave at the other. Each word arrives exactly once and in the order of its
channel, whatever the wire loses, damages or repeats, as long as the wire does not change the order
of frames. `LinkEnd` in :mod:`fpgapipe.hw.hls_models.model.link_end` has all the rules; this module
defines what both ends must agree about, the layout of frames.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from fpgapipe.hw.hls_models.isa.fields import Field, Group
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES

LINK_VERSION = 1
"""Version of the frame format; ends of different versions do not join."""

NUM_CHANNELS = 3
"""Number of channels: activations forward, gradients backward, control."""

TRAILER_BYTES = 16
"""Bytes of the trailer that ends each frame."""

WINDOW = 32
"""Number of bits of `received`: transmissions that may await acknowledgement at a time."""

NUMBER_BITS = 8
SEQUENCE_BITS = 7
SESSION_BITS = 16
DELIVERED_BITS = 48


class Channel(IntEnum):
    """Purpose of each channel; the link treats all channels alike."""

    ACTIVATIONS = 0
    GRADIENTS = 1
    CONTROL = 2


class FrameKind(IntEnum):
    """Kind of a frame. Zero is not a kind, so that an idle wire is not taken for a frame."""

    DATA = 1
    CONTROL = 2
    HELLO = 3


class LinkState(IntEnum):
    """State of an end, as its STATUS register reports it."""

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

``session``: the lower bits of the sender's session. ``number``: the number of this transmission (in
DATA) or of the last one (in CONTROL); each transmission of a frame, also a repeated one, has the
next number. ``seen``: the highest number of a transmission that the sender of this trailer has
received, or knows to be lost; bit `i` of ``received`` says whether transmission ``seen - i`` has
arrived. ``channel``, ``sequence``, ``words`` (less one) and ``last`` (whether the last word ends a
packet) describe the frame's words and are 0 in CONTROL. ``freed``: for each channel, the sequence
number of the first frame whose buffer is not free again. ``probe`` asks the other end for an
answer."""

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

``session``: the sender's session. ``peer``: the session that the sender believes the receiver to be
in, 0 if it has heard nothing. The data of page 0 is `HELLO_CONFIG`; that of page ``1 + channel`` is
`HELLO_DELIVERED`."""

HELLO_CONFIG = Group(
    "hello config",
    (Field("version", 8), Field("digest", 32), Field("reserved", 16)),
)
"""Data of page 0: the version of the frame format and `LinkEngineSpec.digest`."""

HELLO_DELIVERED = Group(
    "hello delivered",
    (Field("words", DELIVERED_BITS), Field("is_known", 1), Field("session", 7)),
)
"""Data of the other pages, one page for each channel.

``words``: number of words of the channel that the sender delivered in its last session that was up.
``session``: the lower bits of that session. ``is_known``: whether any session of the sender has
ended since its device was reset; before that, the other two fields are not valid."""


@dataclass(frozen=True)
class LinkEngineSpec:
    """One end of a link.

    Parameters
    ----------
    phy_bytes : int
        Width of the stream to the PHY in bytes: 4, 8, 16, 32 or 64.
    frame_words : int
        Words of a full frame, a power of two in 1..32.
    slots : tuple of int
        For each channel, the number of frames that either end buffers: powers of two in 2..64. A
        sent frame keeps its slot until its buffer at the other end is known to be free again, which
        takes a round trip or more (docs/links.md).
    probe_cycles : int
        Cycles without news after which a waiting end asks the other one for an answer, 16 to 65535.
    port_bytes : int
        Bytes of a word that enter or leave the link in a cycle: 64, or as many as `phy_bytes`, 4, 8
        or 16. Words then pass in parts, the lowest bytes first, and an end takes far fewer LUTs.
        The wire has the same frames, so both kinds of end join.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    phy_bytes: int = 16
    frame_words: int = 16
    slots: tuple[int, ...] = (16, 16, 4)
    probe_cycles: int = 256
    port_bytes: int = WORD_BYTES

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
        narrow = self.phy_bytes if self.phy_bytes <= TRAILER_BYTES else WORD_BYTES
        if self.port_bytes not in (narrow, WORD_BYTES):
            raise ValueError(
                f"link port_bytes must be {WORD_BYTES} or its phy_bytes of at most "
                f"{TRAILER_BYTES}, not {self.port_bytes!r}"
            )

    @property
    def has_phy(self) -> bool:
        """Whether a PHY with a clock of its own is behind the link, which moves frames."""
        return True

    @property
    def parts(self) -> int:
        """Cycles in which a word enters or leaves."""
        return WORD_BYTES // self.port_bytes

    @property
    def frame_parts(self) -> int:
        """Parts of the words of a full frame."""
        return self.frame_words * self.parts

    @property
    def beat_bytes(self) -> int:
        """Width of the internal datapath; a narrower PHY takes more beats.

        It is at least a trailer, unless words pass in parts.
        """
        if self.port_bytes < WORD_BYTES:
            return self.port_bytes
        return max(self.phy_bytes, TRAILER_BYTES)

    @property
    def part_beats(self) -> int:
        """Beats of `beat_bytes` in a part of a word."""
        return self.port_bytes // self.beat_bytes

    @property
    def trailer_beats(self) -> int:
        """Beats of `beat_bytes` in which a trailer passes; it is alone in its last beat."""
        return -(-TRAILER_BYTES // self.beat_bytes)

    @property
    def overhead_bytes(self) -> int:
        """Bytes of a frame on the wire beside its words."""
        return TRAILER_BYTES

    @property
    def frame_bytes(self) -> int:
        """Bytes of a full frame on the wire."""
        return self.frame_words * WORD_BYTES + self.overhead_bytes

    @property
    def efficiency(self) -> float:
        """Share of the bytes of full frames that is payload."""
        return self.frame_words * WORD_BYTES / self.frame_bytes

    @property
    def digest(self) -> int:
        """32-bit checksum of the part of the configuration that both ends must share."""
        shape = (self.frame_words, *self.slots)
        return zlib.crc32(",".join(map(str, shape)).encode())


def crc_of(words: bytes, trailer: int) -> int:
    """CRC-32 (IEEE 802.3, as in zlib) of a frame's words and its trailer's first 12 bytes."""
    return zlib.crc32(trailer.to_bytes(TRAILER_BYTES - 4, "little"), zlib.crc32(words))


def encode_frame(group: Group, values: Mapping[str, Any], words: bytes = b"") -> bytes:
    """Encode a frame: its words, its trailer (`TRAILER` or `HELLO`) and its CRC.

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
    """A frame with a correct CRC.

    Attributes
    ----------
    kind : FrameKind
    fields : mapping
        Fields of `TRAILER` or `HELLO`.
    words : bytes
        The payload, a multiple of 64 bytes.
    """

    kind: FrameKind
    fields: Mapping[str, Any]
    words: bytes


def decode_frame(frame: bytes, spec: LinkEngineSpec) -> Frame | None:
    """Decode a frame, or return None if it is damaged.

    A frame is damaged if its CRC is wrong, its kind or channel does not exist, a reserved bit is 1,
    it is longer than a full frame, or its length is not what its trailer says.
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
