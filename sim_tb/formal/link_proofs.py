"""Proofs of a link's parts: credits, transmission window, pool of slots, order of frames."""

from typing import Any

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from fpgapipe.hw.hls_models.spec.link import NUM_CHANNELS, NUMBER_BITS, SEQUENCE_BITS, WINDOW
from fpgapipe.hw.hls_models.spec.on_chip import OnChipSpec
from fpgapipe.hw.rtl.lib.axi import Slice
from fpgapipe.hw.rtl.link.link_pool import ReceiveChannel, SlotPool
from fpgapipe.hw.rtl.link.link_window import FillWindow, TransmissionWindow
from fpgapipe.hw.rtl.link.on_chip import BEAT, OnChipReceiver, OnChipTransmitter


class FillProof(wiring.Component):
    """Proof that no frame is begun unless its slot at the peer is free, whatever the peer says."""

    def __init__(self, window: Any, slots: int) -> None:
        self._window, self._slots = window, slots
        super().__init__(
            {"take": In(1), "last": In(1), "freed_valid": In(1), "freed": In(SEQUENCE_BITS)}
        )

    def elaborate(self, platform: Any) -> Any:  # noqa: D102
        m = Module()
        m.submodules.window = window = self._window
        used, room, before = Signal(SEQUENCE_BITS), Signal(), Signal(SEQUENCE_BITS)
        m.d.comb += [
            window.take.eq(self.take & window.room),
            window.last.eq(self.last),
            window.freed_valid.eq(self.freed_valid),
            window.freed.eq(self.freed),
            used.eq(window.fill - window.peer_freed),
            Assert(used <= self._slots, "no more frames than slots"),
            Assert(~window.room | (used < self._slots), "a word enters where there is room"),
        ]
        # If there is room, the signal `room` of the window rises at most one cycle later.
        m.d.sync += [room.eq((used < self._slots) & ~window.complete), before.eq(window.fill)]
        m.d.comb += [
            Assert(~room | window.room, "room is used"),
            Assert(~room | (window.fill == before), "a frame is complete by its last word"),
        ]
        return m


class TransmissionProof(wiring.Component):
    """Proof that numbers and frames to be repeated fit in their tables, whatever the feedback is.

    Frames that are queued for repetition are sent before new ones.
    """

    def __init__(self, window: Any) -> None:
        self._window = window
        super().__init__(
            {
                "start": In(1),
                "frame": In(2 + SEQUENCE_BITS),
                "feedback_valid": In(1),
                "seen": In(NUMBER_BITS),
                "received": In(WINDOW),
            }
        )

    def elaborate(self, platform: Any) -> Any:  # noqa: D102
        m = Module()
        m.submodules.window = window = self._window
        starts = Signal()
        m.d.comb += [
            starts.eq(self.start & window.open),
            window.start.eq(starts),
            window.replay_take.eq(starts & window.replay_valid),
            window.frame.eq(Mux(window.replay_valid, window.replay.as_value(), self.frame)),
            window.feedback_valid.eq(self.feedback_valid),
            window.seen.eq(self.seen),
            window.received.eq(self.received),
            Assert(window.count <= WINDOW, "no more numbers are open than the window has"),
            Assert(window.count + window.level <= WINDOW, "frames to be repeated fit their queue"),
            Assert(
                (window.number - window.base)[:NUMBER_BITS] == window.count,
                "numbers are given and resolved in order",
            ),
            Assert(
                ~window.resolving | (window.place < window.count), "resolves what was given only"
            ),
        ]
        return m


