"""Links between cores of one FPGA: a word a cycle over wires that lose nothing (docs/links.md).

Such a link has the channels, words and sessions of :mod:`fpgapipe.hw.hls_models.spec.link`. Its
wires are registers, possibly on two dies, so there are no frames, no CRC and no replay. A beat
moves a word and what belongs to it, and reports how many words of each channel have left the
buffers of the end that sends the beat.
"""

import zlib
from dataclasses import dataclass
from typing import Final, Literal

from fpgapipe.hw.hls_models.isa.fields import Field, Group
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.spec.link import NUM_CHANNELS, LinkEngineSpec

ON_CHIP: Final = "on-chip"
"""Name of the protocol, and of a node's ports for such links."""

SIDE = Group(
    "side",
    (
        Field("is_word", 1),
        Field("is_hello", 1),
        Field("channel", 2),
        Field("last", 1),
        Field("reserved", 3),
        Group("freed", (Field("words", 8),), NUM_CHANNELS),
    ),
)
"""The bits of a beat behind its word.

``is_word``: whether the beat has a word, of channel ``channel``, that ends a packet if ``last``.
``is_hello``: whether the word's place has a HELLO instead. ``freed``: for each channel, how many
words have left the sender's buffer since its last beat."""

SIDE_BYTES = 4

ON_CHIP_BYTES = WORD_BYTES + SIDE_BYTES
"""Bytes of a beat."""


@dataclass(frozen=True)
class OnChipSpec:
    """One end of a link between two cores of one FPGA.

    Parameters
    ----------
    slots : tuple of int
        For each channel, the number of words that an end buffers: powers of two in 2..64. A word
        keeps its place until the other end knows that the word has left, which takes 8 cycles and
        twice the latency of the wires.
    protocol : str
        ``on-chip``, by which files tell this kind of link.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    slots: tuple[int, ...] = (32, 32, 32)
    protocol: Literal["on-chip"] = ON_CHIP

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", tuple(self.slots))
        if len(self.slots) != NUM_CHANNELS:
            raise ValueError(f"link slots must be of {NUM_CHANNELS} channels, not {self.slots!r}")
        for slots in self.slots:
            if not 2 <= slots <= 64 or slots & (slots - 1):
                raise ValueError(f"link slots must be powers of two in 2..64, not {self.slots!r}")

    @property
    def has_phy(self) -> bool:
        """Whether a PHY with a clock of its own is behind the link: there are only wires."""
        return False

    @property
    def phy_bytes(self) -> int:
        """Width of the streams to and from the other end in bytes."""
        return ON_CHIP_BYTES

    @property
    def port_bytes(self) -> int:
        """Bytes of a word that enter or leave the link in a cycle: all."""
        return WORD_BYTES

    @property
    def parts(self) -> int:
        """Cycles in which a word enters or leaves: 1."""
        return 1

    @property
    def frame_words(self) -> int:
        """Words that the link moves and buffers together: 1."""
        return 1

    @property
    def frame_parts(self) -> int:
        """Parts of the words that the link moves together: 1."""
        return 1

    @property
    def overhead_bytes(self) -> int:
        """Bytes beside a word that take time of the wires: none."""
        return 0

    @property
    def efficiency(self) -> float:
        """Share of the bytes that is payload."""
        return 1.0

    @property
    def digest(self) -> int:
        """32-bit checksum of the part of the configuration that both ends must share."""
        return zlib.crc32(",".join(map(str, (ON_CHIP, *self.slots))).encode())


LinkEndSpec = LinkEngineSpec | OnChipSpec
"""One end of a link of either kind."""
