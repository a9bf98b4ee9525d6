"""Initial state of a run of the cycle model, as arrays of records for machine code.

The times that an instruction takes on its own are computed once for each body, since many products
and vector instructions share one. :mod:`fpgapipe.hw.hls_models.cycles.compiled_core` runs the
tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import inf
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.cycles import engine_cycles as engines
from fpgapipe.hw.hls_models.cycles.bus_cycles import Bus, Channel
from fpgapipe.hw.hls_models.cycles.end_cycles import EndCycles
from fpgapipe.hw.hls_models.cycles.engine_cycles import PROGRAM_WORDS, Engine, Kind
from fpgapipe.hw.hls_models.cycles.instruction_cycles import gemm_timing, words_of_transfer
from fpgapipe.hw.hls_models.cycles.vector_cycles import meeting_cycles, vector_cycles
from fpgapipe.hw.hls_models.isa.instructions import (
    LINK_OPCODES,
    NUM_SEMAPHORES,
    WORD_BYTES,
    Instruction,
    Opcode,
    mask_of,
)
from fpgapipe.hw.hls_models.isa.vector_op import VectorOp
from fpgapipe.hw.hls_models.model.dma import burst_words, bursts
from fpgapipe.hw.hls_models.model.link_dma import rows_of, send_words, words_of_packet
from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.hls_models.spec.link import NUM_CHANNELS
from fpgapipe.hw.hls_models.spec.on_chip import LinkEndSpec

_T = TypeVar("_T")


class Port(Protocol):
    """One end of a link, such as `cluster_cycles` defines.

    Attributes
    ----------
    spec : LinkEngineSpec or OnChipSpec
    ends : EndCycles
    """

    spec: LinkEndSpec
    ends: EndCycles

    @property
    def latency_cycles(self) -> int:
        """Latency of the wire."""

    @property
    def rate(self) -> float:
        """Bytes that go over the wire each cycle."""

    def stopped(self, end: Any, sends: int | None, receives: int | None) -> None:
        """Take the traffic of the wire, and the SEND and the RECEIVE that still wait, if any."""


class Run(Protocol):
    """The part of a run (`core_cycles.CoreRun`) that the tables use.

    Attributes
    ----------
    number : int
        Number of events that the run has scheduled; 0 before it begins.
    """

    program: Sequence[Instruction]
    core: CoreSpec
    bus: Bus
    begins: float
    engines: dict[tuple[Opcode, int], Engine]
    starts: list[float]
    ends: list[float]
    gemm_cycles: float
    next_instruction: int
    number: int


@dataclass(frozen=True)
class Held:
    """Order in which RECEIVEs end that are held back until nothing else is left to do.

    `_PausingRun` in :mod:`fpgapipe.partition.pricing.task_times` defines it.

    Attributes
    ----------
    task_of : sequence of int
        Number of the task of each instruction, in the order of the program.
    waiter_of : mapping of int to int
        For each RECEIVE that an instruction waits for, the number of the first such instruction.
    """

    task_of: Sequence[int]
    waiter_of: Mapping[int, int]


def _record(*names: str, floats: Iterable[str] = (), lists: Mapping[str, int] | None = None) -> Any:
    fields: list[Any] = [(name, np.int64) for name in names]
    fields += [(name, np.float64) for name in floats]
    return fields + [(name, np.int64, (size,)) for name, size in (lists or {}).items()]


WHOLE = np.dtype(
    _record(
        *("most_events", "free_flow", "failed", "word_bytes"),
        *("start_cycles", "fetch_cycles", "fetched_cycles", "offer_cycles", "take_cycles"),
        *("signal_cycles", "load_cycles", "loaded_cycles", "store_cycles", "send_cycles"),
        *("receive_cycles", "reader_cycles", "kept_cycles", "read_ahead_cycles", "enter_cycles"),
        "write_cycles",
        floats=("epsilon",),
    )
)
"""Numbers that all devices share; those in cycles are the constants of the Python model."""

DEVICE = np.dtype(
    [
        *_record(
            *("first_channel", "end_channel", "first_engine", "end_engine", "num_events", "number"),
            *("next", "end", "dispatching", "full", "room", "fetch_words", "bus_changes"),
            *("fetched_begin", "fetched_end", "word_parts", "header_parts"),
            floats=(
                *("begins", "latency", "rate", "width", "longest", "last", "bus_next", "written"),
                *("next_header", "recent", "gemm_cycles"),
            ),
            lists={"semaphores": NUM_SEMAPHORES},
        ),
        ("fetched", np.float64, (512,)),
    ]
)
"""A `CoreRun` and its `Bus`, with the ranges of its channels, engines and instructions."""

ENGINE = np.dtype(
    _record(
        *("kind", "channel", "port", "depth", "words", "leaving", "head", "tail", "may_begin"),
        *("released", "until", "load", "latency"),
        floats=("ready", "wakes", "busy_until", "weights_until", "streams_until"),
    )
)
"""An `Engine`. Its queue is ``queue[head:tail]``; the RECEIVEs that are held back are
``queue[released:head]``."""

CHANNEL = np.dtype(
    _record(
        *("head", "tail", "outstanding", "most_words", "opener", "opener_left", "places"),
        *("waiting", "ended", "ended_program", "grows"),
        floats=("hold", "fastest", "rate", "free", "emptied", "want", "share"),
    )
)
"""A `Channel`; its flows are a linked list from `head` to `tail`."""

PORT = np.dtype(
    _record(
        *("device", "other", "sent_channel", "words_room", "words", "frames", "parts"),
        *("first_send", "wanted", "asked", "waiting", "entering", "entered", "told"),
        *("awaited", "taken", "written"),
        *("overhead_bytes", "cuts_through", "transmit", "arrive", "freed", "heard"),
        floats=("rate", "wire_latency", "enter_from", "wire_from", "busy", "take_from"),
        lists={"room": NUM_CHANNELS, "arrived": NUM_CHANNELS},
    )
)
"""A `_Port` with its engines. Its fields from `first_send` to `written` are indices into the tables
of `sends` and `receives`; each says how far a step of their processing has come."""

FLOW = np.dtype(
    _record("index", "next", "follower", floats=("words", "burst", "begins", "began", "hold"))
)
EVENT = np.dtype(_record("key", "event", "what", floats=("time",)))
CODE = np.dtype(
    _record(
        *("engine", "program_words", "is_end", "waits", "signals", "words", "bursts", "product"),
        *("chunks", "task", "waiter"),
        floats=("takes", "lost", "offer", "since", "start", "end"),
    )
)
"""An instruction; the semaphores that it waits for and signals are masks."""

PRODUCT = np.dtype(
    _record(
        *("stream_cycles", "last_tile_cycles", "a_late", "b_late", "a_ahead", "b_words"),
        *("later_b_words", "stall_cycles", "latest"),
    )
)
"""A `GemmTiming`, and the cycles from the array's last sums to the end of the product."""

