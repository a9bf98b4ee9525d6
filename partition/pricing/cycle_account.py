"""Where the cycles of a step go: what each device's array does, or waits for, in every cycle.

The cycle model says when each instruction starts and ends, and the program says which instructions
wait for which. An array's step is divided at the starts and ends of its products. A gap between two
products is followed backwards from the product that ends it: the instruction that ended last among
those that it waited for is charged with the time in which it ran, then the one that this one waited
for, and so on to the beginning of the gap. Every cycle is charged exactly once, so the parts of a
device add up to the cycles of the step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from fpgapipe.hw.hls_models.cycles.instruction_cycles import gemm_timing
from fpgapipe.hw.hls_models.isa.instructions import Opcode
from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec
from fpgapipe.lowering.units.step_options import GRADIENTS, MOMENTUM, PARAMETERS, SECOND_MOMENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fpgapipe.hw.hls_models.cycles.cluster_cycles import ClusterPrediction
    from fpgapipe.hw.hls_models.cycles.core_cycles import Prediction
    from fpgapipe.hw.hls_models.isa.instructions import Instruction
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.program.device_program import DeviceProgram
    from fpgapipe.lowering.program.pipeline import PipelineProgram


class Cause(StrEnum):
    """State of an array in a cycle, or the engine that it waits for."""

    VECTORS = "products"
    OPERANDS = "reads operands"
    FILL = "fills and drains"
    LOADS = "waits for loads"
    STORES = "waits for stores"
    VECTOR = "waits for vector operations"
    SEND = "waits for sends"
    RECEIVE = "waits for other devices"
    OTHER_ARRAY = "waits for the other array"
    START = "waits for instructions"
    DONE = "is done before the others"


_ENGINES = {
    Opcode.LOAD: Cause.LOADS,
    Opcode.STORE: Cause.STORES,
    Opcode.VECTOR: Cause.VECTOR,
    Opcode.SEND: Cause.SEND,
    Opcode.RECEIVE: Cause.RECEIVE,
    Opcode.GEMM: Cause.OTHER_ARRAY,
}

NO_KERNEL = -1
"""Number of the kernel of cycles that no kernel is charged with."""


class Charge(NamedTuple):
    """Cause that cycles are charged to.

    Attributes
    ----------
    kernel : int
        Number of the kernel that works, or `NO_KERNEL`.
    cause : Cause
    moved : str
        What a load or a store moves: ``weights``, ``gradients``, ``optimiser`` or
        ``activations``; empty for all else.
    """

    kernel: int
    cause: Cause
    moved: str = ""


class Blocker(NamedTuple):
    """An instruction without which another one could not start, and since when it could.

    Attributes
    ----------
    time : float
        When it let the other one go.
    instruction : int
        Its number.
    ended : bool
        Whether the other one waited for its end, not only for its start.
    """

    time: float
    instruction: int
    ended: bool


@dataclass(frozen=True)
class Spent:
    """Cycles of a device's step with one cause.

    Attributes
    ----------
    layer : str
        Last layer of the unit, as in `KernelOrigin`; empty for `NO_KERNEL`.
    direction : str
        Token of the task's kind (``F``, ``B``, ``U`` and so on); empty for `NO_KERNEL`.
    kernel : str
        Name of the kernel.
    cause : Cause
    moved : str
        As in `Charge`.
    cycles : float
        In all micro-batches together.
    """

    layer: str
    direction: str
    kernel: str
    cause: Cause
    moved: str
    cycles: float

    @property
    def words(self) -> str:
        """The cause in words, such as ``waits for loads of weights``."""
        return f"{self.cause} of {self.moved}" if self.moved else str(self.cause)


@dataclass(frozen=True)
class EngineBusy:
    """Cycles in which an engine of a device has an instruction under way, by unit and pass.

    Attributes
    ----------
    engine : str
        Such as ``load`` or ``gemm0``.
    layer, direction : str
        As in `Spent`.
    cycles : float
    """

    engine: str
    layer: str
    direction: str
    cycles: float


class CycleAccount:
    """Account of the cycles of one device in a step.

    Parameters
    ----------
    program : DeviceProgram
    prediction : Prediction
        Times of its instructions by the cycle model, alone or in a cluster.
    cycles : float
        Cycles of the step: those of the slowest device.
    """

    def __init__(self, program: DeviceProgram, prediction: Prediction, cycles: float) -> None:
        self.program = program
        self.cycles = cycles
        count = len(program.kernel_of)
        self._instructions: Sequence[Instruction] = program.instructions[:count]
        self._starts, self._ends = prediction.starts[:count], prediction.ends[:count]
        self._before, self._begins = self._in_engines()
        self._givers = self._pairs()
        self._room = list(_room_makers(self._instructions, self._starts, program.core))
        self._roles = _Roles(program)

    # ------------------------------------------------------------------ what the array does

    def spent(self, engine: int = 0) -> list[Spent]:
        """Cycles of one array by kernel and cause; together they are the cycles of the step."""
        totals: dict[Charge, float] = defaultdict(float)
        for charge, cycles in self._charges(engine):
            totals[charge] += cycles
        kernels, tasks = self.program.kernels, self.program.tasks
        found: dict[tuple[str, str, str, Cause, str], float] = defaultdict(float)
        for charge, cycles in totals.items():
            if charge.kernel == NO_KERNEL:
                key = "", "", "", charge.cause, charge.moved
            else:
                origin = kernels[charge.kernel]
                kind = tasks[origin.task].kind.token
                key = origin.layer, kind, origin.name, charge.cause, charge.moved
            found[key] += cycles
        return [Spent(*key, cycles) for key, cycles in found.items() if cycles]

    def _charges(self, engine: int) -> Iterator[tuple[Charge, float]]:
        done = 0.0
        core = self.program.core
        last = max(range(len(self._ends)), key=self._ends.__getitem__, default=None)
        for index, instruction in enumerate(self._instructions):
            if instruction.opcode is not Opcode.GEMM or instruction.engine != engine:
                continue
            begin, end = max(self._starts[index], done), self._ends[index]
            yield from self._gap(done, begin, index)
            extent = instruction.body["extent"]
            left = end - begin
            timing = gemm_timing(instruction.body, core)
            vectors = (extent["m"] + 1) * (extent["k"] + 1) * (extent["n"] + 1)
            kernel = self.program.kernel_of[index]
            for cause, most in (
                (Cause.VECTORS, vectors),
                (Cause.OPERANDS, timing.stream_cycles - vectors),
            ):
                part = min(left, max(most, 0))
                yield Charge(kernel, cause), part
                left -= part
            yield Charge(kernel, Cause.FILL), left
            done = end
        if last is not None and self._ends[last] > done:
            yield from self._ended(last, done, self._ends[last])
            done = self._ends[last]
        yield Charge(NO_KERNEL, Cause.DONE), self.cycles - done

    def _gap(self, begin: float, end: float, index: int) -> Iterator[tuple[Charge, float]]:
        """Charge the time before an instruction, which starts at `end`."""
        while end > begin:
            blocker = self._blocker(index, end)
            kernel = self.program.kernel_of[index]
            if blocker is None or blocker.time <= begin:
                yield Charge(kernel, Cause.START), end - begin
                return
            if blocker.time < end:
                yield Charge(kernel, Cause.START), end - blocker.time
                end = blocker.time
            index = blocker.instruction
            if blocker.ended:
                first = max(self._begins[index], begin)
                yield self._charge(index), end - first
                end = first

    def _ended(self, index: int, begin: float, end: float) -> Iterator[tuple[Charge, float]]:
        """Charge the time up to the end of an instruction."""
        first = max(self._begins[index], begin)
        yield self._charge(index), end - first
        yield from self._gap(begin, first, index)

    def _charge(self, index: int) -> Charge:
        instruction = self._instructions[index]
        moved = ""
        if instruction.opcode in (Opcode.LOAD, Opcode.STORE):
            moved = self._roles.of(instruction)
        return Charge(self.program.kernel_of[index], _ENGINES[instruction.opcode], moved)

    def _blocker(self, index: int, time: float) -> Blocker | None:
        """Last cause that held an instruction up, not after `time`; None if nothing did."""
        latest: Blocker | None = None
        waited = [self._before[index], *self._givers.get(index, ())]
        for other in waited:
            if other is None or self._ends[other] > time:
                continue
            if latest is None or self._ends[other] > latest.time:
                latest = Blocker(self._ends[other], other, True)
        room = self._room[index]
        since = -1.0 if latest is None else latest.time
        if room is not None and since < self._starts[room] <= time:
            latest = Blocker(self._starts[room], room, False)
        return latest

    # ------------------------------------------------------------------ what the engines do

    def engines(self) -> list[EngineBusy]:
        """Cycles of all engines by unit and pass; for the rest of the step an engine is idle.

        The cycles of an engine that has several instructions under way count once.
        """
        found: dict[tuple[str, str, str], float] = defaultdict(float)
        for index, instruction in enumerate(self._instructions):
            name = instruction.opcode.name.lower()
            if instruction.opcode in (Opcode.GEMM, Opcode.SEND, Opcode.RECEIVE):
                name += str(instruction.engine)
            origin = self.program.kernels[self.program.kernel_of[index]]
            key = name, origin.layer, self.program.tasks[origin.task].kind.token
            found[key] += self._ends[index] - self._begins[index]
        return [EngineBusy(*key, cycles) for key, cycles in found.items()]

    # ------------------------------------------------------------------ who waits for whom

    def _in_engines(self) -> tuple[list[int | None], list[float]]:
        """The instruction before each in its engine; when each has its engine for itself."""
        latest: dict[tuple[Opcode, int], int] = {}
        done: dict[tuple[Opcode, int], float] = defaultdict(float)
        before: list[int | None] = []
        begins: list[float] = []
        for index, instruction in enumerate(self._instructions):
            key = instruction.opcode, instruction.engine
            before.append(latest.get(key))
            begins.append(min(max(self._starts[index], done[key]), self._ends[index]))
            latest[key] = index
            done[key] = max(done[key], self._ends[index])
        return before, begins

    def _pairs(self) -> dict[int, list[int]]:
        """The instructions whose signals each instruction has taken, the first ones first."""
        gives: dict[int, list[int]] = defaultdict(list)
        takes: dict[int, list[int]] = defaultdict(list)
        for index, instruction in enumerate(self._instructions):
            for number in instruction.signal:
                gives[number].append(index)
            for number in instruction.wait:
                takes[number].append(index)
        found: dict[int, list[int]] = defaultdict(list)
        for number, takers in takes.items():
            givers = sorted(gives[number], key=self._ends.__getitem__)
            takers = sorted(takers, key=self._starts.__getitem__)
            for taker, giver in zip(takers, givers, strict=False):
                found[taker].append(giver)
        return found

    # ------------------------------------------------------------------ for people and files

    def by_unit(self) -> list[dict[str, Any]]:
        """Whole cycles of each array by unit, pass and cause, for JSON."""
        rows: list[dict[str, Any]] = []
        for engine in range(self.program.core.num_engines):
            totals: dict[tuple[str, str, str], float] = defaultdict(float)
            for each in self.spent(engine):
                totals[each.layer, each.direction, each.words] += each.cycles
            rows += [
                {"array": engine, "layer": layer, "pass": kind, "cause": words, "cycles": round(at)}
                for (layer, kind, words), at in totals.items()
            ]
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Contents for JSON: rows of each array, and rows of each engine."""
        return {
            "arrays": [
                [
                    {
                        "layer": each.layer,
                        "pass": each.direction,
                        "kernel": each.kernel,
                        "cause": each.words,
                        "cycles": round(each.cycles, 3),
                    }
                    for each in self.spent(engine)
                ]
                for engine in range(self.program.core.num_engines)
            ],
            "engines": [
                {
                    "engine": each.engine,
                    "layer": each.layer,
                    "pass": each.direction,
                    "cycles": round(each.cycles, 3),
                }
                for each in self.engines()
            ],
        }


