"""One end of a link, frame by frame: the rules for the gateware and for every peer of it.

The wire between two ends keeps the order of frames. It may lose, damage, truncate or join any of
them, and may repeat a frame directly after itself. On top of it, the ends provide three channels of
words, on which each word arrives once and in order:

Sending
    The words of a channel fill frames of `frame_words` words; a word with ``last`` ends its frame.
    The frames of a channel have sequence numbers. They are kept until the peer has reported that it
    freed their buffers. A channel holds as many frames as it has slots, which is the only limit on
    its words. Each transmission, whether of a new frame or of a lost one, gets the next number of a
    counter that all channels share. The peer reports for each number whether it arrived; a frame
    that did not is transmitted again, with a new number. At most `WINDOW` numbers are open, that
    is, not reported yet.

Receiving
    Since the wire keeps the order, a number that is skipped is lost, and so is a number that a
    CONTROL frame names and that has not arrived. All trailers report which numbers arrived, which
    were lost and which buffers are free again. If there is nothing else to send, a CONTROL frame,
    which is a trailer alone, reports this.

Asking
    An end that waits for news of its transmissions or for a free buffer asks with a CONTROL frame
    after `probe_cycles` without a trailer of its own. The other end answers. There is no other
    timer, so an idle link is silent.

Sessions
    An end begins a session by sending HELLO frames, with one page after the other. It is up when it
    has heard all pages of a peer of the same version and configuration, and has received its own
    session number back. A peer that shows another session, or that was up and is no longer, has
    lost its state: the end stops, and learns from the peer's pages how many words of each channel
    had been delivered. Only `LinkEnd.clear` leaves this state, and begins the next session.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.spec.link import (
    DELIVERED_BITS,
    HELLO,
    HELLO_CONFIG,
    HELLO_DELIVERED,
    LINK_VERSION,
    NUM_CHANNELS,
    NUMBER_BITS,
    SEQUENCE_BITS,
    SESSION_BITS,
    TRAILER,
    WINDOW,
    Frame,
    FrameKind,
    LinkEngineSpec,
    LinkState,
    decode_frame,
    encode_frame,
)

HELLO_CYCLES = 64
"""Approximate number of cycles between two HELLO frames of an end that is not up."""

HELLO_PAGES = 1 + NUM_CHANNELS

_SESSION_FLAG = 1 << (SESSION_BITS - 1)
_TAG_MASK = (1 << 7) - 1  # the bits of a session's number that HELLO_DELIVERED contains


def ahead(new: int, old: int, bits: int) -> int:
    """Return how far a number of `bits` bits is ahead of another, modulo ``2**bits``."""
    return (new - old) % (1 << bits)


class Transmitter:
    """The sending side of one end in one session.

    Attributes
    ----------
    fill : list of int
        For each channel, the sequence number of the frame that is being filled.
    unsent : list of int
        For each channel, the sequence number of the first complete frame that was never
        transmitted; the same as ``fill`` if there is none.
    peer_freed : list of int
        For each channel, the sequence number of the first frame whose buffer at the peer is not
        known to be free.
    next : int
        Number of the next transmission.
    base : int
        The oldest open number: that of the oldest transmission not known to have arrived or to be
        lost.
    replay : deque of (int, int)
        Channel and sequence number of each lost frame that waits for its next transmission. There
        are at most `WINDOW` of these and open numbers together.
    """

    def __init__(self, spec: LinkEngineSpec) -> None:
        self.spec = spec
        self.fill = [0] * NUM_CHANNELS
        self.unsent = [0] * NUM_CHANNELS
        self.peer_freed = [0] * NUM_CHANNELS
        self.next = 1
        self.base = 1
        self.replay: deque[tuple[int, int]] = deque()
        self._partial = [bytearray() for _ in range(NUM_CHANNELS)]
        self._frames: list[list[tuple[bytes, bool]]] = [[(b"", False)] * n for n in spec.slots]
        self._sent = [(0, 0)] * WINDOW  # channel and sequence number of the open numbers' frames
        self._turn = 0  # the channel that may send a new frame first

    @property
    def open(self) -> int:
        """Number of open numbers."""
        return ahead(self.next, self.base, NUMBER_BITS)

    def is_full(self, channel: int) -> bool:
        """Whether the channel's words have to wait for the peer to free a buffer."""
        waiting = ahead(self.fill[channel], self.peer_freed[channel], SEQUENCE_BITS)
        return waiting >= self.spec.slots[channel]

    def put(self, channel: int, word: bytes, last: bool) -> None:
        """Add a word to a channel that is not full."""
        partial = self._partial[channel]
        partial += word
        if last or len(partial) == self.spec.frame_words * WORD_BYTES:
            slot = self.fill[channel] % self.spec.slots[channel]
            self._frames[channel][slot] = bytes(partial), last
            self.fill[channel] = (self.fill[channel] + 1) % (1 << SEQUENCE_BITS)
            partial.clear()

    def transmit(self) -> tuple[dict[str, Any], bytes] | None:
        """Return the trailer's fields and the words of the next transmission, if there is one."""
        if self.open >= WINDOW:
            return None
        if self.replay:
            channel, sequence = self.replay.popleft()
        else:
            turns = ((self._turn + turn) % NUM_CHANNELS for turn in range(NUM_CHANNELS))
            found = next((c for c in turns if self.unsent[c] != self.fill[c]), None)
            if found is None:
                return None
            channel, sequence = found, self.unsent[found]
            self.unsent[channel] = (sequence + 1) % (1 << SEQUENCE_BITS)
            self._turn = (channel + 1) % NUM_CHANNELS
        words, last = self._frames[channel][sequence % self.spec.slots[channel]]
        fields = {
            "number": self.next,
            "channel": channel,
            "sequence": sequence,
            "words": len(words) // WORD_BYTES - 1,
            "last": int(last),
        }
        self._sent[self.next % WINDOW] = channel, sequence
        self.next = (self.next + 1) % (1 << NUMBER_BITS)
        return fields, words

    def hear(self, seen: int, received: int, freed: list[int]) -> None:
        """Take the report of a peer's trailer; an outdated report changes nothing."""
        if ahead(seen, self.base, NUMBER_BITS) < self.open:
            while self.base != (seen + 1) % (1 << NUMBER_BITS):
                if not received >> ahead(seen, self.base, NUMBER_BITS) & 1:
                    self.replay.append(self._sent[self.base % WINDOW])
                self.base = (self.base + 1) % (1 << NUMBER_BITS)
        for channel, sequence in enumerate(freed):
            known = self.peer_freed[channel]
            most = ahead(self.fill[channel], known, SEQUENCE_BITS)
            if ahead(sequence, known, SEQUENCE_BITS) <= most:
                self.peer_freed[channel] = sequence