class PoolProof(wiring.Component):
    """Proof that each slot is in one place: never used, in the pool's memory, or outside.

    It assumes that a slot that was taken is given back only once.
    """

    def __init__(self, pool: Any, num_slots: int) -> None:
        self._pool, self._num_slots = pool, num_slots
        bits = (num_slots - 1).bit_length()
        super().__init__(
            {
                "take": In(1),
                "give": In(1),
                "given": In(bits),
                "release": In(1),
                "released": In(bits),
            }
        )

    def elaborate(self, platform: Any) -> Any:  # noqa: D102
        m = Module()
        m.submodules.pool = pool = self._pool
        places = 1 << pool.bits
        outside, takes, gives, releases = (
            Signal(places, name=name) for name in ("outside", "takes", "gives", "releases")
        )
        m.d.comb += [
            pool.take.eq(self.take & pool.valid),
            pool.give.eq(self.give & outside.bit_select(self.given, 1)),
            pool.given.eq(self.given),
            pool.release_valid.eq(
                self.release
                & outside.bit_select(self.released, 1)
                & ~(pool.give & (self.given == self.released))
            ),
            pool.released.eq(self.released),
            takes.eq(Mux(pool.take, 1 << pool.slot, 0)),
            gives.eq(Mux(pool.give, 1 << self.given, 0)),
            releases.eq(Mux(pool.release_valid & pool.release_ready, 1 << self.released, 0)),
            Assert((outside & takes) == 0, "what is taken was free"),
            Assert(pool.fresh <= self._num_slots, "there are no more slots"),
            Assert(outside[self._num_slots :] == 0, "only slots are taken"),
            Assert(
                (pool.consume + pool.level)[: pool.bits] == pool.produce,
                "its pointers are as far apart as it holds slots",
            ),
            Assert(pool.level <= self._num_slots, "the memory is large enough"),
        ]
        m.d.sync += outside.eq((outside | takes) & ~gives & ~releases)
        inside = []
        for place in range(places):
            port = pool.memory.read_port(domain="comb")
            is_inside = Signal(name=f"inside{place}")
            behind = Signal(pool.bits, name=f"behind{place}")
            m.d.comb += [
                port.addr.eq(place),
                behind.eq(place - pool.consume),
                is_inside.eq(behind < pool.level),
                Assert(~is_inside | (port.data < self._num_slots), "only slots come back"),
            ]
            inside.append((is_inside, port.data))
        for slot in range(self._num_slots):
            times = sum(is_inside & (value == slot) for is_inside, value in inside)
            m.d.comb += Assert(
                times + outside[slot] + (pool.fresh <= slot) == 1, "a slot is in one place"
            )
        return m


class ChannelProof(wiring.Component):
    """Proof that each frame that entered is delivered in order, from its slot, with all words."""

    def __init__(self, channel: Any, slots: int) -> None:
        self._channel, self._slots = channel, slots
        super().__init__(
            {
                "enter": In(1),
                "sequence": In(SEQUENCE_BITS),
                "frame": In(len(channel.frame.as_value())),
                "take": In(1),
                "choose": In(1),
            }
        )

    def elaborate(self, platform: Any) -> Any:  # noqa: D102
        m = Module()
        m.submodules.channel = channel = self._channel
        bits = self._slots.bit_length() - 1
        inside, seen, frees = Signal(), Signal(), Signal()
        sequence, distance = Signal(SEQUENCE_BITS), Signal(SEQUENCE_BITS)
        frame = Signal(channel.frame.shape())
        port = channel.frames.read_port(domain="comb")
        m.d.comb += [
            channel.enter.eq(self.enter),
            channel.sequence.eq(self.sequence),
            channel.frame.eq(self.frame),
            channel.take.eq(self.take & channel.head_valid),
            frees.eq(channel.take & channel.head_ends),
            port.addr.eq(sequence),
            distance.eq(sequence - channel.freed),
        ]
        # The stimulus `choose` selects the frame that is tracked, which may be any frame.
        with m.If(channel.entered & self.choose & ~seen):
            m.d.sync += [inside.eq(1), seen.eq(1), sequence.eq(self.sequence)]
            m.d.sync += frame.eq(self.frame)
        with m.Elif(frees & (channel.freed == sequence)):
            m.d.sync += inside.eq(0)
        with m.If(inside):
            m.d.comb += [
                Assert(distance < self._slots, "a frame is kept until it is delivered"),
                Assert(channel.present.bit_select(sequence[:bits], 1), "a frame is known"),
                Assert(port.data.as_value() == frame.as_value(), "a frame keeps its slot"),
                Assert(~(channel.entered & (self.sequence == sequence)), "a frame enters once"),
            ]
            with m.If(channel.head_valid & (distance == 0)):
                m.d.comb += [
                    Assert(channel.head_slot == frame.slot, "words come from the frame's slot"),
                    Assert(
                        Cat(channel.words, channel.ends_packet) == Cat(frame.words, frame.last),
                        "a frame's shape is known",
                    ),
                    Assert(
                        channel.head_ends == (channel.head_word == frame.words),
                        "a frame ends with its last word",
                    ),
                ]
        m.d.comb += [
            Assert(
                (channel.next - channel.freed)[:SEQUENCE_BITS] == channel.head_valid,
                "frames are delivered one by one",
            ),
            Assert(
                ~channel.head_valid | channel.present.bit_select(channel.freed[:bits], 1),
                "only what entered is delivered",
            ),
        ]
        return m


def fill_proof(window: Any = FillWindow, slots: int = 4, frame_words: int = 2) -> FillProof:
    """Proof of a channel's credits; `window` is a class, and tests pass one with a fault."""
    return FillProof(window(slots, frame_words), slots)


def transmission_proof(window: Any = TransmissionWindow) -> TransmissionProof:
    """Proof of the transmission window."""
    return TransmissionProof(window())


