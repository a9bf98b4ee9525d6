"""Environment of send and receive engines in their testbench, and packets for them."""

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.isa.instructions import LINK, TRANSFER, WORD_BYTES, ErrorCode
from fpgapipe.hw.hls_models.model.dma import burst_words
from fpgapipe.hw.hls_models.model.link_dma import Packet, first_error, packet
from fpgapipe.hw.hls_models.spec.link import NUM_CHANNELS
from fpgapipe.sim_tb.drivers.axi_memory import AxiMemory, Pauses
from fpgapipe.sim_tb.drivers.stream import StreamDriver, cycle, parameters, reset
from fpgapipe.sim_tb.worlds.dma_world import Scratchpad, spec_of_parameters

ORIGIN = 0xA5_0000_0000
"""Address of the memory's first byte, which needs more than 32 bits."""

PART_BYTES = 1 << 13
"""Size of each part of the memory, bytes: the first part is sent, the second one received, and the
third one is the target of stores."""

SENT_PAD, PAD_BYTES = 1024, 1536
"""Part of the scratchpad that is sent, bytes; one as large behind it is received."""

MEMORY_BYTES = 3 * PART_BYTES

FIRST_INDEX = 70_000
"""Number of a test's first instruction, which needs more than 16 bits."""

LIMIT_CYCLES = 40_000

LinkWord = tuple[int, int]
"""A word of 64 bytes as an integer, and 1 if the packet ends with it, else 0."""


def link_words(sent: Packet) -> list[LinkWord]:
    """Words of a packet on a channel: the tag comes first."""
    words = [int.from_bytes(word.tobytes(), "little") for word in sent.words]
    return [(sent.stream, 0), *((word, 0) for word in words[:-1]), (words[-1], 1)]


class Channels:
    """Model of the link between both engines, which records the words that are sent.

    Words that are sent go to the receive engine if the engines are joined. A test can also append
    words to `coming`.

    Attributes
    ----------
    sent : list of deque of LinkWord
        Words that the send engine has sent, by channel.
    coming : list of deque of LinkWord
        Words that the receive engine is still to get, by channel.
    moved : list of int
        Cycles in which words left the send engine.
    taken : list of int
        Cycles in which words entered the receive engine.
    stands : bool
        Whether the link accepts no words.
    may_withdraw : bool
        Whether the send engine has been stopped, so that it may withdraw a waiting word.
    """

    def __init__(self, dut: Any, rng: random.Random | None, *, joined: bool) -> None:
        self.sent: list[deque[LinkWord]] = [deque() for _ in range(NUM_CHANNELS)]
        self.coming: list[deque[LinkWord]] = [deque() for _ in range(NUM_CHANNELS)]
        self.moved: list[int] = []
        self.taken: list[int] = []
        self.stands = False
        self.may_withdraw = False
        self._joined = joined
        self._dut = dut
        self._pauses = [Pauses(rng) for _ in range(2 * NUM_CHANNELS)]
        self._task = cocotb.start_soon(self._run())

    def stop(self) -> None:
        """Stop the link."""
        self._task.cancel()

    def _port(self, end: str, channel: int, name: str) -> Any:
        return getattr(self._dut, f"{end}__{channel}__{name}")

    async def _run(self) -> None:
        waiting: list[int | None] = [None] * NUM_CHANNELS
        offered = [False] * NUM_CHANNELS
        while True:
            for channel in range(NUM_CHANNELS):
                ready = not self.stands and not self._pauses[channel]()
                self._port("send_o", channel, "ready").value = int(ready)
                if self.coming[channel] and not offered[channel]:
                    offered[channel] = not self._pauses[NUM_CHANNELS + channel]()
                self._port("receive_words", channel, "valid").value = int(offered[channel])
                if offered[channel]:
                    word, last = self.coming[channel][0]
                    port = self._port("receive_words", channel, "payload")
                    port.value = word | last << (8 * WORD_BYTES)
            await FallingEdge(self._dut.clk)
            valid = [bool(self._port("send_o", c, "valid").value) for c in range(NUM_CHANNELS)]
            assert sum(valid) <= 1, "words for several channels"
            for channel in range(NUM_CHANNELS):
                self._look(channel, waiting, valid[channel])
                ready = bool(self._port("receive_words", channel, "ready").value)
                if ready and offered[channel]:
                    offered[channel] = False
                    self.coming[channel].popleft()
                    self.taken.append(cycle())
            await RisingEdge(self._dut.clk)

    def _look(self, channel: int, waiting: list[int | None], valid: bool) -> None:
        """Check the word that the send engine offers on a channel, and record it if it moves."""
        port = self._port("send_o", channel, "payload")
        payload = port.value.to_unsigned() if valid else None
        changed = waiting[channel] not in (None, payload)
        assert not changed or (self.may_withdraw and payload is None), "a waiting word changed"
        ready = bool(self._port("send_o", channel, "ready").value)
        waiting[channel] = None if ready else payload
        if ready and payload is not None:
            bits = 8 * WORD_BYTES
            word = (payload & ((1 << bits) - 1), payload >> bits)
            self.sent[channel].append(word)
            self.moved.append(cycle())
            if self._joined:
                self.coming[channel].append(word)


