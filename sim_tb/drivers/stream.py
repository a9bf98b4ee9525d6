"""Common parts of testbenches: parameters, clock and reset, and drivers and sinks of streams.

A stream of ``amaranth.lib.stream`` named ``i`` has the ports ``i__payload``, ``i__valid`` and
``i__ready``; it transfers a word at each rising clock edge at which valid and ready are high.

Words are integers. The word of a payload with several fields, such as Amaranth's array and
structure layouts, is a sequence of integers, one per field; the first field is in the least
significant bits. The argument ``fields`` gives the widths of the fields. A structure that consists
of an array and a flag is flattened to ``[*array, flag]``.
"""

import json
import os
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge
from cocotb.utils import get_sim_time

PERIOD_NS = 10
"""Clock period of all testbenches, ns."""

PHASE_CYCLES = 16
"""Number of cycles after which the frequency of random pauses changes."""

PAUSE_RATES = (0.3, 0.0, 0.9)
"""Frequencies of pauses, which follow one another cyclically.

Long periods without a pause and long periods with hardly a word find other faults than a uniform
mixture does.
"""

Word = int | Sequence[int]


def parameters() -> dict[str, Any]:
    """Return the parameters that `simulate` was given: the fields of the gateware's spec."""
    values: dict[str, Any] = json.loads(os.environ.get("FPGAPIPE_PARAMETERS", "{}"))
    return values


_PS_PER_NS = 1000
_clock_began = {"ps": 0}


async def start(dut: Any, reset_cycles: int = 2) -> None:
    """Start the clock, ``clk``, and hold ``rst`` for some cycles; returns as `reset` does.

    Inputs that have not been driven are set to 0, their initial value in Verilator.
    """
    for name in json.loads(os.environ.get("FPGAPIPE_INPUTS") or "[]"):
        port = getattr(dut, name)
        if not port.value.is_resolvable:
            port.value = 0
    _clock_began["ps"] = int(get_sim_time("ps"))
    Clock(dut.clk, PERIOD_NS, "ns").start()
    await reset(dut, reset_cycles)


async def reset(dut: Any, cycles: int = 2) -> None:
    """Hold ``rst`` for some cycles; returns right after a rising edge."""
    dut.rst.value = 1
    await ClockCycles(dut.clk, cycles)
    dut.rst.value = 0


def cycle() -> int:
    """Return the number of the current clock cycle; a cycle begins with a rising edge."""
    return (int(get_sim_time("ps")) - _clock_began["ps"]) // (_PS_PER_NS * PERIOD_NS)


async def to_rising_edge(clk: Any) -> None:
    """Wait for the next rising edge if the clock is low, so that a cycle has just begun."""
    if not clk.value:
        await RisingEdge(clk)


def pack(word: Word, widths: Sequence[int]) -> int:
    """Concatenate fields to one integer, the first field in the least significant bits.

    Parameters
    ----------
    word : int or sequence of int
        One value per field, signed or unsigned.
    widths : sequence of int
        Widths of the fields, in bits.

    Raises
    ------
    ValueError
        If the number of fields is wrong, or a value does not fit in its field.
    """
    values = [word] if isinstance(word, int) else list(word)
    if len(values) != len(widths):
        raise ValueError(f"stream word must have {len(widths)} fields, not {len(values)}")
    packed = shift = 0
    for value, width in zip(values, widths, strict=True):
        if not -(1 << (width - 1)) <= value < 1 << width:
            raise ValueError(f"stream field must fit in {width} bits, not {value}")
        packed |= (int(value) & ((1 << width) - 1)) << shift
        shift += width
    return packed


def unpack(packed: int, widths: Sequence[int], *, signed: bool = True) -> list[int]:
    """Split an integer into fields, in two's complement if `signed`."""
    values = []
    for width in widths:
        value = packed & ((1 << width) - 1)
        packed >>= width
        values.append(value - (1 << width) if signed and value >> (width - 1) else value)
    return values


class Pauses:
    """Random pauses, with long periods of each frequency in `PAUSE_RATES`.

    Parameters
    ----------
    rng : random.Random, optional
        Source of the seed; without it there are no pauses.
    """

    def __init__(self, rng: random.Random | None) -> None:
        self._rng = random.Random(rng.random()) if rng else None
        # Each instance begins in a random phase, so that all combinations of phases occur.
        self._count = self._rng.randrange(1000) if self._rng else 0

    def __call__(self) -> bool:
        """Whether to pause in the coming cycle."""
        if self._rng is None:
            return False
        phase = self._count // PHASE_CYCLES % len(PAUSE_RATES)
        self._count += 1
        return self._rng.random() < PAUSE_RATES[phase]


