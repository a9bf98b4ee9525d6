"""Cycle model of the training core: when each instruction of a program starts and ends.

An event simulation of queues, semaphores and engines. Within an instruction, time follows from its
words, vectors and tiles; docs/core.md has the formulas. Tests hold it to the gateware.
"""

import heapq
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.address import BLOCK, OperandPattern
from fpgapipe.hw.hls_models.core_spec import CoreSpec
from fpgapipe.hw.hls_models.datapath import ACC_CYCLES
from fpgapipe.hw.hls_models.isa import (
    NUM_SEMAPHORES,
    WORD_BYTES,
    Instruction,
    Opcode,
    words_of,
)

START_CYCLES = 12
"""From the start command to the first program word's request."""

LOAD_CYCLES = 12
"""What a load takes beside its data and the memory's latency."""

BURST_CYCLES = 4
"""For which a read burst keeps its place among those under way, beside the memory's latency."""

STORE_CYCLES = 14
"""From the start of a store to its first word on the bus."""

READER_CYCLES = 24
"""From the start of a product to its first vector at the array: address generator, scratchpad,
quantiser."""

DRAIN_CYCLES = 20
"""From the array's sums to the result in the scratchpad, without the array's own latency."""

LOAD_END_CYCLES = 6
"""From a load's last word on the bus to its signal."""

STORE_END_CYCLES = 4
"""From a store's last word to its signal, without the memory's latency."""

TRANSPOSE_CYCLES = 6
"""What the transposer takes beside filling its first square."""

LOAD_QUEUE_WORDS = 16
STORE_QUEUE_WORDS = 16
GEMM_QUEUE_WORDS = 16

_EPSILON = 1e-6


@dataclass(frozen=True)
class MemorySpec:
    """The memory behind the core's bus.

    Parameters
    ----------
    bytes_per_cycle : float
        Read and written together.
    latency_cycles : int
        From a read request to its first data.
    """

    bytes_per_cycle: float = 64
    latency_cycles: int = 100

    def __post_init__(self) -> None:
        if not self.bytes_per_cycle > 0:
            raise ValueError(
                f"memory bytes_per_cycle must be above 0, not {self.bytes_per_cycle!r}"
            )
        if self.latency_cycles < 0:
            raise ValueError(
                f"memory latency_cycles must be at least 0, not {self.latency_cycles!r}"
            )


@dataclass(frozen=True)
class Prediction:
    """When a program's instructions run.

    Attributes
    ----------
    cycles : int
        From the start command to the last word written to memory, both included.
    starts, ends : tuple of float
        Of each instruction: semaphores taken, and done.
    gemm_cycles : float
        In which vectors enter an array.
    """

    cycles: int
    starts: tuple[float, ...]
    ends: tuple[float, ...]
    gemm_cycles: float


@dataclass
class _Flow:
    """Words of a transfer that are still to move."""

    index: int
    words: float
    begins: float
    fastest: float  # words a cycle, whatever else moves


