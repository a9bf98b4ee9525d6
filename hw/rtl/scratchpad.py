"""Gateware of the scratchpad, :class:`~fpgapipe.hw.hls_models.core_spec.ScratchpadSpec`.

Word `k`, the 64 bytes from byte ``64 * k``, lies in its bank's memory of even words or in that of
odd words. The 64 bytes from any even address lie in a word and the one after it, which are never in
the same memory, so one access a memory gives or takes them all. After a bank's last word comes the
first of the next bank, after the last of all the first of all.
"""

from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.core_spec import ScratchpadSpec
from fpgapipe.hw.hls_models.isa import WORD_BYTES
from fpgapipe.hw.rtl.fp32 import shared
from fpgapipe.hw.rtl.memory import BlockMemory, BlockMemorySpec

READ_LATENCY = 4
"""Cycles from the one in which a read is accepted to the one that has its data."""

GRANULE_BITS = 16
"""What a write's mask counts: an element of two bytes."""

GRANULES = 8 * WORD_BYTES // GRANULE_BITS
"""Granules of a word."""

_DATA_BITS = 8 * WORD_BYTES


class ReadPort(wiring.Signature):
    """A port that reads 64 bytes from any even byte address, as its client sees it.

    A request moves when `valid` and `ready` are high; `READ_LATENCY` cycles later `data_valid` is
    high for a cycle with the data, for which there is no waiting.

    Parameters
    ----------
    address_bits : int
        Of a byte address.

    Members
    -------
    address : Out(address_bits)
        Bit 0 is taken for 0.
    valid : Out(1)
    ready : In(1)
    data : In(512)
        Bits ``16 * i`` and up are the bytes ``address + 2 * i`` and ``address + 2 * i + 1``.
    data_valid : In(1)
    """

    def __init__(self, address_bits):
        self.address_bits = address_bits
        super().__init__(
            {
                "address": Out(address_bits),
                "valid": Out(1),
                "ready": In(1),
                "data": In(_DATA_BITS),
                "data_valid": In(1),
            }
        )

    def __eq__(self, other):
        return type(self) is type(other) and self.address_bits == other.address_bits


class WritePort(wiring.Signature):
    """A port that writes up to 64 bytes to any even byte address, as its client sees it.

    A write moves when `valid` and `ready` are high; every read accepted in a later cycle sees it.

    Parameters
    ----------
    address_bits : int
        Of a byte address.

    Members
    -------
    address : Out(address_bits)
        Bit 0 is taken for 0.
    valid : Out(1)
    ready : In(1)
    data : Out(512)
    mask : Out(32)
        Bits ``16 * i`` and up of `data` go to byte ``address + 2 * i`` if ``mask[i]``.
    """

    def __init__(self, address_bits):
        self.address_bits = address_bits
        super().__init__(
            {
                "address": Out(address_bits),
                "valid": Out(1),
                "ready": In(1),
                "data": Out(_DATA_BITS),
                "mask": Out(GRANULES),
            }
        )

    def __eq__(self, other):
        return type(self) is type(other) and self.address_bits == other.address_bits


@dataclass(frozen=True)
class ScratchpadPorts:
    """A scratchpad and the ports it has.

    Parameters
    ----------
    memory : ScratchpadSpec
    num_reads, num_writes : int
    aligned_writes : frozenset of int
        Write ports whose addresses are multiples of 64 (the bits below are taken for 0).
    """

    memory: ScratchpadSpec
    num_reads: int
    num_writes: int
    aligned_writes: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for name in ("num_reads", "num_writes"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"scratchpad {name} must be at least 1, not {getattr(self, name)!r}"
                )
        for port in self.aligned_writes:
            if not 0 <= port < self.num_writes:
                raise ValueError(
                    f"scratchpad aligned_writes must be in 0..{self.num_writes - 1}, not {port!r}"
                )


def _rows_of(spec):
    return spec.bank_bytes // (2 * WORD_BYTES)


