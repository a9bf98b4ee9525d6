"""Initial state of a run of the cycle model, as tables, and what a run has found.

The times that an instruction takes on its own are computed once for each body, since many products
and vector instructions share one. :mod:`fpgapipe.hw.hls_models.cycles.simulation` runs the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.cycles.bus_cycles import NEVER, channels_of_bus
from fpgapipe.hw.hls_models.cycles.cycle_tables import (
    CHANNEL,
    CODE,
    DEVICE,
    ENGINE,
    EVENT,
    FLOW,
    PORT,
    PRODUCT,
    RECEIVED,
    SENT,
    WHOLE,
    State,
    column,
    rows_of_table,
)
from fpgapipe.hw.hls_models.cycles.end_cycles import EndCycles, end_cycles
from fpgapipe.hw.hls_models.cycles.engine_cycles import (
    SUMMED_CYCLES,
    WRITTEN_CYCLES,
    Kind,
)
from fpgapipe.hw.hls_models.cycles.instruction_cycles import (
    gemm_timing,
    once_for_each_body,
    words_of_transfer,
)
from fpgapipe.hw.hls_models.cycles.vector_cycles import meeting_cycles, vector_cycles
from fpgapipe.hw.hls_models.isa.instructions import (
    LINK_OPCODES,
    WORD_BYTES,
    Opcode,
)
from fpgapipe.hw.hls_models.isa.program import Program
from fpgapipe.hw.hls_models.isa.vector_op import VectorOp
from fpgapipe.hw.hls_models.model.dma import burst_words, bursts
from fpgapipe.hw.hls_models.model.link_dma import rows_of, send_words, words_of_packet
from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.hls_models.spec.link import NUM_CHANNELS
from fpgapipe.hw.hls_models.spec.on_chip import LinkEndSpec

_T = TypeVar("_T")


@dataclass
class Port:
    """One end of a link, with what a simulation finds about it.

    Parameters
    ----------
    spec : LinkEngineSpec or OnChipSpec
    rate : float
        Bytes that go over the wire each cycle.
    latency_cycles : float
        Latency of the wire.
    other : int
        Number of the other end, if the ends of all runs are numbered together; -1 without a wire.

    Attributes
    ----------
    words, frames : int
        Traffic that this end has sent, and its packets' tags.
    busy_cycles : float
        Cycles in which the wire carried a frame with words.
    sends, receives : int or None
        The SEND whose words wait, and the RECEIVE that waits for words, if there is one.
    """

    spec: LinkEndSpec
    rate: float
    latency_cycles: float
    other: int = -1
    words: int = 0
    frames: int = 0
    busy_cycles: float = 0.0
    sends: int | None = None
    receives: int | None = None


@dataclass(frozen=True)
class Held:
    """Order in which RECEIVEs end that are held back until nothing else is left to do.

    Attributes
    ----------
    task_of : sequence of int
        Number of the task of each instruction, in the order of the program. The RECEIVEs of a task
        end together.
    waiter_of : mapping of int to int
        For each RECEIVE that an instruction waits for, the number of the first such instruction.
    """

    task_of: Sequence[int]
    waiter_of: Mapping[int, int]


@dataclass
class Run:
    """A program on a core, with what a simulation finds about it.

    Parameters
    ----------
    program : Program
    core : CoreSpec
    bytes_per_cycle, latency_cycles : float
        Bandwidth and latency of the memory.
    link_bytes_per_cycle : sequence of float
        Payload bandwidth of each link.
    begins : float
        Time of the start command.
    ports : sequence of Port
        Ends of the core's links. Without them, a link takes words only as fast as it sends them,
        and what is received is there as soon as it is asked for.
    held : Held, optional
        Tasks of the instructions, if RECEIVEs end only when the run cannot go on without them.

    Attributes
    ----------
    starts, ends : list of float
        Times as in `Prediction`, for the instructions that have started or ended.
    gemm_cycles : float
        Cycles in which vectors have entered an array.
    written : float
        Time at which the last word was written.
    next_instruction : int
        Number of the first instruction that has not been dispatched.
    queued : list of int
        The first instruction of each queue that has not begun.
    """

    program: Program
    core: CoreSpec
    bytes_per_cycle: float
    latency_cycles: int
    link_bytes_per_cycle: Sequence[float]
    begins: float = 0.0
    ports: Sequence[Port] = ()
    held: Held | None = None
    starts: list[float] = field(init=False, default_factory=list)
    ends: list[float] = field(init=False, default_factory=list)
    gemm_cycles: float = field(init=False, default=0.0)
    written: float = field(init=False, default=0.0)
    next_instruction: int = field(init=False, default=0)
    queued: list[int] = field(init=False, default_factory=list)

    def waiting(self) -> list[str]:
        """Describe the instructions that wait: those of links, then the first of each queue."""
        begun = [port.sends for port in self.ports] + [port.receives for port in self.ports]
        heads = self.queued
        if self.next_instruction < len(self.program) and not heads:
            heads = [self.next_instruction]
        found = [*(index for index in begun if index is not None), *heads]
        return [f"instruction {index}: {self.program[index]}" for index in found]


def _engines_of(run: Run) -> dict[tuple[Opcode, int], tuple[Kind, int]]:
    """Return the engines of a core in their order: the kind of each, and its queue's words."""
    core, spec = run.core, SequencerSpec.of(run.core)
    sends = Kind.LINK_SEND if run.ports else Kind.SEND
    receives = Kind.LINK_RECEIVE if run.ports else Kind.HELD if run.held else Kind.RECEIVE
    found = {
        (Opcode.LOAD, 0): (Kind.LOAD, spec.load_words),
        (Opcode.STORE, 0): (Kind.STORE, spec.store_words),
    }
    for engine in range(core.num_engines):
        found[Opcode.GEMM, engine] = Kind.GEMM, spec.gemm_words
    if core.vector:
        found[Opcode.VECTOR, 0] = Kind.VECTOR, spec.vector_words
    for link in range(spec.num_links):
        found[Opcode.SEND, link] = sends, spec.send_words
        found[Opcode.RECEIVE, link] = receives, spec.receive_words
    return found