class End:
    """Base class of both ends of a stream: its handshake, its pauses, and its transfer times.

    Parameters
    ----------
    name : str
        Name of the stream in messages.
    clk, valid, ready
        Ports.
    rng : random.Random, optional
        Source of the pauses; without it there are none.

    Attributes
    ----------
    cycles : list of int
        Clock cycle in which each word was transferred.
    """

    def __init__(
        self, name: str, clk: Any, valid: Any, ready: Any, rng: random.Random | None
    ) -> None:
        self.cycles: list[int] = []
        self._name, self._clk, self._valid, self._ready = name, clk, valid, ready
        self._pauses = Pauses(rng)


class Driver(End, ABC):
    """Base class that sends words into a stream; a subclass defines how ports show a word."""

    def __init__(
        self, name: str, clk: Any, valid: Any, ready: Any, rng: random.Random | None
    ) -> None:
        super().__init__(name, clk, valid, ready, rng)
        self._valid.value = 0

    @abstractmethod
    def _show(self, word: Any) -> None:
        """Drive the data ports to show a word."""

    async def send(self, words: Iterable[Any]) -> None:
        """Send words.

        It must be called right after a rising edge, and returns right after the edge at which the
        last word is transferred.
        """
        for word in words:
            while self._pauses():
                await RisingEdge(self._clk)
            self._show(word)
            self._valid.value = 1
            # Half a cycle later all combinational logic has settled, in every simulator.
            await FallingEdge(self._clk)
            while not self._ready.value:
                await FallingEdge(self._clk)
            self.cycles.append(cycle())
            await RisingEdge(self._clk)
            self._valid.value = 0


class Sink(End, ABC):
    """Base class that receives words from a stream and checks that waiting words do not change."""

    def __init__(
        self, name: str, clk: Any, valid: Any, ready: Any, rng: random.Random | None
    ) -> None:
        super().__init__(name, clk, valid, ready, rng)
        self._ready.value = 0

    @abstractmethod
    def _seen(self) -> Any:
        """Values that the data ports show."""

    def _word(self, seen: Any) -> Any:
        """Convert values of the data ports to a word."""
        return seen

    async def receive(self, count: int) -> list[Any]:
        """Receive `count` words.

        It must be called right after a rising edge, and returns right after the edge at which the
        last word is transferred.
        """
        words: list[Any] = []
        waiting: Any = None  # a word that was offered while ready was low
        while len(words) < count:
            ready = not self._pauses()
            self._ready.value = int(ready)
            await FallingEdge(self._clk)
            seen = self._seen() if self._valid.value else None
            assert waiting in (None, seen), f"{self._name} changed a word that was waiting"
            waiting = None if ready else seen
            if ready and seen is not None:
                self.cycles.append(cycle())
                words.append(self._word(seen))
            await RisingEdge(self._clk)
        self._ready.value = 0
        return words


class _Payload:
    """Payload port of a stream, and the widths of its fields."""

    def __init__(self, dut: Any, name: str, fields: Sequence[int] | None) -> None:
        self.port = getattr(dut, f"{name}__payload")
        self.is_scalar = fields is None
        self.widths = [len(self.port)] if fields is None else list(fields)
        if sum(self.widths) != len(self.port):
            raise ValueError(
                f"fields of {name} must have {len(self.port)} bits, not {sum(self.widths)}"
            )


def _handshake(dut: Any, name: str) -> tuple[str, Any, Any, Any]:
    return name, dut.clk, getattr(dut, f"{name}__valid"), getattr(dut, f"{name}__ready")


class StreamDriver(Driver):
    """Sends words into an input stream.

    Once ``valid`` is high, it stays high with the same payload until the word is transferred.

    Parameters
    ----------
    dut
        The design, with its clock ``clk``.
    name : str
        Name of the stream.
    rng : random.Random, optional
        Source of the pauses; without it there are none.
    fields : sequence of int, optional
        Widths of the payload's fields, bits; without it the payload is one integer.
    """

    def __init__(
        self,
        dut: Any,
        name: str,
        rng: random.Random | None = None,
        *,
        fields: Sequence[int] | None = None,
    ) -> None:
        self._payload = _Payload(dut, name, fields)
        super().__init__(*_handshake(dut, name), rng)

    def _show(self, word: Word) -> None:
        self._payload.port.value = pack(word, self._payload.widths)


class StreamSink(Sink):
    """Receives words from an output stream, and checks that a waiting word does not change.

    A word is an int, or a list of ints if the payload has fields.

    Parameters
    ----------
    dut, name, rng, fields
        See `StreamDriver`.
    signed : bool
        Whether fields are in two's complement.
    """

    def __init__(
        self,
        dut: Any,
        name: str,
        rng: random.Random | None = None,
        *,
        fields: Sequence[int] | None = None,
        signed: bool = True,
    ) -> None:
        self._payload = _Payload(dut, name, fields)
        self._signed = signed
        super().__init__(*_handshake(dut, name), rng)

    def _seen(self) -> int:
        seen: int = self._payload.port.value.to_unsigned()
        return seen

    def _word(self, seen: int) -> int | list[int]:
        values = unpack(seen, self._payload.widths, signed=self._signed)
        return values[0] if self._payload.is_scalar else values