class WordCutter(wiring.Component):
    """Cuts a word out of two; a component of its own so that it is elaborated once.

    Latency 1 cycle. Simulators skip an expression whose register is not enabled.

    Members
    -------
    advance : In(1)
    pair : In(1024)
    offset : In(5)
        The granule that the word begins with.
    o : Out(512)
    """

    def __init__(self, spec: None = None) -> None:
        self.spec = spec
        super().__init__(
            {
                "advance": In(1),
                "pair": In(2 * _DATA_BITS, init=0),
                "offset": In((GRANULES - 1).bit_length()),
                "o": Out(_DATA_BITS),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        if platform is not None:
            return shared(self, "word_cutter", platform)

        m = Module()
        data = Signal(_DATA_BITS, reset_less=True)
        with m.If(self.advance):
            m.d.sync += data.eq(self.pair >> (self.offset << 4))
        m.d.comb += self.o.eq(data)
        return m


class Scratchpad(wiring.Component):
    """Gateware of :class:`~fpgapipe.hw.hls_models.core_spec.ScratchpadSpec`, with its ports.

    Latency `READ_LATENCY`, throughput one access a port and cycle as long as no two reads, and no
    two writes, need the same memory; reads and writes never disturb each other. An access from an
    address that is a multiple of 64 needs one memory, another one two. Of those that need the same
    one, that of the port with the lowest number is accepted: port 0 never waits, and later ones
    starve as long as earlier ones keep the memory busy.

    Members
    -------
    reads : In(ReadPort(address_bits)).array(num_reads)
    writes : In(WritePort(address_bits)).array(num_writes)
        `ready` depends on `valid` and `address` of this kind's ports of lower and equal number. A
        reset drops what was accepted in the cycle before it.
    waits : Out(1)
        Event: in the cycle before, an access waited.
    """

    def __init__(self, spec: ScratchpadPorts) -> None:
        self.spec = spec
        bits = spec.memory.address_bits
        super().__init__(
            {
                "reads": In(ReadPort(bits)).array(spec.num_reads),
                "writes": In(WritePort(bits)).array(spec.num_writes),
                "waits": Out(1),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        memory = self.spec.memory
        # memories[bank][0] has the even words, memories[bank][1] the odd ones.
        part = BlockMemorySpec(_rows_of(memory), _DATA_BITS, GRANULE_BITS)
        memories = [[BlockMemory(part) for _ in range(2)] for _ in range(memory.banks)]
        for bank, (even, odd) in enumerate(memories):
            m.submodules[f"bank{bank}_even"] = even
            m.submodules[f"bank{bank}_odd"] = odd
        self._elaborate_reads(m, memories)
        self._elaborate_writes(m, memories)
        ports = [*self.reads, *self.writes]
        m.d.sync += self.waits.eq(Cat(port.valid & ~port.ready for port in ports).any())
        return m

    def _elaborate_reads(self, m, memories):
        places = [
            _Place(m, self.spec.memory, port, f"read{index}")
            for index, port in enumerate(self.reads)
        ]
        _grant(m, places)
        # In cycle 1, of each port: which banks' memories of either side it uses, and their rows.
        used, rows = [], []
        for index, place in enumerate(places):
            used.append([Signal(len(memories), name=f"read{index}_use{side}") for side in range(2)])
            rows.append([Signal.like(row, reset_less=True, name_suffix="1") for row in place.row])
            m.d.sync += [used[-1][side].eq(place.select[side]) for side in range(2)]
            with m.If(place.accept):
                m.d.sync += [rows[-1][side].eq(place.row[side]) for side in range(2)]
        for bank, pair in enumerate(memories):
            for side, memory in enumerate(pair):
                uses = [use[side][bank] for use in used]
                m.d.comb += [
                    memory.read.eq(Cat(uses).any()),
                    memory.read_row.eq(_first_of(uses, [row[side] for row in rows])),
                ]
        for index, (port, place) in enumerate(zip(self.reads, places, strict=True)):
            # Cycle 1: the memories read. Cycle 2: the banks' words are there and are put in order.
            # Cycle 3: the 64 bytes are cut out.
            name = f"read{index}"
            chosen = [Signal(len(memories), name=f"{name}_chosen{side}") for side in range(2)]
            odd = [Signal(name=f"{name}_odd{n}", reset_less=True) for n in (1, 2)]
            offset = [Signal(5, name=f"{name}_offset{n}", reset_less=True) for n in (1, 2, 3)]
            valid = Signal(4, name=f"{name}_valid")
            m.submodules[f"{name}_cutter"] = cutter = WordCutter()
            m.d.sync += [
                valid.eq(Cat(place.accept, valid)),
                Cat(odd).eq(Cat(place.odd, odd)),
                Cat(offset).eq(Cat(place.offset, offset)),
                *(chosen[side].eq(used[index][side]) for side in range(2)),
            ]
            even_word, odd_word = (
                _first_of(list(chosen[side]), [words[side].read_data for words in memories])
                for side in range(2)
            )
            with m.If(valid[1]):
                with m.If(odd[1]):
                    m.d.sync += cutter.pair.eq(Cat(odd_word, even_word))
                with m.Else():
                    m.d.sync += cutter.pair.eq(Cat(even_word, odd_word))
            m.d.comb += [
                cutter.advance.eq(valid[2]),
                cutter.offset.eq(offset[2]),
                port.data.eq(cutter.o),
                port.data_valid.eq(valid[3]),
            ]

    def _elaborate_writes(self, m, memories):
        places = [
            _Place(m, self.spec.memory, port, f"write{index}", index in self.spec.aligned_writes)
            for index, port in enumerate(self.writes)
        ]
        _grant(m, places)
        words, masks = [], []
        for index, (port, place) in enumerate(zip(self.writes, places, strict=True)):
            word = Signal(_DATA_BITS, name=f"write{index}_word")
            mask = [Signal(GRANULES, name=f"write{index}_mask{side}") for side in range(2)]
            if place.aligned:
                m.d.comb += [
                    word.eq(port.data),
                    *(mask[side].eq(port.mask) for side in range(2)),
                ]
            else:
                # To the left, which is to the right by the rest of a full turn. Granules that
                # come below the offset belong to the later word.
                rest = Signal(5, name=f"write{index}_rest")
                turned = Signal(GRANULES, name=f"write{index}_turned")
                later = Signal(GRANULES, name=f"write{index}_later")
                m.d.comb += [
                    rest.eq(-place.offset),
                    later.eq(~(Const((1 << GRANULES) - 1, GRANULES) << place.offset)),
                    turned.eq(Cat(port.mask, port.mask) >> rest),
                    word.eq(Cat(port.data, port.data) >> (rest << 4)),
                    mask[0].eq(turned & Mux(place.odd, later, ~later)),
                    mask[1].eq(turned & Mux(place.odd, ~later, later)),
                ]
            words.append(word)
            masks.append(mask)
        for bank, pair in enumerate(memories):
            for side, memory in enumerate(pair):
                # A write is in its memory two cycles after it was accepted, as early as a read
                # accepted one cycle later looks there.
                name = f"bank{bank}_write{side}"
                mask = Signal(GRANULES, name=f"{name}_mask")
                data = Signal(_DATA_BITS, name=f"{name}_data", reset_less=True)
                row = Signal(len(memory.write_row), name=f"{name}_row", reset_less=True)
                m.d.sync += mask.eq(0)
                for index, place in reversed(list(enumerate(places))):
                    with m.If(place.select[side][bank]):
                        m.d.sync += [
                            mask.eq(masks[index][side]),
                            data.eq(words[index]),
                            row.eq(place.row[side]),
                        ]
                m.d.comb += [
                    memory.write.eq(mask),
                    memory.write_row.eq(row),
                    memory.write_data.eq(data),
                ]


class _Place:
    """Where the access goes that a port offers.

    Attributes
    ----------
    accept : Signal
        The access moves.
    odd : Value
        It begins in an odd word.
    offset : Value
        Granule of the word that it begins with.
    row : list of Signal, [even, odd]
    select : list of Signal, [even, odd]
        A bit a bank: the access moves and uses this memory.
    """

    def __init__(self, m, spec, port, name, aligned=False):
        self.aligned = aligned
        self.port = port
        row_bits = (_rows_of(spec) - 1).bit_length()
        bank_bits = (spec.banks - 1).bit_length()
        word = port.address[6:]
        self.odd = word[0]
        self.offset = Const(0, 5) if aligned else port.address[1:6]
        # An even memory has the word itself or the next one. The sum wraps at the last bank's end.
        places = [((word + 1) >> 1)[: row_bits + bank_bits], word[1:]]
        self.accept = Signal(name=f"{name}_accept")
        self.row = [Signal(row_bits, name=f"{name}_row{side}") for side in range(2)]
        self.select = [Signal(spec.banks, name=f"{name}_select{side}") for side in range(2)]
        self._bank = [Signal(bank_bits, name=f"{name}_bank{side}") for side in range(2)]
        self._uses = [Signal(name=f"{name}_uses{side}") for side in range(2)]
        m.d.comb += self.accept.eq(port.valid & port.ready)
        for side in range(2):
            use = self.accept & self._uses[side]
            m.d.comb += [
                Cat(self.row[side], self._bank[side]).eq(places[side]),
                self._uses[side].eq((self.odd == side) | self.offset.any()),
                self.select[side].eq(
                    Cat(use & (self._bank[side] == bank) for bank in range(spec.banks))
                ),
            ]

    def meets(self, other):
        """Whether both accesses need the same memory."""
        needs = [
            self._uses[side] & other._uses[side] & (self._bank[side] == other._bank[side])
            for side in range(2)
        ]
        return needs[0] | needs[1]


def _grant(m, places):
    """Accept an access unless an earlier port has one, accepted or not, in the same memory."""
    for index, place in enumerate(places):
        waits = [other.port.valid & place.meets(other) for other in places[:index]]
        m.d.comb += place.port.ready.eq(~Cat(waits).any() if waits else 1)


def _first_of(used, values):
    """The value whose bit in `used` is set; the last one if none of the others is."""
    chosen = values[-1]
    for use, value in zip(reversed(used[:-1]), reversed(values[:-1]), strict=True):
        chosen = Mux(use, value, chosen)
    return chosen