class _Engine:
    """A queue of instructions in order, of a limited number of words."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.queue: deque[int] = deque()
        self.words = 0

    def has_room(self, words: int) -> bool:
        return self.words + words <= self.depth


def predict(
    program: Sequence[Instruction], core: CoreSpec, memory: MemorySpec | None = None
) -> Prediction:
    """Time a program.

    Raises
    ------
    ValueError
        If the program waits for semaphores that nothing signals.
    """
    return _Run(program, core, memory or MemorySpec()).run()


class _Run:
    """One run of the model: time goes from event to event."""

    def __init__(self, program: Sequence[Instruction], core: CoreSpec, memory: MemorySpec) -> None:
        self.program = program
        self.core = core
        self.memory = memory
        size = len(program)
        self.starts = [0.0] * size
        self.ends = [0.0] * size
        self.semaphores = [0] * NUM_SEMAPHORES
        self.signals: list[tuple[float, int]] = []  # heap of (time, instruction)
        self.engines = {
            Opcode.LOAD: _Engine(LOAD_QUEUE_WORDS),
            Opcode.STORE: _Engine(STORE_QUEUE_WORDS),
        }
        self.gemms = [_Engine(GEMM_QUEUE_WORDS) for _ in range(core.num_engines)]
        self.flows: dict[Opcode, deque[_Flow]] = {Opcode.LOAD: deque(), Opcode.STORE: deque()}
        self.streams_until = [0.0] * core.num_engines
        self.weights_until = [0.0] * core.num_engines
        self.gemm_cycles = 0.0
        self.last_word = 0.0
        self.bus_words = min(memory.bytes_per_cycle, core.bus_bytes) / WORD_BYTES

    def run(self) -> Prediction:
        now = float(START_CYCLES + self.memory.latency_cycles)
        next_dispatch, at = now, 0
        while True:
            # Whatever can happen now happens; then time goes on to the next event.
            again = True
            while again:
                again = False
                while self.signals and self.signals[0][0] <= now + _EPSILON:
                    for number in self.program[heapq.heappop(self.signals)[1]].signal:
                        self.semaphores[number] += 1
                    again = True
                if at < len(self.program) and next_dispatch <= now + _EPSILON:
                    instruction = self.program[at]
                    engine = self._engine(instruction)
                    words = words_of(instruction.opcode)
                    if engine is None:
                        at = len(self.program)
                    elif engine.has_room(words):
                        engine.queue.append(at)
                        engine.words += words
                        at += 1
                        next_dispatch = now + words + 1
                        again = True
                for engine in (*self.engines.values(), *self.gemms):
                    again = self._issue(engine, now) or again
            upcoming = [time for time, _ in self.signals[:1]]
            if at < len(self.program) and next_dispatch > now:
                upcoming.append(next_dispatch)
            upcoming += self._flow_events(now)
            if not upcoming:
                break
            after = min(upcoming)
            self._move(now, after)
            now = after
        waiting = [e.queue[0] for e in (*self.engines.values(), *self.gemms) if e.queue]
        if waiting or (at < len(self.program)):
            raise ValueError(
                "the program waits for semaphores that nothing signals: "
                + "; ".join(f"instruction {i}: {self.program[i]}" for i in waiting)
            )
        return Prediction(
            math.ceil(max([self.last_word, *self.ends]))
            if not self.last_word
            else math.ceil(self.last_word),
            tuple(self.starts),
            tuple(self.ends),
            self.gemm_cycles,
        )

    def _engine(self, instruction: Instruction) -> _Engine | None:
        if instruction.opcode == Opcode.GEMM:
            return self.gemms[instruction.engine]
        return self.engines.get(instruction.opcode)

    def _issue(self, engine: _Engine, now: float) -> bool:
        """Start the instruction at the head of a queue if its semaphores let it."""
        if not engine.queue:
            return False
        index = engine.queue[0]
        instruction = self.program[index]
        if any(not self.semaphores[number] for number in instruction.wait):
            return False
        for number in instruction.wait:
            self.semaphores[number] -= 1
        engine.queue.popleft()
        engine.words -= words_of(instruction.opcode)
        self.starts[index] = now
        if instruction.opcode == Opcode.GEMM:
            end = self._gemm(instruction, now)
            self.ends[index] = end
            heapq.heappush(self.signals, (end, index))
        else:
            self.flows[instruction.opcode].append(self._transfer(index, instruction, now))
        return True

    def _transfer(self, index: int, instruction: Instruction, now: float) -> _Flow:
        words, rows = words_of_transfer(instruction.body)
        latency = self.memory.latency_cycles
        if instruction.opcode == Opcode.LOAD:
            # A burst is a row or the longest one; so many may be under way.
            burst = max(self.core.burst_beats * self.core.bus_bytes // WORD_BYTES, 1)
            burst_words = min(words / rows, burst)
            fastest = min(1.0, self.core.outstanding * burst_words / (latency + BURST_CYCLES))
            return _Flow(index, words, now + LOAD_CYCLES + latency, fastest)
        return _Flow(index, words, now + STORE_CYCLES, 1.0)

    def _rates(self, now: float) -> dict[Opcode, float]:
        """Words a cycle of the load and of the store that are moving."""
        moving = {
            opcode: flow[0]
            for opcode, flow in self.flows.items()
            if flow and flow[0].begins <= now + _EPSILON
        }
        share = self.bus_words / max(len(moving), 1)
        rates = {opcode: min(flow.fastest, share) for opcode, flow in moving.items()}
        spare = self.bus_words - sum(rates.values())
        for opcode, flow in moving.items():
            more = min(flow.fastest - rates[opcode], spare)
            rates[opcode] += more
            spare -= more
        return rates

    def _flow_events(self, now: float) -> list[float]:
        rates = self._rates(now)
        events = [now + self.flows[opcode][0].words / rate for opcode, rate in rates.items()]
        events += [
            flow[0].begins
            for flow in self.flows.values()
            if flow and flow[0].begins > now + _EPSILON
        ]
        return events

    def _move(self, now: float, after: float) -> None:
        """Let transfers go on until `after`; those that end signal later."""
        for opcode, rate in self._rates(now).items():
            flow = self.flows[opcode][0]
            flow.words -= rate * (after - now)
            if flow.words > _EPSILON:
                continue
            self.flows[opcode].popleft()
            end = after + LOAD_END_CYCLES
            if opcode == Opcode.STORE:
                self.last_word = max(self.last_word, after)
                end = after + STORE_END_CYCLES + self.memory.latency_cycles
            self.ends[flow.index] = end
            heapq.heappush(self.signals, (end, flow.index))

    def _gemm(self, instruction: Instruction, now: float) -> float:
        """Take a product through its engine; returns when it is done."""
        body, engine = instruction.body, instruction.engine
        core = self.core
        timing = gemm_timing(body, core)
        # Weights of the first tile follow those of the tile before as fast as they are read;
        # without one before, they come when the product starts.
        first_b = max(
            now + READER_CYCLES + timing.b_late + core.cols,
            self.weights_until[engine] + timing.b_words,
        )
        first_a = now + READER_CYCLES + timing.a_late
        begins = max(first_b + 1, first_a, self.streams_until[engine])
        ends = begins + timing.stream_cycles
        last_tile_from = ends - timing.last_tile_cycles
        self.weights_until[engine] = max(last_tile_from, first_b + timing.later_b_words)
        self.streams_until[engine] = ends
        self.gemm_cycles += ends - begins
        return ends + core.array.latency_cycles + DRAIN_CYCLES


def words_of_transfer(body: Mapping[str, Any]) -> tuple[int, int]:
    """Words of 64 bytes that a LOAD or STORE moves, and its rows; rows begin anywhere in a word."""
    rows, planes = np.arange(body["rows"] + 1), np.arange(body["planes"] + 1)
    starts = (
        body["memory"] + planes[:, None] * body["plane_memory"] + rows * body["row_memory"]
    ) % WORD_BYTES
    words = -(-(starts + body["row_bytes"]) // WORD_BYTES)
    return int(words.sum()), words.size


@dataclass(frozen=True)
class GemmTiming:
    """What a product takes of its engine.

    Attributes
    ----------
    stream_cycles : int
        From its first vector to its last, both included, if operands come in time.
    last_tile_cycles : int
        The part of it that is the last tile.
    a_late, b_late : int
        Cycles by which a transposed or FP32 operand's first vector is later than another's.
    b_words, later_b_words : int
        Cycles for which the first tile's weights, and all others', are read.
    """

    stream_cycles: int
    last_tile_cycles: int
    a_late: int
    b_late: int
    b_words: int
    later_b_words: int


def gemm_timing(body: Mapping[str, Any], core: CoreSpec) -> GemmTiming:
    """Time of one GEMM instruction from its fields.

    A tile takes as long as the slowest of what it needs: its vectors, one a cycle; the columns of
    the next tile; the reading of either operand, a word or half a word of 32 elements a cycle; the
    accumulators. The last tile of a sum also hands the results over.
    """
    extent = body["extent"]
    m, k, n = (extent[name] + 1 for name in ("m", "k", "n"))
    a_words = _words_of_tiles(body["a"], m, k * n)
    b_words = _words_of_tiles(body["b"], core.cols, k * n)
    shortest = max(m, core.cols if k * n > 1 else 0)
    if not (extent["first"] and k == 1):
        shortest = max(shortest, ACC_CYCLES)
    # The array waits for a tile's weights, which are read while the tile before streams.
    tiles = np.maximum(np.maximum(a_words, np.append(b_words[1:], 0)), shortest)
    tiles[-1] = max(m, a_words[-1])
    if extent["last"]:
        element = 4 if body["result"]["fp32"] else 2
        writes = -(-core.cols * element // WORD_BYTES)
        tiles[k - 1 :: k] = np.maximum(tiles[k - 1 :: k], m * writes)
    return GemmTiming(
        stream_cycles=int(tiles.sum()),
        last_tile_cycles=int(tiles[-1]),
        a_late=_late(body["a"]),
        b_late=_late(body["b"]),
        b_words=int(b_words[0]),
        later_b_words=int(b_words[1:].sum()),
    )


def _words_of_tiles(operand: Mapping[str, Any], vectors: int, tiles: int) -> NDArray[np.int64]:
    """Cycles for which the scratchpad is read for each tile.

    An FP32 word takes two, unless it is one of zeros alone, which is not read.
    """
    if operand["fp32"]:
        words = OperandPattern.decoded(operand).words()
        reads = 1 + words.lanes.any(axis=1)
        cycles: NDArray[np.int64] = reads.reshape(tiles, -1).sum(axis=1)
        return cycles
    if operand["transposed"]:
        taps = math.prod(loop["count"] + 1 for loop in operand["tap"])
        groups = math.prod(loop["count"] + 1 for loop in operand["pos"]) // BLOCK
        vectors = BLOCK * (taps if operand["walks_blocks"] else groups)
    return np.full(tiles, vectors, np.int64)


def _late(operand: Mapping[str, Any]) -> int:
    halves = 2 if operand["fp32"] else 1
    return (BLOCK * halves + TRANSPOSE_CYCLES) if operand["transposed"] else halves - 1
