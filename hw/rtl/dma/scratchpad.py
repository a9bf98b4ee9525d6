"""Gateware of the scratchpad, :class:`~fpgapipe.hw.hls_models.spec.core_spec.ScratchpadSpec`.

Word `k` has the ``port_bytes`` bytes from address ``port_bytes * k``. A bank has one memory for the
even words and one for the odd words. As many bytes as a word has, from any even address, lie in one
word and the next one, which are never in the same memory, so one access to each memory reads or
writes all of them. The last word of a bank is followed by the first word of the next bank, and the
last word of all banks by the first word of all.

Where words are shorter than 64 bytes, an access of 64 bytes consists of several accesses of a word,
one after the other.
"""

from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.spec.core_spec import ScratchpadSpec
from fpgapipe.hw.rtl.lib.memory import BlockMemory, BlockMemorySpec
from fpgapipe.hw.rtl.lib.rotator import TurningChoice, TurningChoiceSpec, rotated, selected

READ_LATENCY = 4
"""Cycles from the acceptance of a read to its data."""

GRANULE_BITS = 16
"""Bits of a granule: a bit of a write's mask stands for an element of two bytes."""

GRANULES = 8 * WORD_BYTES // GRANULE_BITS
"""Granules of 64 bytes."""

_HALF = GRANULES // 2

_DATA_BITS = 8 * WORD_BYTES


def written(m, address, number, values, name):
    """Choose what a client writes, with its halves as `WritePort` wants them.

    Parameters
    ----------
    m : Module
        Module that the choice is added to.
    address, number : Value
        Address of the write, and number of the value that is written.
    values : list of Value
        Data or masks, a power of two of them.
    name : str
        Prefix of the name of the submodule.
    """
    bits = len(values[0])
    m.submodules[f"{name}_choice"] = choice = TurningChoice(
        TurningChoiceSpec(bits, bits, len(values))
    )
    m.d.comb += [
        choice.turn.eq(address[_HALF.bit_length()]),
        choice.numbers[0].eq(number),
        *(each.eq(value) for each, value in zip(choice.i, values, strict=True)),
    ]
    return choice.o