class Tables:
    """Initial state of some runs, as records.

    Parameters
    ----------
    runs : sequence of Run
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.firsts = np.cumsum([0, *(len(run.program) for run in runs)])
        self.devices = np.zeros(len(runs), DEVICE)
        self.code = np.zeros(self.firsts[-1], CODE)
        self._engines: list[NDArray[Any]] = []
        self._channels: list[NDArray[Any]] = []
        self._ports: list[NDArray[Any]] = []
        self._queue: list[NDArray[np.int64]] = []
        self._sends: list[NDArray[Any]] = [np.zeros(0, SENT)]
        self._receives: list[NDArray[Any]] = [np.zeros(0, RECEIVED)]
        self._products: dict[tuple[int, ...], int] = {}
        for device, run in enumerate(runs):
            self._add(device, run)

    def state(self, num_events: int, num_flows: int, digest: str = "") -> State:
        """Return new tables with room for a number of events and flows per device.

        A digest of the machine code's sources becomes part of the type of `whole`.
        """
        flows = np.zeros(num_flows * len(self.runs), FLOW)
        flows["next"] = np.arange(1, len(flows) + 1)
        flows["next"][-1] = -1
        fields: list[Any] = [(name, np.int64) for name in (WHOLE.names or ())]
        whole = np.zeros(1, [*fields, (f"sources_{digest}", np.int64)] if digest else WHOLE)
        whole["most_events"] = num_events
        whole["failed"] = -1
        products = np.zeros(len(self._products), PRODUCT)
        products[:] = list(self._products)
        return State(
            whole=whole,
            devices=self.devices.copy(),
            engines=_joined(self._engines, ENGINE),
            channels=_joined(self._channels, CHANNEL),
            ports=_joined(self._ports, PORT),
            flows=flows,
            events=np.zeros(num_events * len(self.runs), EVENT),
            code=self.code.copy(),
            queue=np.concatenate([np.zeros(0, np.int64), *self._queue]),
            products=products,
            sends=_joined(self._sends, SENT),
            receives=_joined(self._receives, RECEIVED),
        )

    def finish(self, state: State) -> None:
        """Write the results of a simulation to the runs.

        Raises
        ------
        ValueError
            If a program needs an engine that its core does not have.
        """
        devices, engines = rows_of_table(state.devices), rows_of_table(state.engines)
        ports = iter(rows_of_table(state.ports))
        failed = int(rows_of_table(state.whole)[0].failed)
        for device, run in enumerate(self.runs):
            own = devices[device]
            first, end = map(int, self.firsts[device : device + 2])
            run.next_instruction = own.next - first
            if device == failed:
                raise ValueError(
                    f"instruction {run.next_instruction} is for an engine that the core does not "
                    f"have: {run.program[run.next_instruction]}"
                )
            run.starts = column(state.code, "start", first, end)
            run.ends = column(state.code, "end", first, end)
            run.gemm_cycles, run.written = own.gemm_cycles, own.written
            run.queued = [
                int(state.queue[engine.head]) - first
                for engine in engines[own.first_engine : own.end_engine]
                if engine.head < engine.tail
            ]
            for port in run.ports:
                row = next(ports)
                port.words, port.frames, port.busy_cycles = row.words, row.frames, row.busy
                at = row.entering if row.entering < row.waiting else row.asked
                sends = column(state.sends, "index", at, min(at + 1, row.wanted))
                receives = column(
                    state.receives, "index", row.taken, min(row.taken + 1, row.awaited)
                )
                port.sends, port.receives = (
                    waiting[0] - first if waiting else None for waiting in (sends, receives)
                )

    def _add(self, device: int, run: Run) -> None:
        """Add a device."""
        first, core = int(self.firsts[device]), run.core
        spec = SequencerSpec.of(core)
        rate = run.bytes_per_cycle / WORD_BYTES
        latency = run.latency_cycles + core.port_cycles
        channels = channels_of_bus(core, rate, latency, run.link_bytes_per_cycle)
        engines = _engines_of(run)
        first_channel = sum(map(len, self._channels))
        first_engine = sum(map(len, self._engines))
        own = self.devices[device : device + 1]
        for name, value in {
            "begins": run.begins,
            "latency": latency,
            "rate": rate,
            "width": core.bus_bytes / WORD_BYTES,
            "longest": core.burst_beats * core.bus_bytes / WORD_BYTES,
            "bus_next": NEVER,
            "first_channel": first_channel,
            "end_channel": first_channel + len(channels),
            "first_engine": first_engine,
            "end_engine": first_engine + len(engines),
            "next": first,
            "end": first + len(run.program),
            "full": -1,
            "room": spec.prefetch_words,
            "fetch_words": spec.fetch_words,
            "word_parts": spec.word_parts,
            "header_parts": spec.header_parts,
        }.items():
            own[name] = value
        self._channels.append(channels)
        first_port = sum(map(len, self._ports))
        table = np.zeros(len(engines), ENGINE)
        table["may_begin"] = spec.in_flight
        table["until"] = table["port"] = -1
        table["load"], table["latency"] = core.array.load_cycles, core.array.latency_cycles
        for at, ((opcode, number), (kind, depth)) in enumerate(engines.items()):
            is_packet = opcode in LINK_OPCODES
            channel = 2 * (number + 1) if is_packet else 0
            channel += opcode in (Opcode.STORE, Opcode.RECEIVE)
            table["kind"][at], table["depth"][at] = kind, depth
            table["channel"][at] = first_channel + channel
            if is_packet:
                table["port"][at] = first_port + number
        code = self.code[first : first + len(run.program)]
        where = self._decode(run, code, engines)
        packets: dict[int, list[int]] = {}
        for number, (opcode, link) in enumerate(engines):
            if opcode in LINK_OPCODES:
                packets.setdefault(link, []).extend(np.flatnonzero(where == number).tolist())
        # The instructions of each queue are in the order of the program.
        ends = np.bincount(where + 1, minlength=len(table) + 1).cumsum()
        begins = ends[:-1] + sum(map(len, self._queue))
        table["head"] = table["tail"] = table["released"] = begins
        self._queue.append(np.argsort(where, kind="stable") + first)
        code["engine"] = np.where(where < 0, -1, where + first_engine)
        self._engines.append(table)
        if run.held is not None:
            tasks = run.held.task_of[: len(code)]
            code["task"][: len(tasks)] = tasks
            code["waiter"] = -1
            for index, waiter in run.held.waiter_of.items():
                code["waiter"][index] = waiter
        self._ports.append(self._link_ends(device, first_channel, packets))

    def _decode(
        self, run: Run, code: NDArray[Any], engines: Mapping[tuple[Opcode, int], tuple[Kind, int]]
    ) -> NDArray[np.int64]:
        """Fill in the times of instructions; return the number of each one's engine, or -1."""
        ends = run.program.places_of(Opcode.END)
        end = int(ends[0]) if ends.size else len(run.program)
        code["is_end"][end : end + 1] = 1
        own, program = code[:end], run.program[:end]
        own["program_words"] = program.words
        own["waits"], own["signals"] = program.waits, program.signals
        numbers = np.full((max(Opcode) + 1, 1 << 8), -1)
        for number, key in enumerate(engines):
            numbers[key] = number
        where = np.full(len(code), -1)
        where[:end] = numbers[program.opcodes, program.engines]
        for number, ((opcode, _), (kind, _)) in enumerate(engines.items()):
            places = np.flatnonzero(where == number)
            if not places.size:
                continue
            if opcode is Opcode.GEMM:
                found = _each(program, places, lambda body: (self._product(body, run.core),))
                (own["product"][places],) = found
            elif opcode is Opcode.VECTOR:
                found = _each(program, places, lambda body: _vector(body, run.core))
                own["takes"][places], own["lost"][places] = found
            elif opcode in LINK_OPCODES:
                found = _each(program, places, lambda body: (body["in_scratchpad"],))
                (own["on_chip"][places],) = found
            if kind in (Kind.LOAD, Kind.STORE, Kind.SEND, Kind.RECEIVE):
                own["words"][places], own["bursts"][places] = _transfers(program, places, run.core)
        return where

    def _product(self, body: Mapping[str, Any], core: CoreSpec) -> int:
        """Return the row of a product's times in the table of products."""
        timing = gemm_timing(body, core)
        written = WRITTEN_CYCLES + timing.writes - 1
        row = (
            *(timing.stream_cycles, timing.last_tile_cycles, timing.a_late, timing.b_late),
            *(timing.a_ahead, timing.b_words, timing.later_b_words, timing.stall_cycles),
            written if timing.writes else SUMMED_CYCLES,
        )
        return self._products.setdefault(row, len(self._products))

    def _link_ends(
        self, device: int, first_channel: int, packets: Mapping[int, Sequence[int]]
    ) -> NDArray[Any]:
        """Return the ports of a device, and add their frames and bursts to the tables.

        `packets` has the places of each link's instructions.
        """
        run, first = self.runs[device], int(self.firsts[device])
        table = np.zeros(len(run.ports), PORT)
        for link, port in enumerate(run.ports):
            own = table[link : link + 1]
            sends, receives = (sum(map(len, each)) for each in (self._sends, self._receives))
            for name in ("first_send", "wanted", "asked", "waiting", "entering", "entered", "told"):
                own[name] = sends
            for name in ("awaited", "taken", "written"):
                own[name] = receives
            own["device"], own["other"] = device, port.other
            own["sent_channel"] = first_channel + 2 + 2 * link
            own["wire_latency"] = port.latency_cycles
            own["words_room"] = send_words(run.core)
            own["parts"] = port.spec.parts
            own["rate"] = port.rate
            own["room"] = port.spec.slots
            own["overhead_bytes"] = port.spec.overhead_bytes
            ends = end_cycles(port.spec)
            for name in ("cuts_through", "transmit", "arrive", "freed", "heard"):
                own[name] = getattr(ends, name)
            frames = [0] * NUM_CHANNELS
            for index in sorted(packets[link]):
                body = run.program.body(index)
                channel = body["channel"]
                if run.program.opcodes[index] == Opcode.SEND:
                    chunks = _frames(words_of_packet(body), ends.chunk_words)
                    self._sends.append(chunks)
                else:
                    chunks = _bursts(body, run.core, ends, port.spec.slots[channel])
                    size = 1 + int(chunks["words"].sum())
                    chunks["frame"] += frames[channel]
                    frames[channel] += -(-size // ends.chunk_words)
                    self._receives.append(chunks)
                chunks["index"], chunks["channel"] = first + index, channel
                self.code["chunks"][first + index] = len(chunks)
        return table


def _each(
    program: Program,
    places: NDArray[np.int64],
    function: Callable[[Mapping[str, Any]], tuple[int, ...]],
) -> NDArray[np.int64]:
    """Apply a function to the bodies of some instructions, once to each.

    What it returns has a row for each number of the function's results.
    """
    numbers, which = np.unique(program.body_of[places], return_inverse=True)
    found = [function(program.bodies[number]) for number in numbers.tolist()]
    return np.array(found, np.int64)[which].T


def _transfers(
    program: Program, places: NDArray[np.int64], core: CoreSpec
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the words and bursts of transfers, with the rules of `words_of_transfer`."""
    block = max(core.burst_beats * core.bus_bytes, WORD_BYTES)
    body_of = program.body_of[places]
    memory, size, rows, _, planes, _ = program.bodies.rows[body_of].T
    starts = (np.maximum(memory, 0) + program.numbers[places]) % block
    lasts = starts + size - 1
    words, bursts = (lasts // each - starts // each + 1 for each in (WORD_BYTES, block))
    several = np.flatnonzero(rows | planes)
    pairs, which = np.unique(body_of[several] * block + starts[several], return_inverse=True)
    found = [
        words_of_transfer({**program.bodies[pair // block], "memory": pair % block}, core)
        for pair in pairs.tolist()
    ]
    words[several], bursts[several] = np.array(found, np.int64).reshape(-1, 2)[which].T
    if not bursts.all():
        raise ValueError("a transfer must have at least 1 burst, not 0")
    return words, bursts


@once_for_each_body
def _vector(body: Mapping[str, Any], core: CoreSpec) -> tuple[int, int]:
    """Return the cycles of a VECTOR, and those that its operands lose in a shared bank."""
    assert core.vector is not None
    op = VectorOp.decoded(body)
    lost = meeting_cycles(op, core.vector, core.scratchpad)
    return vector_cycles(op, core.vector, core.scratchpad.parts), lost


def _frames(words: int, frame_words: int) -> NDArray[Any]:
    """Return the frames of a SEND; the first frame has the tag as well."""
    sizes = []
    if words:
        sizes = [min(words, frame_words - 1)]
        whole, rest = divmod(words - sizes[0], frame_words)
        sizes += [frame_words] * whole + [rest] * (rest > 0)
    chunks = np.zeros(len(sizes), SENT)
    chunks["words"] = chunks["link_words"] = sizes
    chunks["link_words"][:1] += 1
    chunks["is_last"][-1:] = 1
    return chunks


def _bursts(body: Mapping[str, Any], core: CoreSpec, link: EndCycles, slots: int) -> NDArray[Any]:
    """Return the bursts of a RECEIVE, with the frames that they need and those that they free.

    Words are taken as they come. The model takes those of a burst together, so a burst that is
    longer than the room for its words counts as several.
    """
    longest = burst_words(core)
    # Only the place of the first word in a burst matters.
    names = ("row_bytes", "rows", "planes", "row_memory", "plane_memory")
    memory = body["memory"] % (longest * WORD_BYTES)
    bursts_words = _sizes(longest, memory, *(body[name] for name in names))
    # A tag has come before, which may be the last of the first frame's words to be taken.
    room = slots - 1 if link.cuts_through else (slots - 1) * link.chunk_words
    most = min(room, link.chunk_words) if link.cuts_through else room
    if max(bursts_words, default=0) > most:
        part = most if link.cuts_through else max(room // 2, 1)
        cut = (range(0, each, part) for each in bursts_words)
        pairs = zip(bursts_words, cut, strict=True)
        bursts_words = [min(part, each - at) for each, begins in pairs for at in begins]
    sizes = np.array(bursts_words, np.int64)
    chunks = np.zeros(len(sizes), RECEIVED)
    ends = 1 + sizes.cumsum()
    whole = ends // link.chunk_words
    whole[-1:] = -(-ends[-1:] // link.chunk_words)
    chunks["words"], chunks["frame"] = sizes, (ends - 1) // link.chunk_words
    chunks["frees"] = np.diff(ends if link.cuts_through else whole, prepend=0)
    chunks["is_last"][-1:] = 1
    return chunks


@lru_cache(maxsize=1 << 10)
def _sizes(
    longest: int,
    memory: int,
    row_bytes: int,
    rows: int,
    planes: int,
    row_memory: int,
    plane_memory: int,
) -> list[int]:
    """Return the words of each burst of a packet."""
    body = {"memory": memory, "rows": rows, "planes": planes}
    body |= {"row_memory": row_memory, "plane_memory": plane_memory}
    return [
        size // WORD_BYTES
        for start in rows_of(body)
        for _, size in bursts(start, row_bytes, longest)
    ]


def _joined(tables: Sequence[NDArray[Any]], kind: np.dtype[Any]) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, kind), *tables])
