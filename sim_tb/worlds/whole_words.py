"""A link's end whose words pass in parts, with ports for whole words around it."""

from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.spec.link import NUM_CHANNELS, LinkState
from fpgapipe.hw.hls_models.spec.on_chip import LinkEndSpec
from fpgapipe.hw.rtl.link.link_beats import word_layout
from fpgapipe.hw.rtl.link.on_chip import engine_class


class WholeWords(wiring.Component):
    """A `LinkEngine` with the same members, whose words are whole at any width of its own ports.

    A word is taken in the cycle in which its last part enters the engine, and is there in the cycle
    in which its last part is at the engine's output.
    """

    def __init__(self, spec: LinkEndSpec) -> None:
        self.spec = spec
        self.engine = engine_class(spec)(spec)
        words = stream.Signature(word_layout())
        members = dict(self.engine.signature.members.items())
        super().__init__(
            members | {"i": In(words).array(NUM_CHANNELS), "o": Out(words).array(NUM_CHANNELS)}
        )

    def elaborate(self, platform: Any) -> Any:  # noqa: D102
        m = Module()
        m.submodules.engine = engine = self.engine
        for name in ("tx", "rx"):
            wiring.connect(m, getattr(engine, name), wiring.flipped(getattr(self, name)))
        for name, member in engine.signature.members.items():
            if name in ("i", "o", "tx", "rx"):
                continue
            outer, inner = getattr(self, name), getattr(engine, name)
            pairs = zip(outer, inner, strict=True) if member.dimensions else [(outer, inner)]
            for mine, its in pairs:
                m.d.comb += its.eq(mine) if member.flow == In else mine.eq(its)
        ended = engine.state == LinkState.OFF  # the next session begins with whole words
        for number in range(NUM_CHANNELS):
            split_words(m, self.i[number], engine.i[number], ended)
            join_words(m, engine.o[number], self.o[number], ended)
        return m


def split_words(m: Any, word: Any, parts: Any, restart: Any = 0) -> None:
    """Send the words of a stream in parts; a word is taken with its last part."""
    size, part, at_end = _part(m, word, parts, restart)
    m.d.comb += [
        parts.valid.eq(word.valid),
        parts.payload.data.eq(word.payload.data.word_select(part, size)),
        parts.payload.last.eq(word.payload.last & at_end),
        word.ready.eq(parts.ready & at_end),
    ]


def join_words(m: Any, parts: Any, word: Any, restart: Any = 0) -> None:
    """Join parts to words; a word is there with its last part."""
    size, _, at_end = _part(m, word, parts, restart)
    earlier = Signal(len(word.payload.data))
    with m.If(parts.valid & parts.ready):
        m.d.sync += earlier.eq(Cat(earlier, parts.payload.data)[size:])
    m.d.comb += [
        word.valid.eq(parts.valid & at_end),
        word.payload.data.eq(Cat(earlier, parts.payload.data)[size:]),
        word.payload.last.eq(parts.payload.last),
        parts.ready.eq(~at_end | word.ready),
    ]


def _part(m: Any, word: Any, parts: Any, restart: Any) -> tuple[int, Any, Any]:
    """Return the bits of a part, the number of the part that moves next, and if it is the last."""
    size = len(parts.payload.data)
    count = len(word.payload.data) // size
    part = Signal(range(max(count, 2)))
    with m.If(restart):
        m.d.sync += part.eq(0)
    with m.Elif(parts.valid & parts.ready):
        m.d.sync += part.eq(part + 1 if count > 1 else 0)
    return size, part, part == count - 1