class Bench:
    """Both engines, with a load and a store engine that access the same memory.

    Attributes
    ----------
    memory : uint8 array
        Contents that the gateware changes.
    expected, expected_pad : uint8 array
        Contents of memory and scratchpad that models change.
    done : dict of list of int
        Cycles in which instructions were done, by engine.
    errors : dict of list of (int, int)
        Codes and indices of errors, by engine.
    drivers : dict of StreamDriver
        Drivers of the instruction streams, by engine.
    """

    ENGINES = ("send", "receive", "load", "store")

    def __init__(
        self, dut: Any, rng: random.Random | None, *, joined: bool = True, **memory: Any
    ) -> None:
        self.dut, self.spec, self.rng = dut, spec_of_parameters(), rng
        values = np.random.default_rng(cocotb.RANDOM_SEED)
        self.memory: NDArray[np.uint8] = values.integers(0, 256, MEMORY_BYTES, np.uint8)
        self.scratchpad = values.integers(0, 256, self.spec.scratchpad.size_bytes, np.uint8)
        self.expected, self.expected_pad = self.memory.copy(), self.scratchpad.copy()
        self.done: dict[str, list[int]] = {name: [] for name in self.ENGINES}
        self.errors: dict[str, list[tuple[int, int]]] = {name: [] for name in self.ENGINES}
        self._into_pad: dict[str, list[bool]] = {name: [] for name in self.ENGINES}
        self._joined = joined
        self._memory_options = {"latency": (1, 30)} | memory
        self._tasks: list[Any] = []

    async def begin(self) -> None:
        """Reset the design and start its environment; returns right after a rising edge."""
        dut = self.dut
        if hasattr(dut, "fault"):
            dut.fault.value = parameters()["fault"]
        for engine in self.ENGINES:
            self.port(engine, "halt").value = 0
        for engine in ("send", "receive"):
            self.port(engine, "down").value = 0
        dut.memory_base.value = ORIGIN
        dut.memory_limit.value = ORIGIN + MEMORY_BYTES
        self.drivers = {
            name: StreamDriver(
                dut,
                f"{name}_i",
                self.rng,
                fields=[32, (LINK if name in ("send", "receive") else TRANSFER).bits],
            )
            for name in self.ENGINES
        }
        await reset(dut)
        self.pad = Scratchpad(dut, self.scratchpad, self.rng)
        self.channels = Channels(dut, self.rng, joined=self._joined)
        self.axi = AxiMemory(
            dut,
            "m_axi",
            self.memory,
            origin=ORIGIN,
            rng=self.rng,
            max_beats=burst_words(self.spec) * WORD_BYTES // self.spec.bus_bytes,
            **self._memory_options,
        )
        self._tasks = [cocotb.start_soon(self._watch())]
        await ClockCycles(dut.clk, 3)

    def port(self, engine: str, name: str) -> Any:
        """Port of an engine."""
        return getattr(self.dut, f"{engine}_{name}")

    async def _watch(self) -> None:
        while True:
            await FallingEdge(self.dut.clk)
            for engine in self.ENGINES:
                if self.port(engine, "done").value:
                    self._check_written(engine, len(self.done[engine]))
                    self.done[engine].append(cycle())
                if self.port(engine, "error_valid").value:
                    code = int(self.port(engine, "error_code").value)
                    index = int(self.port(engine, "error_index").value)
                    if engine == "receive":
                        self._check_written(engine, index - FIRST_INDEX)
                    self.errors[engine].append((code, index))
                assert bool(self.port(engine, "busy").value) != bool(
                    self.port(engine, "idle").value
                )

    def _check_written(self, engine: str, number: int) -> None:
        """Check that the words of an instruction that ends have reached the scratchpad."""
        if self._into_pad[engine][number]:
            assert not self.dut.held.value, f"{engine} {number} ends while a word of it is held"

    def give(self, engine: str, bodies: Sequence[dict[str, int]]) -> None:
        """Send instructions to an engine in the background."""
        group = LINK if engine in ("send", "receive") else TRANSFER
        words = [[FIRST_INDEX + n, group.pack(body)] for n, body in enumerate(bodies)]
        self._into_pad[engine] += [
            engine == "load" or (engine == "receive" and bool(body["in_scratchpad"]))
            for body in bodies
        ]
        self._tasks.append(cocotb.start_soon(self.drivers[engine].send(words)))

    async def settle(self, **done: int) -> None:
        """Wait until engines stay idle, with the given numbers of instructions done or an error."""
        quiet = 0
        for _ in range(LIMIT_CYCLES):
            await RisingEdge(self.dut.clk)
            await FallingEdge(self.dut.clk)
            ended = all(self.errors[name] or len(self.done[name]) >= n for name, n in done.items())
            idle = all(self.port(name, "idle").value for name in done)
            quiet = quiet + 1 if ended and idle else 0
            if quiet == 40:  # longer than the latency of any transfer
                await RisingEdge(self.dut.clk)
                return
        found = {name: len(self.done[name]) for name in done}
        raise AssertionError(f"done {found} of {done}, {self.errors}")

    async def end(self) -> None:
        """Stop the design's environment and reset the design."""
        for task in self._tasks:
            task.cancel()
        self.pad.stop()
        self.channels.stop()
        assert self.axi.idle
        self.axi.stop()
        await RisingEdge(self.dut.clk)
        await reset(self.dut)

    def compare(self) -> None:
        """Compare every byte of memory and scratchpad with the model's."""
        np.testing.assert_array_equal(self.memory, self.expected, "memory")
        np.testing.assert_array_equal(self.scratchpad, self.expected_pad, "scratchpad")


