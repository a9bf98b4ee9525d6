"""What testbenches share: parameters, clock and reset, and both ends of a stream.

A stream of ``amaranth.lib.stream`` named ``i`` has the ports ``i__payload``, ``i__valid`` and
``i__ready``; it moves a word at each rising clock edge at which valid and ready are high.

Words are integers. A payload of several fields, such as Amaranth's array and structure layouts, is
a sequence of integers, one a field, the first in the least significant bits; ``fields`` gives their
widths. A structure of an array and a flag is flat: ``[*array, flag]``.
"""

import json
import os
import random
from collections.abc import Iterable, Sequence
from typing import Any

from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge
from cocotb.utils import get_sim_time

PERIOD_NS = 10
"""Clock period of every testbench."""

PHASE_CYCLES = 16
"""Random pauses change their frequency after this many cycles."""

PAUSE_RATES = (0.3, 0.0, 0.9)
"""The frequencies, one after another.

Long stretches without a pause and long ones with hardly a word meet other faults than a steady
mixture does.
"""

Word = int | Sequence[int]


def parameters() -> dict[str, Any]:
    """Return the parameters that `simulate` was given: the fields of the gateware's spec."""
    values: dict[str, Any] = json.loads(os.environ.get("FPGAPIPE_PARAMETERS", "{}"))
    return values


async def start(dut: Any) -> None:
    """Start the clock, ``clk``, and hold ``rst`` for two cycles."""
    Clock(dut.clk, PERIOD_NS, "ns").start()
    await reset(dut)


async def reset(dut: Any) -> None:
    """Hold ``rst`` for two cycles; returns right after a rising edge."""
    dut.rst.value = 1
    await ClockCycles(dut.clk, 2)
    dut.rst.value = 0


def cycle() -> int:
    """Return the number of the running clock cycle."""
    return int(get_sim_time("ps")) // (1000 * PERIOD_NS)


def pack(word: Word, widths: Sequence[int]) -> int:
    """Put fields side by side, the first in the least significant bits.

    Parameters
    ----------
    word : int or sequence of int
        A value a field, signed or not.
    widths : sequence of int
        The fields' widths, in bits.

    Raises
    ------
    ValueError
        If the number of fields differs, or a value does not fit.
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
    """Take fields apart again, as two's complement if `signed`."""
    values = []
    for width in widths:
        value = packed & ((1 << width) - 1)
        packed >>= width
        values.append(value - (1 << width) if signed and value >> (width - 1) else value)
    return values


class _End:
    """One end of a stream: its ports, its pauses, and when its words moved.

    Attributes
    ----------
    cycles : list of int
        The clock cycle in which each word moved.
    """

    def __init__(
        self,
        dut: Any,
        name: str,
        rng: random.Random | None,
        fields: Sequence[int] | None,
    ) -> None:
        self.cycles: list[int] = []
        self._name = name
        self._clk = dut.clk
        self._payload = getattr(dut, f"{name}__payload")
        self._valid = getattr(dut, f"{name}__valid")
        self._ready = getattr(dut, f"{name}__ready")
        self._scalar = fields is None
        self._widths = [len(self._payload)] if fields is None else list(fields)
        if sum(self._widths) != len(self._payload):
            raise ValueError(
                f"fields of {name} must have {len(self._payload)} bits, not {sum(self._widths)}"
            )
        self._rng = random.Random(rng.random()) if rng else None
        # Ends begin in different phases, so that all combinations come up.
        self._num_decisions = self._rng.randrange(1000) if self._rng else 0

    def _pauses(self) -> bool:
        """Whether to pause in the coming cycle."""
        if self._rng is None:
            return False
        phase = self._num_decisions // PHASE_CYCLES % len(PAUSE_RATES)
        self._num_decisions += 1
        return self._rng.random() < PAUSE_RATES[phase]


class StreamDriver(_End):
    """Sends words into an input stream.

    Once ``valid`` is high it stays so, with the same payload, until the word has moved.

    Parameters
    ----------
    dut
        The design, with its clock ``clk``.
    name : str
        The stream's name.
    rng : random.Random, optional
        Decides on pauses; without it there are none.
    fields : sequence of int, optional
        Widths of the payload's fields; without it the payload is one integer.
    """

    def __init__(
        self,
        dut: Any,
        name: str,
        rng: random.Random | None = None,
        *,
        fields: Sequence[int] | None = None,
    ) -> None:
        super().__init__(dut, name, rng, fields)
        self._valid.value = 0

    async def send(self, words: Iterable[Word]) -> None:
        """Send words; call right after a rising edge, returns right after that of the last word."""
        for word in words:
            while self._pauses():
                await RisingEdge(self._clk)
            self._payload.value = pack(word, self._widths)
            self._valid.value = 1
            # Half a cycle later all combinational logic has settled, in every simulator.
            await FallingEdge(self._clk)
            while not self._ready.value:
                await FallingEdge(self._clk)
            self.cycles.append(cycle())
            await RisingEdge(self._clk)
            self._valid.value = 0


class StreamSink(_End):
    """Receives words from an output stream, and checks that it keeps a word that waits.

    Parameters
    ----------
    dut, name, rng, fields
        As for `StreamDriver`.
    signed : bool
        Whether fields are two's complement.
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
        super().__init__(dut, name, rng, fields)
        self._signed = signed
        self._ready.value = 0

    async def receive(self, count: int) -> list[Any]:
        """Receive `count` words; call right after a rising edge, returns right after the last's.

        Returns
        -------
        list
            An int a word, or a list of ints where the payload has fields.
        """
        words: list[Any] = []
        waiting: int | None = None  # the payload that valid offered and ready refused
        while len(words) < count:
            ready = not self._pauses()
            self._ready.value = int(ready)
            await FallingEdge(self._clk)
            payload = self._payload.value.to_unsigned() if self._valid.value else None
            assert waiting in (None, payload), f"{self._name} changed a word that was waiting"
            waiting = None if ready else payload
            if ready and payload is not None:
                self.cycles.append(cycle())
                values = unpack(payload, self._widths, signed=self._signed)
                words.append(values[0] if self._scalar else values)
            await RisingEdge(self._clk)
        self._ready.value = 0
        return words