class Receiver:
    """The receiving side of one end in one session.

    Attributes
    ----------
    seen : int
        Highest number that has arrived or is known to be lost.
    received : int
        Bits that tell which numbers have arrived; bit `i` is that of number ``seen - i``.
    freed : list of int
        For each channel, the sequence number of the first frame with words that are not yet taken.
    """

    def __init__(self, spec: LinkEngineSpec) -> None:
        self.spec = spec
        self.seen = 0
        self.received = 0
        self.freed = [0] * NUM_CHANNELS
        # Frames that have arrived, by sequence number modulo slots: the words, and whether the last
        # one ends a packet.
        self._frames: list[list[tuple[bytes, bool] | None]] = [[None] * n for n in spec.slots]
        self._taken = [0] * NUM_CHANNELS  # bytes of the first frame that have been taken

    def hear_data(self, fields: Mapping[str, Any], words: bytes) -> bool:
        """Take a DATA frame, and return whether it is new rather than the wire's repetition."""
        if not self._see(fields["number"], 1):
            return False
        channel, sequence = fields["channel"], fields["sequence"]
        slots = self.spec.slots[channel]
        # Both conditions always hold if the peer follows the rules.
        if ahead(sequence, self.freed[channel], SEQUENCE_BITS) < slots:
            slot = sequence % slots
            if self._frames[channel][slot] is None:
                self._frames[channel][slot] = words, bool(fields["last"])
        return True

    def hear_control(self, number: int) -> bool:
        """Take a CONTROL frame, and return whether it shows that frames were lost."""
        return self._see(number, 0)

    def _see(self, number: int, came: int) -> bool:
        distance = ahead(number, self.seen, NUMBER_BITS)
        if not 1 <= distance <= WINDOW:
            return False
        self.received = (self.received << distance | came) % (1 << WINDOW)
        self.seen = number
        return True

    def take(self, channel: int) -> tuple[bytes, bool] | None:
        """Return a channel's next word, and whether it ends a packet; None if it has not come."""
        slot = self.freed[channel] % self.spec.slots[channel]
        frame = self._frames[channel][slot]
        if frame is None:
            return None
        words, ends_packet = frame
        begin, end = self._taken[channel], self._taken[channel] + WORD_BYTES
        is_end = end == len(words)
        if is_end:
            self._frames[channel][slot] = None
            self._taken[channel] = 0
            self.freed[channel] = (self.freed[channel] + 1) % (1 << SEQUENCE_BITS)
        else:
            self._taken[channel] = end
        return words[begin:end], is_end and ends_packet