def there(body: dict[str, int]) -> dict[str, int]:
    """Body of the RECEIVE for a SEND's packet: the same places in the next part of the memory.

    A packet from the scratchpad goes to the next part of the scratchpad, or to memory if its tag is
    odd.
    """
    at, in_scratchpad = body["memory"], body["in_scratchpad"]
    if in_scratchpad and body["stream"] % 2:
        return body | {"memory": ORIGIN + PART_BYTES + at, "in_scratchpad": 0}
    return body | {"memory": at + (PAD_BYTES if in_scratchpad else PART_BYTES)}


def pad_packets(rng: random.Random, count: int) -> list[dict[str, int]]:
    """Draw valid packets of words in the scratchpad."""
    drawn = []
    for _ in range(count):
        words = rng.choice([1, 2, rng.randint(1, PAD_BYTES // 64)])
        first = rng.randrange(PAD_BYTES // 64 - words + 1)
        to = {"channel": rng.randrange(NUM_CHANNELS), "stream": rng.getrandbits(32)}
        drawn.append(packet(SENT_PAD + 64 * first, 64 * words, in_scratchpad=True, **to))
    return drawn


def long_pads() -> list[dict[str, int]]:
    """Packets of words in the scratchpad that stay there, and write no word twice."""
    at = SENT_PAD
    return [
        packet(at, 640, channel=1, stream=20, in_scratchpad=True),
        packet(at + 640, 64, stream=22, in_scratchpad=True),
        packet(at + 704, 832, channel=2, stream=24, in_scratchpad=True),
    ]


def special_packets() -> list[dict[str, int]]:
    """Corner cases of packets that random ones might miss."""
    at = ORIGIN
    return [
        packet(at, 1, stream=0xFFFF_FFFF, channel=2),
        packet(at + 63, 2),
        packet(at + 4095, 2, channel=1),  # across 4 KiB
        packet(at + PART_BYTES - 100, 100, stream=1),
        packet(at + 640, 64, 9, -64, channel=2),
        packet(at + 5000, 70, 2, 1024, 3, -1024, stream=1 << 31),
        packet(at + 7, 5, 4, 9, channel=1),  # other bytes of a word in each row
        packet(at + 100, 4000, channel=1, stream=77),
    ]


def random_packets(rng: random.Random, count: int) -> list[dict[str, int]]:
    """Draw valid packets."""
    drawn: list[dict[str, int]] = []
    while len(drawn) < count:
        body = packet(
            ORIGIN + rng.randrange(PART_BYTES),
            rng.choice([rng.randint(1, 8), rng.randint(1, 130), rng.randint(1, 900)]),
            rng.choice([1, rng.randint(1, 6)]),
            rng.choice([0, rng.randint(-900, 1800)]),
            rng.choice([1, 1, rng.randint(1, 3)]),
            rng.choice([0, rng.randint(-2500, 2500)]),
            channel=rng.randrange(NUM_CHANNELS),
            stream=rng.getrandbits(32),
        )
        _, code = first_error(spec_of_parameters(), body, ORIGIN, ORIGIN + PART_BYTES)
        if code is ErrorCode.NONE:
            drawn.append(body)
    return drawn


def long_packets() -> list[dict[str, int]]:
    """Packets of several bursts each, which write no byte twice."""
    return [
        packet(ORIGIN + 1030, 300, 4, 512, channel=1, stream=11),
        packet(ORIGIN + 3100, 1500, stream=12),
        packet(ORIGIN + 4800, 40, 15, 64, channel=2, stream=13),
        packet(ORIGIN + 6003, 900, channel=1, stream=14),
    ]