def pool_proof(pool: Any = SlotPool, num_slots: int = 6) -> PoolProof:
    """Proof of the pool of slots."""
    return PoolProof(pool(num_slots), num_slots)


def channel_proof(
    channel: Any = ReceiveChannel, slots: int = 4, frame_words: int = 4
) -> ChannelProof:
    """Proof of a channel's table of frames."""
    return ChannelProof(channel(slots, frame_words, 3), slots)


class OnChipProof(wiring.Component):
    """Proof that each word of an on-chip link is in one place, so that none is lost or repeated.

    Two ends that are up send to each other, over wires that take and give beats at any time. For
    each channel and direction, the words on their way, those in the buffer, those that have left it
    and are not told, and the room that the sender knows of are together as many as the slots.
    """

    def __init__(self, transmitter: Any, receiver: Any, spec: OnChipSpec) -> None:
        self._spec = spec
        self._ends = [(transmitter(spec), receiver(spec)) for _ in range(2)]
        each = {"i_valid": NUM_CHANNELS, "o_ready": NUM_CHANNELS, "goes": 1, "hello": 1}
        super().__init__(
            {f"{name}{end}": In(bits) for end in range(2) for name, bits in each.items()}
        )

    def elaborate(self, platform: Any) -> Any:  # noqa: D102
        m = Module()
        slices: list[Any] = [Slice(BEAT) for _ in range(2)]  # type: ignore[no-untyped-call]
        for number, (transmitter, receiver) in enumerate(self._ends):
            m.submodules[f"transmitter{number}"] = transmitter
            m.submodules[f"receiver{number}"] = receiver
            m.submodules[f"slice{number}"] = wires = slices[number]
            wiring.connect(m, transmitter.o, wires.i)
            m.d.comb += [
                transmitter.up.eq(1),
                transmitter.open.eq(1),
                transmitter.hello_due.eq(getattr(self, f"hello{number}")),
                transmitter.left.eq(receiver.left),
                transmitter.freed.eq(receiver.freed),
                receiver.up.eq(1),
                wires.o.ready.eq(getattr(self, f"goes{number}")),
            ]
            for channel in range(NUM_CHANNELS):
                m.d.comb += [
                    transmitter.i[channel].valid.eq(getattr(self, f"i_valid{number}")[channel]),
                    receiver.o[channel].ready.eq(getattr(self, f"o_ready{number}")[channel]),
                ]
        for number, (_, receiver) in enumerate(self._ends):
            wires = slices[1 - number]
            m.d.comb += [
                receiver.i.valid.eq(wires.o.valid & wires.o.ready),
                receiver.i.payload.eq(wires.o.payload),
            ]
        for number in range(2):
            self._state(m, number, slices)
        return m

    def _state(self, m: Any, number: int, slices: list[Any]) -> None:
        """Where the words are that an end sends."""
        transmitter, own = self._ends[number]
        other, receiver = self._ends[1 - number]
        there, back = slices[number], slices[1 - number]
        going = [(there.valid, there.payload), (there.has_skid, there.skid)]
        going += [(receiver.valid, receiver.beat)]
        coming = [(back.valid, back.payload), (back.has_skid, back.skid), (own.valid, own.beat)]
        m.d.comb += [
            Assert(~there.has_skid | there.valid, "the first place is filled first"),
            Assert(transmitter.turn < NUM_CHANNELS, "a channel was last"),
        ]
        for valid, beat in going:
            side = beat.side
            plain = ~side.is_word & ~Cat(freed.words for freed in side.freed).any()
            m.d.comb += [
                Assert(~(valid & side.is_hello) | plain, "a HELLO tells nothing else"),
                Assert(~(valid & side.is_word) | (side.channel < NUM_CHANNELS), "of a channel"),
            ]
        for channel, slots in enumerate(self._spec.slots):
            buffer = receiver.buffers[channel]
            places = [
                transmitter.room[channel],
                buffer.level + buffer.o.valid,
                other.owed[channel],
                *(valid & beat.side.is_word & (beat.side.channel == channel)
                  for valid, beat in going),
                *(Mux(valid, beat.side.freed[channel].words, 0) for valid, beat in coming),
            ]  # fmt: skip
            m.d.comb += [
                Assert(sum(places) == slots, "a word is in one place"),
                Assert(~buffer.i.valid | buffer.i.ready, "there is room for what comes"),
            ]


def on_chip_proof(
    transmitter: Any = OnChipTransmitter, receiver: Any = OnChipReceiver
) -> OnChipProof:
    """Proof of an on-chip link; tests pass classes with a fault."""
    return OnChipProof(transmitter, receiver, OnChipSpec((2, 4, 2)))