class LinkEnd:
    """One end of a link.

    Its user exchanges words (`put`, `take`) and frames (`next_frame`, `hear`) with it and lets time
    pass (`tick`), in any order and at any rate.

    Parameters
    ----------
    spec : LinkEngineSpec
    seed : int
        First session number, 15 bits. It must be another one after each reset of the device, so
        that the peer can tell the sessions before the reset from those after it.
    version : int
        Version of the frame format.

    Attributes
    ----------
    state : LinkState
        State of the end: OFF at first, as after the device's reset, until `enable` is called.
    session, peer : int
        Session numbers of this end and of the peer; 0 if there is none or it is not known.
    delivered : list of int
        For each channel, the number of words that `take` gave in this session.
    peer_delivered : list of int
        For each channel, the number of words that the peer delivered in the last session in which
        this end was up; in state UP, this is the previous session. The numbers are valid only if
        `peer_delivered_known`.
    transmitter : Transmitter
        The sending side.
    receiver : Receiver
        The receiving side.
    """

    def __init__(self, spec: LinkEngineSpec, seed: int = 0, *, version: int = LINK_VERSION) -> None:
        self.spec = spec
        self.version = version
        self._seed = seed
        self._num_ended = 0  # sessions that have ended
        # The last session that was up: words delivered, and the lower bits of its number.
        self._last_delivered = [0] * NUM_CHANNELS
        self._last_tag = 0
        self._last_known = False
        self._up_tag = 0  # lower bits of the peer's session number when this end was last up
        self.state = LinkState.OFF
        self._reset()

    def _reset(self) -> None:
        """Clear the state of a session, but keep the numbers of the last one that was up."""
        self.session = self.peer = 0
        self.delivered = [0] * NUM_CHANNELS
        self.peer_delivered = [0] * NUM_CHANNELS
        self._known = [False] * NUM_CHANNELS  # whether `peer_delivered` is known
        self._heard = 0  # bit `i`: page `i` of the peer's HELLO frames has been heard
        self.transmitter = Transmitter(self.spec)
        self.receiver = Receiver(self.spec)
        self._was_up = False
        self._heard_up = False  # the peer was up in this session
        self._hello_timer = HELLO_CYCLES
        self._page = 0
        self._answers = False  # a HELLO frame has to be answered in state UP
        self._owes = False  # the peer has to get a report
        self._waits = [False] * NUM_CHANNELS  # a word was refused because the channel is full
        self._quiet_cycles = 0  # cycles since the last DATA or CONTROL frame was sent

    @property
    def peer_delivered_known(self) -> bool:
        """Whether `peer_delivered` is known for all channels."""
        return all(self._known)

    def enable(self, on: bool = True) -> None:
        """Switch the end on or off; switching it off ends the session."""
        if on and self.state is LinkState.OFF:
            self.state = LinkState.HELLO
            self.session = _SESSION_FLAG | (self._seed + self._num_ended) % _SESSION_FLAG
        elif not on and self.state is not LinkState.OFF:
            self._end_session()
            self.state = LinkState.OFF

    def clear(self) -> None:
        """End the session and begin the next one, in any state except OFF."""
        if self.state is not LinkState.OFF:
            self.enable(False)
            self.enable()

    def _end_session(self) -> None:
        # A session that was never up delivered nothing, and the peer may still have to hear about
        # the previous one.
        if self._was_up or not self._last_known:
            self._last_delivered = self.delivered
            self._last_tag = self.session & _TAG_MASK
            self._last_known = True
        self._num_ended += 1
        self._reset()

    def put(self, channel: int, word: bytes, last: bool) -> bool:
        """Offer a word, and return whether it was accepted."""
        if self.state is not LinkState.UP:
            return False
        self._waits[channel] = self.transmitter.is_full(channel)
        if not self._waits[channel]:
            self.transmitter.put(channel, word, last)
        return not self._waits[channel]

    def take(self, channel: int) -> tuple[bytes, bool] | None:
        """Return a channel's next word, and whether it ends a packet; None if it has not come.

        Words that had arrived before the peer was reset can still be taken.
        """
        before = self.receiver.freed[channel]
        taken = self.receiver.take(channel)
        if taken is not None:
            self.delivered[channel] = (self.delivered[channel] + 1) % (1 << DELIVERED_BITS)
        self._owes |= self.receiver.freed[channel] != before
        return taken

    def tick(self, cycles: int = 1) -> None:
        """Let time pass."""
        self._hello_timer += cycles
        self._quiet_cycles += cycles

    def next_frame(self) -> bytes | None:
        """Return the frame to be sent now, if there is one; it then counts as sent."""
        if self.state is LinkState.OFF:
            return None
        if self.state is not LinkState.UP:
            return self._hello() if self._hello_timer >= HELLO_CYCLES else None
        if self._answers:
            return self._hello()
        if (found := self.transmitter.transmit()) is not None:
            return self._trailer(FrameKind.DATA, *found)
        probe = self._quiet_cycles >= self.spec.probe_cycles and self._is_waiting()
        if not self._owes and not probe:
            return None
        number = (self.transmitter.next - 1) % (1 << NUMBER_BITS)
        fields = {"number": number, "channel": 0, "sequence": 0, "words": 0, "last": 0}
        return self._trailer(FrameKind.CONTROL, fields, probe=probe)

    def _is_waiting(self) -> bool:
        full = (self._waits[c] and self.transmitter.is_full(c) for c in range(NUM_CHANNELS))
        return self.transmitter.open > 0 or bool(self.transmitter.replay) or any(full)

    def _trailer(
        self, kind: FrameKind, about: Mapping[str, Any], words: bytes = b"", *, probe: bool = False
    ) -> bytes:
        self._quiet_cycles = 0
        self._owes = False
        return encode_frame(
            TRAILER,
            {
                "kind": kind,
                "session": self.session & 0xFF,
                "seen": self.receiver.seen,
                "received": self.receiver.received,
                "freed": [{"sequence": sequence} for sequence in self.receiver.freed],
                "probe": int(probe),
                "reserved": 0,
                **about,
            },
            words,
        )

    def _hello(self) -> bytes:
        is_up = self.state is LinkState.UP
        page = self._page
        if page == 0:
            config = {"version": self.version, "digest": self.spec.digest, "reserved": 0}
            data = HELLO_CONFIG.pack(config)
        else:
            data = HELLO_DELIVERED.pack(
                {
                    "words": self._last_delivered[page - 1],
                    "is_known": int(self._last_known),
                    "session": self._last_tag,
                }
            )
        self._page = (page + 1) % HELLO_PAGES
        self._answers = False
        self._hello_timer = 0
        fields = {
            "kind": FrameKind.HELLO,
            "page": page,
            "session": self.session,
            # A peer that lost this session must not join it again if it uses its old number.
            "peer": 0 if self.state is LinkState.PEER_RESET else self.peer,
            "is_up": int(is_up),
            "reserved": 0,
            "data": data,
        }
        return encode_frame(HELLO, fields)

    def hear(self, frame: bytes) -> Frame | None:
        """Take a frame from the wire, and return it decoded; None if it is damaged."""
        found = decode_frame(frame, self.spec)
        if found is not None and self.state is not LinkState.OFF:
            if found.kind is FrameKind.HELLO:
                self._hear_hello(found.fields)
            elif self.state is LinkState.UP and found.fields["session"] == self.peer & 0xFF:
                self._hear_trailer(found)
        return found

    def _hear_trailer(self, frame: Frame) -> None:
        fields = frame.fields
        self._heard_up = True
        if frame.kind is FrameKind.DATA:
            self._owes |= self.receiver.hear_data(fields, frame.words)
        else:
            self._owes |= self.receiver.hear_control(fields["number"])
        self._owes |= bool(fields["probe"])
        freed = [entry["sequence"] for entry in fields["freed"]]
        self.transmitter.hear(fields["seen"], fields["received"], freed)

    def _hear_hello(self, hello: Mapping[str, Any]) -> None:
        if self.state is LinkState.HELLO:
            self._join(hello)
        elif self.state is LinkState.UP:
            if hello["session"] != self.peer or (self._heard_up and not hello["is_up"]):
                # The peer was up and begins again, even if it happens to have the same number.
                self.state = LinkState.PEER_RESET
                self._known = [False] * NUM_CHANNELS
            elif hello["is_up"]:
                self._heard_up = True
            else:
                self._answers = True
        if self.state is LinkState.PEER_RESET and hello["session"] != self.peer:
            self._hear_delivered(hello)

    def _join(self, hello: Mapping[str, Any]) -> None:
        if hello["page"] == 0:
            config = HELLO_CONFIG.unpack(hello["data"])
            if (config["version"], config["digest"]) != (self.version, self.spec.digest):
                self.state = LinkState.MISMATCH
                self.peer = 0
                return
            if self.peer != hello["session"]:
                self.peer = hello["session"]
                self._heard = 0
                self._known = [False] * NUM_CHANNELS
        if hello["session"] != self.peer:
            return
        self._hear_delivered(hello)
        self._heard |= 1 << hello["page"]
        if self._heard == (1 << HELLO_PAGES) - 1 and hello["peer"] == self.session:
            self.state = LinkState.UP
            self._was_up = True
            self._heard_up = bool(hello["is_up"])
            self._up_tag = self.peer & _TAG_MASK

    def _hear_delivered(self, hello: Mapping[str, Any]) -> None:
        if hello["page"] > 0:
            channel = hello["page"] - 1
            last = HELLO_DELIVERED.unpack(hello["data"])
            # If the peer reports another session, it was never up in the one that is known here.
            self.peer_delivered[channel] = last["words"] if last["session"] == self._up_tag else 0
            self._known[channel] = bool(last["is_known"])