SENT = np.dtype(_record("index", "channel", "words", "link_words", "is_last", floats=("trailer",)))
RECEIVED = np.dtype(_record("index", "channel", "words", "is_last", "frame", "frees"))
"""A `_Chunk` of a SEND or of a RECEIVE."""


class Tables:
    """Initial state of some runs, as records.

    Parameters
    ----------
    runs, numbers, ports, peers, held
        The same as for `run_compiled`.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        numbers: Mapping[str, int],
        ports: Sequence[Sequence[Port]],
        peers: Mapping[int, int],
        held: Held | None,
    ) -> None:
        self.runs = runs
        self._ends_of, self._held = ports, held
        self.firsts = np.cumsum([0, *(len(run.program) for run in runs)])
        self.devices = np.zeros(len(runs), DEVICE)
        self.code = np.zeros(self.firsts[-1], CODE)
        self.whole = np.zeros(1, WHOLE)
        self._engines: list[NDArray[Any]] = []
        self._channels: list[NDArray[Any]] = []
        self._ports: list[NDArray[Any]] = []
        self._queue: list[NDArray[np.int64]] = []
        self._sends: list[NDArray[Any]] = [np.zeros(0, SENT)]
        self._receives: list[NDArray[Any]] = [np.zeros(0, RECEIVED)]
        self._products: dict[tuple[int, ...], int] = {}
        known = {
            name: getattr(engines, name.upper())
            for name in WHOLE.names or ()
            if hasattr(engines, name.upper())
        }
        known |= {"word_bytes": WORD_BYTES, "failed": -1}
        for name, value in {**known, **numbers}.items():
            self.whole[name] = value
        for device, run in enumerate(runs):
            self._add(device, run)
        self.ports = _joined(self._ports, PORT)
        self.ports["other"] = [peers.get(number, -1) for number in range(len(self.ports))]

    def state(self, num_events: int, num_flows: int, digest: str) -> dict[str, NDArray[Any]]:
        """Return new tables with room for a number of events and flows per device.

        The digest of the machine code's sources becomes part of the type of `whole`.
        """
        flows = np.zeros(num_flows * len(self.runs), FLOW)
        flows["next"] = np.arange(1, len(flows) + 1)
        flows["next"][-1] = -1
        fields: Any = {**(WHOLE.fields or {}), f"sources_{digest}": (np.dtype(np.int64), 0)}
        whole = np.zeros(1, [(name, kind) for name, (kind, *_) in fields.items()])
        for name in WHOLE.names or ():
            whole[name] = self.whole[name]
        whole["most_events"] = num_events
        products = np.zeros(len(self._products), PRODUCT)
        for name, column in zip(
            PRODUCT.names or (), zip(*self._products, strict=True), strict=False
        ):
            products[name] = column
        return {
            "whole": whole,
            "devices": self.devices.copy(),
            "engines": _joined(self._engines, ENGINE),
            "channels": _joined(self._channels, CHANNEL),
            "ports": self.ports.copy(),
            "flows": flows,
            "events": np.zeros(num_events * len(self.runs), EVENT),
            "code": self.code.copy(),
            "queue": np.concatenate([np.zeros(0, np.int64), *self._queue]),
            "products": products,
            "sends": _joined(self._sends, SENT),
            "receives": _joined(self._receives, RECEIVED),
        }

    def finish(self, state: Any) -> None:
        """Write the results of a simulation back to the runs."""
        ports = iter(state.ports)
        for device, run in enumerate(self.runs):
            own = state.devices[device]
            first, end = self.firsts[device : device + 2]
            run.starts[:] = state.code["start"][first:end].tolist()
            run.ends[:] = state.code["end"][first:end].tolist()
            run.gemm_cycles = float(own["gemm_cycles"])
            run.bus.written = float(own["written"])
            run.next_instruction = int(own["next"] - first)
            numbers = range(own["first_engine"], own["end_engine"])
            for number, engine in zip(numbers, run.engines.values(), strict=True):
                head, tail = state.engines[number]["head"], state.engines[number]["tail"]
                engine.queue.extend((state.queue[head:tail] - first).tolist())
            for port in self._ends_of[device]:
                link_end = next(ports)
                at = link_end["entering"]
                at = at if at < link_end["waiting"] else link_end["asked"]
                sends = state.sends["index"][at : link_end["wanted"]] - first
                at, awaited = link_end["taken"], link_end["awaited"]
                receives = state.receives["index"][at:awaited] - first
                waiting = (int(each[0]) if len(each) else None for each in (sends, receives))
                port.stopped(link_end, *waiting)

    def _add(self, device: int, run: Run) -> None:
        """Add a device."""
        first, core, bus = int(self.firsts[device]), run.core, run.bus
        spec = SequencerSpec.of(core)
        channels = [bus.reads, bus.writes, *(each for pair in bus.packets for each in pair)]
        first_channel = sum(map(len, self._channels))
        first_engine = sum(map(len, self._engines))
        own = self.devices[device : device + 1]
        for name, value in {
            "begins": run.begins,
            "latency": bus.latency,
            "rate": bus.rate,
            "width": core.bus_bytes / WORD_BYTES,
            "longest": core.burst_beats * core.bus_bytes / WORD_BYTES,
            "bus_next": inf,
            "first_channel": first_channel,
            "end_channel": first_channel + len(channels),
            "first_engine": first_engine,
            "end_engine": first_engine + len(run.engines),
            "next": first,
            "end": first + len(run.program),
            "full": -1,
            "room": spec.prefetch_words,
            "fetch_words": spec.fetch_words,
            "word_parts": spec.word_parts,
            "header_parts": spec.header_parts,
        }.items():
            own[name] = value
        self._channels.append(_channels(channels))
        first_port = sum(map(len, self._ports))
        table = np.zeros(len(run.engines), ENGINE)
        for at, ((opcode, number), engine) in enumerate(run.engines.items()):
            kind = vars(type(engine))["kind"]
            is_packet = opcode in LINK_OPCODES
            channel = 2 * (number + 1) if is_packet else 0
            channel += opcode in (Opcode.STORE, Opcode.RECEIVE)
            table[at]["kind"] = kind
            table[at]["channel"] = first_channel + channel
            table[at]["port"] = first_port + number if is_packet else -1
            table[at]["depth"] = engine.depth
            table[at]["may_begin"] = engine.may_begin
            table[at]["until"] = -1
            table[at]["load"] = core.array.load_cycles
            table[at]["latency"] = core.array.latency_cycles
        code = self.code[first : first + len(run.program)]
        where = self._decode(first, run, code)
        # The instructions of each queue are in the order of the program.
        ends = np.bincount(where + 1, minlength=len(table) + 1).cumsum()
        begins = ends[:-1] + sum(map(len, self._queue))
        table["head"] = table["tail"] = table["released"] = begins
        self._queue.append(np.argsort(where, kind="stable") + first)
        code["engine"] = np.where(where < 0, -1, where + first_engine)
        self._engines.append(table)
        if self._held is not None:
            tasks = self._held.task_of[: len(code)]
            code["task"][: len(tasks)] = tasks
            code["waiter"] = -1
            for index, waiter in self._held.waiter_of.items():
                code["waiter"][index] = waiter
        self._ports.append(self._link_ends(device, first_channel))

    def _decode(self, first: int, run: Run, code: NDArray[Any]) -> NDArray[np.int64]:
        """Fill in the times of instructions; return the number of each one's engine, or -1."""
        opcodes = [instruction.opcode for instruction in run.program]
        end = opcodes.index(Opcode.END) if Opcode.END in opcodes else len(opcodes)
        code["is_end"][end : end + 1] = 1
        own, program = code[:end], run.program[:end]
        own["program_words"] = [PROGRAM_WORDS[opcode] for opcode in opcodes[:end]]
        own["waits"] = [_mask(instruction.wait) for instruction in program]
        own["signals"] = [_mask(instruction.signal) for instruction in program]
        numbers = {key: number for number, key in enumerate(run.engines)}
        where = np.full(len(code), -1)
        where[:end] = [numbers.get((each.opcode, each.engine), -1) for each in program]
        for number, ((opcode, _), engine) in enumerate(run.engines.items()):
            places = np.flatnonzero(where == number).tolist()
            bodies = [program[at].body for at in places]
            if opcode is Opcode.GEMM:
                own["product"][places] = _each(bodies, lambda body: self._product(body, run.core))
            elif opcode is Opcode.VECTOR and bodies:
                found = _each(bodies, lambda body: _vector(body, run.core))
                own["takes"][places], own["lost"][places] = zip(*found, strict=True)
            elif bodies and vars(type(engine))["kind"] <= Kind.RECEIVE:
                own["words"][places], own["bursts"][places] = _transfers(bodies, run.core)
        return where

    def _product(self, body: Mapping[str, Any], core: CoreSpec) -> int:
        """Return the row of a product's times in the table of products."""
        timing = gemm_timing(body, core)
        written = engines.WRITTEN_CYCLES + timing.writes - 1
        row = (
            *(timing.stream_cycles, timing.last_tile_cycles, timing.a_late, timing.b_late),
            *(timing.a_ahead, timing.b_words, timing.later_b_words, timing.stall_cycles),
            written if timing.writes else engines.SUMMED_CYCLES,
        )
        return self._products.setdefault(row, len(self._products))

    def _link_ends(self, device: int, first_channel: int) -> NDArray[Any]:
        """Return the ports of a device, and add their frames and bursts to the tables."""
        run, first = self.runs[device], int(self.firsts[device])
        table = np.zeros(len(self._ends_of[device]), PORT)
        for link, port in enumerate(self._ends_of[device]):
            own = table[link : link + 1]
            sends, receives = (sum(map(len, each)) for each in (self._sends, self._receives))
            for name in ("first_send", "wanted", "asked", "waiting", "entering", "entered", "told"):
                own[name] = sends
            for name in ("awaited", "taken", "written"):
                own[name] = receives
            own["device"] = device
            own["sent_channel"] = first_channel + 2 + 2 * link
            own["wire_latency"] = port.latency_cycles
            own["words_room"] = send_words(run.core)
            own["parts"] = port.spec.parts
            own["rate"] = port.rate
            own["room"] = port.spec.slots
            own["overhead_bytes"] = port.spec.overhead_bytes
            for name in ("cuts_through", "transmit", "arrive", "freed", "heard"):
                own[name] = getattr(port.ends, name)
            frames = [0] * NUM_CHANNELS
            for index, instruction in enumerate(run.program):
                if instruction.opcode is Opcode.END:
                    break
                if instruction.engine != link or instruction.opcode not in LINK_OPCODES:
                    continue
                channel = instruction.body["channel"]
                if instruction.opcode is Opcode.SEND:
                    chunks = _frames(words_of_packet(instruction.body), port.ends.chunk_words)
                    self._sends.append(chunks)
                else:
                    chunks = _bursts(instruction.body, run.core, port.ends)
                    size = 1 + int(chunks["words"].sum())
                    chunks["frame"] += frames[channel]
                    frames[channel] += -(-size // port.ends.chunk_words)
                    self._receives.append(chunks)
                chunks["index"], chunks["channel"] = first + index, channel
                self.code["chunks"][first + index] = len(chunks)
        return table


_mask = cache(mask_of)


def _each(bodies: Sequence[Any], function: Callable[[Any], _T]) -> list[_T]:
    """Apply a function to each body, once per object; equal bodies are mostly the same object."""
    known: dict[int, _T] = {}
    for body in bodies:
        if id(body) not in known:
            known[id(body)] = function(body)
    return [known[id(body)] for body in bodies]


def _transfers(
    bodies: Sequence[Mapping[str, int]], core: CoreSpec
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the words and bursts of transfers, with the rules of `words_of_transfer`."""
    columns = [[body[name] for body in bodies] for name in ("memory", "row_bytes")]
    block = max(core.burst_beats * core.bus_bytes, WORD_BYTES)
    starts, size = np.array(columns, np.int64)
    starts %= block
    lasts = starts + size - 1
    words, bursts = (lasts // each - starts // each + 1 for each in (WORD_BYTES, block))
    for at, body in enumerate(bodies):
        if body["rows"] or body["planes"]:
            words[at], bursts[at] = words_of_transfer(body, core)
    if not bursts.all():
        raise ValueError("a transfer without a burst is left to the definition")
    return words, bursts


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


def _bursts(body: Mapping[str, Any], core: CoreSpec, link: EndCycles) -> NDArray[Any]:
    """Return the bursts of a RECEIVE, with the frames that they need and those that they free."""
    longest = burst_words(core)
    # Only the place of the first word in a burst matters.
    names = ("row_bytes", "rows", "planes", "row_memory", "plane_memory")
    memory = body["memory"] % (longest * WORD_BYTES)
    sizes = np.array(_sizes(longest, memory, *(body[name] for name in names)), np.int64)
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


def _channels(channels: Sequence[Channel]) -> NDArray[Any]:
    """Return the channels of a bus before any requests."""
    table = np.zeros(len(channels), CHANNEL)
    for name in ("head", "tail", "opener"):
        table[name] = -1
    for name in ("outstanding", "most_words", "hold"):
        table[name] = [getattr(channel, name) for channel in channels]
    for name in ("fastest", "emptied"):
        table[name] = [getattr(channel, name) for channel in channels]
    return table


def _joined(tables: Sequence[NDArray[Any]], kind: np.dtype[Any]) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, kind), *tables])