def accounts(pipeline: PipelineProgram, found: ClusterPrediction) -> list[CycleAccount]:
    """Accounts of all devices of a pipeline whose step the cycle model has run."""
    return [
        CycleAccount(part, prediction, found.cycles)
        for part, prediction in zip(pipeline.parts, found.devices, strict=True)
    ]


def _room_makers(
    instructions: Sequence[Instruction], starts: Sequence[float], core: CoreSpec
) -> Iterator[int | None]:
    """The instruction whose start let each instruction leave the program for its queue.

    Instructions leave the program in order, so this is the latest start of any instruction that
    made room for an instruction up to this one.
    """
    spec = SequencerSpec.of(core)
    depths = {
        Opcode.LOAD: spec.load_words,
        Opcode.STORE: spec.store_words,
        Opcode.GEMM: spec.gemm_words,
        Opcode.VECTOR: spec.vector_words,
        Opcode.SEND: spec.send_words,
        Opcode.RECEIVE: spec.receive_words,
    }
    queues: dict[tuple[Opcode, int], list[int]] = defaultdict(list)
    latest: int | None = None
    for index, instruction in enumerate(instructions):
        queue = queues[instruction.opcode, instruction.engine]
        queue.append(index)
        # All instructions of an engine have equally many words; one waits at the queue's head.
        ahead = depths[instruction.opcode] // instruction.words + 1
        if len(queue) > ahead:
            room = queue[-1 - ahead]
            if latest is None or starts[room] > starts[latest]:
                latest = room
        yield latest


class _Roles:
    """Tensors that transfers of a program move, by their addresses."""

    def __init__(self, program: DeviceProgram) -> None:
        places = []
        words = {
            PARAMETERS: "weights",
            GRADIENTS: "gradients",
            MOMENTUM: "optimiser",
            SECOND_MOMENT: "optimiser",
        }
        for name, place in program.places.items():
            role = words.get(name)
            if name in program.stored and not program.stored[name].trainable:
                role = "weights"
            if name.endswith(".part") and name.removesuffix(".part") in program.stored:
                role = "gradients"
            if role:
                places.append((place.begin, place.end, role))
        self._places = sorted(places)
        self._begins = [begin for begin, _, _ in self._places]

    def of(self, instruction: Instruction) -> str:
        """``weights``, ``gradients``, ``optimiser`` or ``activations``."""
        address = instruction.body["memory"]
        number = bisect_right(self._begins, address) - 1
        if number >= 0 and address < self._places[number][1]:
            return self._places[number][2]
        return "activations"