class ReadPort(wiring.Signature):
    """A port that reads 64 bytes from any even byte address, as its client sees it.

    A request is accepted when `valid` and `ready` are high. `READ_LATENCY` cycles later,
    `data_valid` is high for one cycle with the data; the client cannot delay them.

    Parameters
    ----------
    address_bits : int
        Width of a byte address, bits.

    Members
    -------
    address : Out(address_bits)
        Byte address, whose bit 0 is ignored.
    turn : Out(5)
        Granules by which the data is rotated; see `ScratchpadPorts` for the ports that do so.
    valid : Out(1)
    ready : In(1)
    data : In(512)
        Granule ``(i + turn) % 32``, of 16 bits each, has the bytes ``address + 2 * i`` and
        ``address + 2 * i + 1``.
    data_valid : In(1)
    """

    def __init__(self, address_bits):
        self.address_bits = address_bits
        super().__init__(
            {
                "address": Out(address_bits),
                "turn": Out(range(GRANULES)),
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

    A write is accepted when `valid` and `ready` are high. Every read that is accepted in a later
    cycle sees it, unless the port is aligned and `Scratchpad.held` says that it waits. Some of its
    bytes may be written earlier, while it waits to be accepted.

    Parameters
    ----------
    address_bits : int
        Width of a byte address, bits.

    Members
    -------
    address : Out(address_bits)
        Byte address, whose bit 0 is ignored.
    valid : Out(1)
    ready : In(1)
    data : Out(512)
    mask : Out(32)
        If ``mask[k]``, granule `k` of the data is written to the bytes ``address + 2 * i`` and
        ``address + 2 * i + 1``, where `k` is `i` or, if bit 5 of the address is set,
        ``(i + 16) % 32``. Then, the client exchanges the halves with `written`, which takes no LUTs
        of its own where it chooses what it writes.
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
    """A scratchpad and its ports.

    Parameters
    ----------
    memory : ScratchpadSpec
    num_reads, num_writes : int
        Numbers of ports.
    aligned_reads, aligned_writes : frozenset of int
        Ports whose addresses are multiples of 64; their lower address bits are ignored. Of the
        write ports, only the last one may be so.
    narrow_reads : frozenset of int
        Read ports that access a word of the memory at a time, which is in the lowest bits of
        `data`; all other ports access 64 bytes.
    turned_reads : frozenset of int
        Read ports that rotate their data by `turn`, of words of 64 bytes; others ignore it.
    """

    memory: ScratchpadSpec
    num_reads: int
    num_writes: int
    aligned_writes: frozenset[int] = frozenset()
    aligned_reads: frozenset[int] = frozenset()
    narrow_reads: frozenset[int] = frozenset()
    turned_reads: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for name in ("num_reads", "num_writes"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"scratchpad {name} must be at least 1, not {getattr(self, name)!r}"
                )
        for kind, number in (
            *(("aligned_reads", self.num_reads), ("aligned_writes", self.num_writes)),
            *(("narrow_reads", self.num_reads), ("turned_reads", self.num_reads)),
        ):
            for port in getattr(self, kind):
                if not 0 <= port < number:
                    raise ValueError(f"scratchpad {kind} must be in 0..{number - 1}, not {port!r}")
        for port in self.aligned_writes:
            if port != self.num_writes - 1:
                raise ValueError(
                    "scratchpad aligned_writes must be the last write port, "
                    f"{self.num_writes - 1}, not {port}"
                )
        for port in self.turned_reads:
            if port in self.aligned_reads or self.memory.port_bytes < WORD_BYTES:
                raise ValueError(
                    f"scratchpad turned_reads must be ports of 64 bytes for any address, not {port}"
                )


def _rows_of(spec):
    return spec.bank_bytes // (2 * spec.port_bytes)


class _Parts:
    """Accesses of a word at a time that make up an access of 64 bytes.

    The client's access waits while its parts are accepted, and is accepted with the last one.

    Attributes
    ----------
    address, valid, ready, data, mask, data_valid : Value
        A port that accesses a word; `mask` is for writes, `data_valid` for reads.
    """

    def __init__(self, m, port, name, num_bytes, aligned, reads):
        bits, parts = 8 * num_bytes, WORD_BYTES // num_bytes
        size = num_bytes.bit_length() - 1
        number = Signal(range(parts), name=f"{name}_number")
        self.valid, self.ready = port.valid, Signal(name=f"{name}_part_ready")
        self.address = Signal(len(port.address), name=f"{name}_part_address")
        top = port.address[6:] if aligned else port.address[size:]
        above = Cat(number, top) if aligned else (top + number)[: len(top)]
        accept = port.valid & self.ready
        m.d.comb += [
            self.address.eq(Cat(Const(0, size) if aligned else port.address[:size], above)),
            port.ready.eq(self.ready & (number == parts - 1)),
        ]
        with m.If(accept):
            m.d.sync += number.eq(number + 1)
        if not reads:
            place = number
            if not aligned:  # the halves may be exchanged
                place = number ^ (port.address[_HALF.bit_length()] << (len(number) - 1))
            self.data = port.data.word_select(place, bits)
            self.mask = port.mask.word_select(place, bits // GRANULE_BITS)
            return
        self.data = Signal(bits, name=f"{name}_part_data")
        self.data_valid = Signal(name=f"{name}_part_valid")
        come = Signal(range(parts), name=f"{name}_come")
        earlier = Signal(bits * (parts - 1), name=f"{name}_earlier", reset_less=True)
        m.d.comb += [
            port.data.eq(Cat(earlier, self.data)),
            port.data_valid.eq(self.data_valid & (come == parts - 1)),
        ]
        with m.If(self.data_valid):
            m.d.sync += [come.eq(come + 1), earlier.eq(Cat(earlier, self.data)[bits:])]


class Scratchpad(wiring.Component):
    """Gateware of :class:`~fpgapipe.hw.hls_models.spec.core_spec.ScratchpadSpec`, with its ports.

    The latency is `READ_LATENCY`. The throughput is one word per port and cycle as long as no two
    reads, and no two writes, need the same memory; reads and writes never wait for each other. An
    access of a word at a multiple of its size needs one memory, at any other address two. Of the
    accesses that need the same memory, that of the port with the lowest number is accepted. So port
    0 never waits for others, and later ports starve as long as earlier ports keep the memory busy.
    An access of 64 bytes is accepted with its last word.

    The aligned write port yields a cycle later: its write is accepted at once and waits in the
    port's register, from which it goes into its memory as soon as no other port's write does. So
    that port's `ready` depends on registers alone, and no write is later for it.

    Members
    -------
    reads : In(ReadPort(address_bits)).array(num_reads)
    writes : In(WritePort(address_bits)).array(num_writes)
        The ports. `ready` depends on `valid` and `address` of the ports of the same kind with the
        same or a lower number. A reset drops an access that was accepted in the cycle before it,
        or that waits in a register.
    held : Out(1)
        A write that the aligned port accepted in an earlier cycle waits; reads that are accepted
        in this cycle do not see it. Low where no write port is aligned.
    waits : Out(1)
        Event: an access waited in the cycle before, or a write of the aligned port waits.
    """

    def __init__(self, spec: ScratchpadPorts) -> None:
        self.spec = spec
        bits = spec.memory.address_bits
        super().__init__(
            {
                "reads": In(ReadPort(bits)).array(spec.num_reads),
                "writes": In(WritePort(bits)).array(spec.num_writes),
                "held": Out(1),
                "waits": Out(1),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        memory = self.spec.memory
        # memories[bank][0] has the even words, and memories[bank][1] the odd words.
        part = BlockMemorySpec(_rows_of(memory), 8 * memory.port_bytes, GRANULE_BITS)
        memories = [[BlockMemory(part) for _ in range(2)] for _ in range(memory.banks)]
        for bank, (even, odd) in enumerate(memories):
            m.submodules[f"bank{bank}_even"] = even
            m.submodules[f"bank{bank}_odd"] = odd
        reads, writes = self._words(m, "reads"), self._words(m, "writes")
        self._elaborate_reads(m, memories, reads)
        self._elaborate_writes(m, memories, writes)
        ports = [*reads, *writes[: len(writes) - len(self.spec.aligned_writes)]]
        waited = Signal()
        m.d.sync += waited.eq(Cat(port.valid & ~port.ready for port in ports).any())
        m.d.comb += self.waits.eq(waited | self.held)
        return m

    def _words(self, m, kind):
        """Return the ports of a kind as ports that access a word at a time."""
        size = self.spec.memory.port_bytes
        narrow = self.spec.narrow_reads if kind == "reads" else frozenset()
        aligned = getattr(self.spec, f"aligned_{kind}")
        return [
            port
            if size == WORD_BYTES or index in narrow
            else _Parts(m, port, f"{kind[:-1]}{index}", size, index in aligned, kind == "reads")
            for index, port in enumerate(getattr(self, kind))
        ]

    def _elaborate_reads(self, m, memories, ports):
        size = self.spec.memory.port_bytes
        granules, offset_bits = 8 * size // GRANULE_BITS, _offset_bits(size)
        places = [
            _Place(m, self.spec.memory, port, f"read{index}", index in self.spec.aligned_reads)
            for index, port in enumerate(ports)
        ]
        _grant(m, places)
        # For cycle 1, for each port and for even and odd words: the bank that the port uses, if it
        # uses one, and the row.
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
        for index, (port, place) in enumerate(zip(ports, places, strict=True)):
            # In cycle 1 the memories are read. In cycle 2 their words are there; each granule below
            # the offset is kept from the word after the addressed one, and each other granule from
            # the addressed word. In cycle 3 the granules are rotated into their order. Of more than
            # two banks, a word is kept of each two, and cycle 3 begins with the choice among these.
            name = f"read{index}"
            valid = Signal(4, name=f"{name}_valid")
            odd = Signal(name=f"{name}_odd", reset_less=True)
            m.d.sync += valid.eq(Cat(place.accept, valid))
            with m.If(place.accept):
                m.d.sync += odd.eq(place.odd)
            sides = Signal(1 if place.aligned else granules, name=f"{name}_sides")
            m.d.comb += sides.eq(odd.replicate(len(sides)))
            if not place.aligned:
                # The rotation back, for cycles 2 and 3, is 0 less the offset, plus the turn.
                offset = Signal(offset_bits, name=f"{name}_offset1", reset_less=True)
                back = [
                    Signal(offset_bits, name=f"{name}_back{n}", reset_less=True) for n in (2, 3)
                ]
                m.d.sync += offset.eq(place.offset)
                turn = Const(0, offset_bits)
                if index in self.spec.turned_reads:
                    turn = Signal(offset_bits, name=f"{name}_turn1", reset_less=True)
                    m.d.sync += turn.eq(port.turn)
                m.d.sync += Cat(back).eq(Cat((turn - offset)[:offset_bits], back))
                m.d.comb += sides.eq(odd.replicate(granules) ^ _below(offset, granules))
            words = [words.read_data for pair in memories for words in pair]
            # The memory that each granule comes from, or that all of them come from if aligned:
            # which one of two banks' memories, and which banks these are.
            sources, groups = [], []
            banks = [_encoded(used[index][side]) for side in range(2)]
            bits = (len(words) - 1).bit_length()
            for lane, side in enumerate(sides):
                source = Signal(min(bits, 2), name=f"{name}_source{lane}", reset_less=True)
                group = Signal(bits - len(source), name=f"{name}_group{lane}", reset_less=True)
                with m.If(valid[0]):
                    m.d.sync += Cat(source, group).eq(Cat(side, Mux(side, banks[1], banks[0])))
                sources.append(source)
                groups.append(group)
            lane_bits = 8 * size // len(sources)
            kept = []
            for number in range(1 << len(groups[0])):
                each = Signal(8 * size, name=f"{name}_kept{number}", reset_less=True)
                among = words[4 * number : 4 * number + 4]
                with m.If(valid[1]):
                    m.d.sync += each.eq(
                        Cat(
                            selected(source, [word.word_select(lane, lane_bits) for word in among])
                            for lane, source in enumerate(sources)
                        )
                    )
                kept.append(each)
            if place.aligned:
                group = Signal.like(groups[0], name=f"{name}_group", reset_less=True)
                with m.If(valid[1]):
                    m.d.sync += group.eq(groups[0])
                word = selected(group, kept)
            else:
                word, amount = kept[0], back[1]
                if len(kept) > 1:
                    choice = TurningChoice(TurningChoiceSpec(8 * size, lane_bits, len(kept)))
                    m.submodules[f"{name}_choice"] = choice
                    turns = back[0][-1]
                    numbers = [
                        Signal.like(group, name=f"{name}_number{lane}", reset_less=True)
                        for lane, group in enumerate(groups)
                    ]
                    turned = [*groups[granules // 2 :], *groups[: granules // 2]]
                    with m.If(valid[1]):
                        m.d.sync += [
                            number.eq(Mux(turns, other, group))
                            for number, group, other in zip(numbers, groups, turned, strict=True)
                        ]
                    m.d.comb += [
                        *(each.eq(word) for each, word in zip(choice.i, kept, strict=True)),
                        *(each.eq(n) for each, n in zip(choice.numbers, numbers, strict=True)),
                        choice.turn.eq(amount[-1]),
                    ]
                    word, amount = choice.o, amount[:-1]
                word = rotated(m, word, amount, GRANULE_BITS, f"{name}_turn")
            data = Signal(8 * size, name=f"{name}_data", reset_less=True)
            with m.If(valid[2]):
                m.d.sync += data.eq(word)
            m.d.comb += [port.data.eq(data), port.data_valid.eq(valid[3])]

    def _elaborate_writes(self, m, memories, ports):
        bits = 8 * self.spec.memory.port_bytes
        granules = bits // GRANULE_BITS
        places = [
            _Place(m, self.spec.memory, port, f"write{index}", index in self.spec.aligned_writes)
            for index, port in enumerate(ports)
        ]
        _grant(m, [place for place in places if not place.aligned])
        # A write is in its memory two cycles after it was accepted, just in time for a read that
        # was accepted one cycle later. In between, it is in registers of its port, and stays there
        # if it is that of the aligned port and another port's goes into the same memory. Of whole
        # words, the client has done the first stage of the rotation.
        turn_bits = min(_offset_bits(self.spec.memory.port_bytes), _HALF.bit_length() - 1)
        words, masks, rows = [], [], []
        selects: list[list[Signal]] = []
        for index, (port, place) in enumerate(zip(ports, places, strict=True)):
            name = f"write{index}"
            word = Signal(bits, name=f"{name}_word", reset_less=True)
            mask = [Signal(granules, name=f"{name}_mask{side}") for side in range(2)]
            held = [Signal.like(each, name_suffix="1", reset_less=True) for each in mask]
            row = [Signal.like(each, name_suffix="1", reset_less=True) for each in place.row]
            select = [Signal.like(each, name_suffix="1") for each in place.select]
            with m.If(~self.held if place.aligned else 1):
                m.d.sync += [select[side].eq(place.select[side]) for side in range(2)]
            arrived = port.data
            with m.If(place.accept):
                m.d.sync += [held[side].eq(mask[side]) for side in range(2)]
                m.d.sync += [row[side].eq(place.row[side]) for side in range(2)]
            if place.aligned:
                m.d.comb += [
                    *(mask[side].eq(port.mask) for side in range(2)),
                    self.held.eq(
                        Cat(
                            select[side][bank] & Cat(each[side][bank] for each in selects).any()
                            for side in range(2)
                            for bank in range(len(memories))
                        ).any()
                    ),
                    port.ready.eq(~self.held),
                ]
            else:
                amount = place.offset[:turn_bits]
                arrived = rotated(m, arrived, amount, GRANULE_BITS, f"{name}_turn")
                # After the rotation, the granules below the offset belong to the later word.
                turn = rotated(m, port.mask, amount, 1, f"{name}_mask_turn")
                later = Signal(granules, name=f"{name}_later")
                m.d.comb += [
                    later.eq(_below(place.offset, granules)),
                    mask[0].eq(turn & Mux(place.odd, later, ~later)),
                    mask[1].eq(turn & Mux(place.odd, ~later, later)),
                ]
            with m.If(place.accept):
                m.d.sync += word.eq(arrived)
            words.append(word)
            masks.append(held)
            rows.append(row)
            selects.append(select)
        for bank, pair in enumerate(memories):
            for side, memory in enumerate(pair):
                uses = [select[side][bank] for select in selects]
                write = Const(0)
                for place, use, mask in zip(places, uses, masks, strict=True):
                    goes = use & ~Cat(uses[:-1]).any() if place.aligned else use
                    write = write | Mux(goes, mask[side], 0)
                m.d.comb += [
                    memory.write.eq(write),
                    memory.write_row.eq(_first_of(uses, [row[side] for row in rows])),
                    memory.write_data.eq(_first_of(uses, words)),
                ]


class _Place:
    """Memories and rows of the access that a port offers.

    Attributes
    ----------
    accept : Signal
        The access is accepted.
    odd : Value
        Whether the access begins in an odd word.
    offset : Value
        Number of the granule in that word with which the access begins.
    row : list of Signal, [even, odd]
        Rows in the memories of even and of odd words.
    select : list of Signal, [even, odd]
        A bit for each bank: the access is accepted and uses this memory.
    """

    def __init__(self, m, spec, port, name, aligned=False):
        self.aligned = aligned
        self.port = port
        row_bits = (_rows_of(spec) - 1).bit_length()
        bank_bits = (spec.banks - 1).bit_length()
        size = spec.port_bytes
        low = size.bit_length() - 1
        word = port.address[low:]
        self.odd = word[0]
        self.offset = Const(0, _offset_bits(size)) if aligned else port.address[1:low]
        # A memory of even words has the word itself or the next one. The sum wraps after the last
        # bank.
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
    """Accept an access unless an earlier port offers one to the same memory, accepted or not."""
    for index, place in enumerate(places):
        waits = [other.port.valid & place.meets(other) for other in places[:index]]
        m.d.comb += place.port.ready.eq(~Cat(waits).any() if waits else 1)


def _offset_bits(num_bytes):
    """Bits of the number of a granule in a word of so many bytes."""
    return (8 * num_bytes // GRANULE_BITS - 1).bit_length()


def _below(offset, granules):
    """Return a mask of the granules of a word below an offset."""
    return ~(Const((1 << granules) - 1, granules) << offset)[:granules]


def _encoded(select):
    """Return the number of the bit that is set, or 0; there is a power of two of bits."""
    bits = (len(select) - 1).bit_length()
    return Cat(
        Cat(each for k, each in enumerate(select) if k >> bit & 1).any() for bit in range(bits)
    )


def _first_of(used, values):
    """Return the first value whose bit in `used` is set, or the last value."""
    chosen = values[-1]
    for use, value in zip(reversed(used[:-1]), reversed(values[:-1]), strict=True):
        chosen = Mux(use, value, chosen)
    return chosen
